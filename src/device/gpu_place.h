// Where a GPU is attached to its host.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace so {

// The PCI address of a CUDA GPU as sysfs writes it, "0000:3b:00.0". Empty where it is not known, as on machines without
// one. `index` is the device's number among the visible ones.
std::string gpu_pci_address(int index);

// How many CUDA GPUs are visible; 0 without any, or without the CUDA backend. To be asked after find_cuda().
int gpu_count();
// Whether a GPU has no memory of its own, but the processor's.
bool gpu_shares_memory(int index);
// Returns a text that tells a GPU from all others, also from those that share its board (MIG); empty where it is not
// known.
std::string gpu_identity(int index);
// Whether a GPU's copies reach the memory of the one with this identity, which has to be visible to the process. True
// of itself.
bool gpu_reaches(int index, const std::string& identity);
// The least bytes of a buffer that another process's GPU can reach: the driver shares whole allocations, and puts
// smaller ones together.
inline constexpr std::size_t shareable_bytes = std::size_t{2} << 20;

// The CPUs that the kernel says are near a PCI device: those of its NUMA node. Empty where it does not say. `root` is
// in front of /sys, for tests.
std::vector<int> cpus_near(const std::string& pci_address, const std::string& root = "");

}  // namespace so
