#include "doctor/examination.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/program_path.h"
#include "device/backend.h"
#include "device/cuda_runtime.h"
#include "device/gpu_place.h"
#include "doctor/host_findings.h"
#include "doctor/partition/partition.h"
#include "io/cache_directory.h"
#include "ranks/mpi_ranks.h"

namespace so {
namespace {

namespace fs = std::filesystem;

// Returns the nearest folder that is there: a folder that is not there yet would be made in it.
Folder look_at_folder(std::string check, std::string subject, fs::path path) {
  Folder folder{std::move(check), std::move(subject), std::move(path)};
  fs::path there = folder.path;
  std::error_code error;
  while (!fs::exists(there, error) && there.has_parent_path() && there != there.parent_path())
    there = there.parent_path();
  if (!fs::is_directory(there, error)) {
    folder.reason = there.string() + " is not a directory";
  } else if (::access(there.c_str(), W_OK | X_OK) != 0) {
    folder.reason = there.string() + " cannot be written to";
  }
  try {
    folder.free = free_space(there);
  } catch (const Error&) {
  }
  return folder;
}

}  // namespace

Findings examine(const MachineFiles& files, const GpuDriver& driver, const Software& software) {
  Findings findings;
  const Processors machine = read_processors(files);
  const std::vector<PciGpu> gpus = pci_gpus(files);
  find_cores(files, machine, findings);
  find_cores_near_gpus(machine, gpus, findings);
  find_cpu_quota(files, machine, findings);
  find_governor(files, machine, findings);
  find_memory_nodes(files, machine, findings);
  find_memory(files, findings);
  find_huge_pages(files, findings);
  find_process_limits(files, findings);
  find_partition(files, findings);
  find_driver(driver, gpus, software, findings);
  find_gpu_memory(driver, files, machine, software, findings);
  find_pcie_links(driver, gpus, findings);
  find_gpu_clocks(driver, findings);
  find_gpu_topology(driver, findings);
  find_libraries(software, driver, std::max(gpus.size(), driver.gpus.size()), findings);
  find_mpi(software, findings);
  find_folders(software, findings);
  return findings;
}

Software software_of_this_machine() {
  Software software;
  if (const CudaSupport support = cuda_backend().find(0); !support.usable) software.no_cuda = support.reason;
  software.shares_memory = software.no_cuda.empty() && gpu_shares_memory(0);
  software.cuda_runtime = cuda_runtime_version();
  software.libraries = ask_libraries();
  software.mpi = have_mpi();
  software.mpi_launcher = find_program("mpirun");
  try {
    software.folders.push_back(look_at_folder("cache_folder", "cache folder", cache_directories({}, {}).front()));
  } catch (const Error& error) {
    software.folders.push_back({"cache_folder", "cache folder", "", std::nullopt, error.what()});
  }
  std::error_code error;
  const fs::path temporary = fs::temp_directory_path(error);
  if (error) {
    const char* named = std::getenv("TMPDIR");
    software.folders.push_back(
        {"temporary_folder", "temporary folder", named != nullptr ? named : "/tmp", std::nullopt, error.message()});
  } else {
    software.folders.push_back(look_at_folder("temporary_folder", "temporary folder", temporary));
  }
  return software;
}

}  // namespace so
