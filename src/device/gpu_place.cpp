#include "device/gpu_place.h"

#include <fstream>
#include <iterator>

#include "base/proc_text.h"

namespace so {

std::vector<int> cpus_near(const std::string& pci_address, const std::string& root) {
  if (pci_address.empty()) return {};
  std::ifstream in(root + "/sys/bus/pci/devices/" + pci_address + "/local_cpulist");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  return parse_cpu_list(text).value_or(std::vector<int>{});
}

}  // namespace so
