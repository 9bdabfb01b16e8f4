#include "ranks/launch.h"

#include <array>
#include <charconv>
#include <cstring>

#include "base/error.h"

namespace so {
namespace {

// The variables of a launcher. Those of an empty name it does not set.
struct Variables {
  Launcher launcher;
  const char *rank, *size, *local_rank, *local_size;
};

// Slurm sets SLURM_PROCID and SLURM_NTASKS in batch scripts too, where nobody is a rank; what a step has, srun alone
// sets.
constexpr std::array launchers = {
    Variables{Launcher::torchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    Variables{Launcher::open_mpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
              "OMPI_COMM_WORLD_LOCAL_SIZE"},
    Variables{Launcher::pmi, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    Variables{Launcher::slurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""},
};

class Reader {
 public:
  Reader(const Environment& environment, Launcher launcher) : environment_(environment), launcher_(launcher) {}

  const char* text(const char* name) const { return *name == '\0' ? nullptr : environment_(name); }

  std::optional<int> number(const char* name) const {
    const char* value = text(name);
    if (value == nullptr) return std::nullopt;
    int number = 0;
    const char* end = value + std::strlen(value);
    const auto [stop, error] = std::from_chars(value, end, number);
    if (error != std::errc() || stop != end || number < 0)
      fail("{}={}, as {} sets it, is no count: start the ranks again, or unset it", name, value, name_of(launcher_));
    return number;
  }

  int required(const char* name, const char* because) const {
    const std::optional<int> value = number(name);
    if (!value)
      fail("{} is set, as {} sets it, but {} is not: start all ranks with {}, or unset {}", because, name_of(launcher_),
           name, name_of(launcher_), because);
    return *value;
  }

 private:
  const Environment& environment_;
  Launcher launcher_;
};

void check_below(int value, const char* name, int limit, const char* limit_name) {
  if (value >= limit)
    fail("{}={} and {}={} contradict each other: ranks count from 0, so the first must be less", name, value,
         limit_name, limit);
}

}  // namespace

std::string_view name_of(Launcher launcher) {
  switch (launcher) {
    case Launcher::open_mpi:
      return "mpirun";
    case Launcher::slurm:
      return "srun";
    case Launcher::pmi:
      return "mpiexec";
    case Launcher::torchrun:
      return "torchrun";
  }
  return "";
}

std::optional<Launch> find_launch(const Environment& environment) {
  for (const Variables& v : launchers) {
    const Reader read(environment, v.launcher);
    // The size alone says little: Slurm sets some of its variables in every shell of an allocation.
    if (read.text(v.rank) == nullptr || (v.launcher == Launcher::slurm && read.text(v.size) == nullptr)) continue;
    Launch launch;
    launch.launcher = v.launcher;
    launch.rank = *read.number(v.rank);
    launch.size = read.required(v.size, v.rank);
    check_below(launch.rank, v.rank, launch.size, v.size);
    launch.local_rank = read.required(v.local_rank, v.rank);
    // A launcher that does not say how many are here leaves that to the communicator, which asks the hosts.
    launch.local_size = read.number(v.local_size).value_or(launch.local_rank + 1);
    check_below(launch.local_rank, v.local_rank, launch.local_size, *v.local_size ? v.local_size : v.size);
    if (launch.local_size > launch.size)
      fail("{}={} and {}={} contradict each other: a host has no more ranks than there are", v.local_size,
           launch.local_size, v.size, launch.size);
    if (launch.local_rank > launch.rank)
      fail("{}={} and {}={} contradict each other: ranks of a host count in the order of all ranks", v.local_rank,
           launch.local_rank, v.rank, launch.rank);
    if (v.launcher == Launcher::torchrun && launch.size > 1) {
      launch.master_port = read.required("MASTER_PORT", v.rank);
      const char* address = read.text("MASTER_ADDR");
      if (address == nullptr || *address == '\0')
        fail("RANK is set, as torchrun sets it, but MASTER_ADDR, where rank 0 listens, is not");
      launch.master_address = address;
    }
    return launch;
  }
  return std::nullopt;
}

}  // namespace so
