#include "device/gpu_place.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

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

int gpu_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

bool gpu_shares_memory(int index) {
  int integrated = 0;
  if (cudaDeviceGetAttribute(&integrated, cudaDevAttrIntegrated, index) == cudaSuccess) return integrated != 0;
  cudaGetLastError();
  return false;
}

std::string gpu_identity(int index) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, index) != cudaSuccess) {
    cudaGetLastError();
    return {};
  }
  std::string text;
  for (const char byte : properties.uuid.bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

bool gpu_reaches(int index, const std::string& identity) {
  for (int other = 0; other < gpu_count(); ++other) {
    if (gpu_identity(other) != identity) continue;
    int reaches = 0;
    if (other == index) return true;
    if (cudaDeviceCanAccessPeer(&reaches, index, other) == cudaSuccess) return reaches != 0;
    cudaGetLastError();
  }
  return false;
}

}  // namespace so
