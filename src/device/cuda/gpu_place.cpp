#include "device/gpu_place.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cctype>

namespace so {

std::string gpu_pci_address(int index) {
  char address[32] = "";
  if (cudaDeviceGetPCIBusId(address, sizeof address, index) != cudaSuccess) {
    cudaGetLastError();  // else the next call would report it
    return {};
  }
  std::string text = address;
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

}  // namespace so
