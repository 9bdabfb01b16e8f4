#include "device/gpu_place.h"

namespace so {

std::string gpu_pci_address(int) { return {}; }

}  // namespace so
