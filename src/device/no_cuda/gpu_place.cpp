#include "device/gpu_place.h"

namespace so {

std::string gpu_pci_address(int) { return {}; }
int gpu_count() { return 0; }
bool gpu_shares_memory(int) { return false; }
std::string gpu_identity(int) { return {}; }
bool gpu_reaches(int, const std::string&) { return false; }

}  // namespace so
