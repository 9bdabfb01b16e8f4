#include <fmt/format.h>

#include "base/file.h"
#include "base/quantities.h"
#include "doctor/gpu_findings.h"

namespace so {

void find_libraries(const Software& software, const GpuDriver& driver, std::size_t gpus, Findings& findings) {
  Finding cuda{.check = "cuda_runtime", .subject = "CUDA runtime"};
  const int runtime = software.cuda_runtime, newest = driver.cuda_version;
  if (runtime == 0) {
    cuda.found = "this build has none";  // what that means where there is a GPU, find_driver() says
  } else {
    cuda.found = fmt::format("{}.{}, in this build", runtime / 1000, runtime % 1000 / 10);
    // A driver runs every runtime of its own major version.
    if (newest > 0 && newest / 1000 < runtime / 1000) {
      cuda.found += fmt::format("; the driver runs {}.{} and older", newest / 1000, newest % 1000 / 10);
      cuda.verdict = FindingVerdict::wrong;
      cuda.cost = "no GPU can be used";
      cuda.mend = "update NVIDIA's driver, or build with a CUDA toolkit that it runs";
    }
  }
  findings.push_back(std::move(cuda));
  for (const Library& library : software.libraries) {
    Finding f{.check = library.check, .subject = library.name, .found = library.version};
    if (library.version.empty()) {
      const bool needed = library.check == "nccl" ? gpus > 1 : gpus > 0;
      f.found = needed ? "not found: " + library.reason : "not found; nothing on this machine needs it";
      if (needed) {
        f.verdict = FindingVerdict::costs;
        f.cost = library.check == "nccl"
                     ? "no collectives between GPUs of several hosts, or that do not reach each other"
                     : "the GPU cannot be used";
        f.mend =
            library.check == "nccl"
                ? "pip install 'superoffload[cuda]', or apt-get install libnccl2 (NVIDIA's package repository)"
            : library.check == "cudnn"
                ? "pip install 'superoffload[cuda]', or apt-get install libcudnn9-dev-cuda-13 (NVIDIA's package repository)"
                : "pip install 'superoffload[cuda]', or apt-get install cuda-toolkit-13-0 (NVIDIA's package repository)";
      }
    }
    findings.push_back(std::move(f));
  }
}

void find_mpi(const Software& software, Findings& findings) {
  Finding f{.check = "mpi", .subject = "MPI"};
  if (!software.mpi) {
    f.found = "this build has none";
    f.verdict = FindingVerdict::costs;
    f.cost = "several ranks (--gpus N, mpirun, srun) cannot run";
    f.mend = "apt-get install libopenmpi-dev openmpi-bin, then configure and build again";
  } else if (!software.mpi_launcher) {
    f.found = "this build has it, and mpirun is not in PATH";
    f.verdict = FindingVerdict::costs;
    f.cost = "--gpus N cannot start its ranks";
    f.mend = "apt-get install openmpi-bin, or pip install 'superoffload[ranks]'";
  } else {
    f.found = printable_path(*software.mpi_launcher);
  }
  findings.push_back(std::move(f));
}

void find_folders(const Software& software, Findings& findings) {
  constexpr std::uint64_t little = 1'000'000'000;
  for (const Folder& folder : software.folders) {
    Finding f{.check = folder.check, .subject = folder.subject};
    f.found = printable_path(folder.path);
    if (!folder.reason.empty()) {
      f.found += ": " + folder.reason;
      f.verdict = FindingVerdict::wrong;
      f.cost = folder.check == "temporary_folder"
                   ? "programs that need temporary files fail"
                   : "tokenised data is kept in a temporary folder, and made anew each time";
      f.mend = folder.check == "temporary_folder" ? "export TMPDIR=DIR, a folder that can be written to"
                                                  : "export XDG_CACHE_HOME=DIR, a folder that can be written to";
    } else if (!folder.free) {
      f.found += ": its file system does not say how much is free";
      f.verdict = FindingVerdict::unknown;
    } else {
      f.found += fmt::format(": {} free", format_bytes(*folder.free));
      if (*folder.free < little) {
        f.verdict = FindingVerdict::costs;
        f.cost = fmt::format("a token cache holds 8 bytes a token (docs/running.md): this is room for {} million",
                             *folder.free / 8'000'000);
        f.mend = folder.check == "temporary_folder" ? "export TMPDIR=DIR on a larger file system"
                                                    : "superoffload cache --prune --older_than 30";
      }
    }
    findings.push_back(std::move(f));
  }
}

}  // namespace so
