// Findings about GPUs, their driver and what the program needs beside them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "doctor/finding.h"
#include "doctor/gpu_driver.h"
#include "doctor/libraries.h"
#include "doctor/pci_gpu.h"
#include "doctor/processors.h"

namespace so {

// A folder that runs write to.
struct Folder {
  std::string check, subject;
  std::filesystem::path path;
  std::optional<std::uint64_t> free = {};  // bytes; nothing: not known
  std::string reason = {};                 // why it cannot be written to; empty: it can
};

struct Software {
  std::string no_cuda = {};    // why the program has no GPU to use; empty: it has
  bool shares_memory = false;  // that GPU has none of its own, but the CPU's
  int cuda_runtime = 0;        // of this build: 13000 is 13.0; 0: it has none
  std::vector<Library> libraries = {};
  bool mpi = false;                                        // this build supports it
  std::optional<std::filesystem::path> mpi_launcher = {};  // mpirun
  std::vector<Folder> folders = {};
};

// The driver, and whether the program can use a GPU; without any GPU that is not wrong.
void find_driver(const GpuDriver& driver, const std::vector<PciGpu>& gpus, const Software& software,
                 Findings& findings);
// Whose memory it is: the GPU's own, the CPU's, or a NUMA node's.
void find_gpu_memory(const GpuDriver& driver, const MachineFiles& files, const Processors& machine,
                     const Software& software, Findings& findings);
void find_pcie_links(const GpuDriver& driver, const std::vector<PciGpu>& gpus, Findings& findings);
void find_gpu_clocks(const GpuDriver& driver, Findings& findings);
void find_gpu_topology(const GpuDriver& driver, Findings& findings);

void find_libraries(const Software& software, const GpuDriver& driver, std::size_t gpus, Findings& findings);
void find_mpi(const Software& software, Findings& findings);
void find_folders(const Software& software, Findings& findings);

}  // namespace so
