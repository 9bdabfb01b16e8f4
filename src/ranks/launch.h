// How this process was started: alone, or as a rank by a launcher, which says so in the environment.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace so {

enum class Launcher : std::uint8_t { open_mpi, slurm, pmi, torchrun };
std::string_view name_of(Launcher launcher);  // as its users call it: "mpirun", "srun", ...

struct Launch {
  Launcher launcher = Launcher::open_mpi;
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // on this host
  // Where rank 0 listens, for launchers that connect nobody themselves (torchrun); empty otherwise.
  std::string master_address;
  int master_port = 0;
};

// The value of a variable of the environment, null if it is not set.
using Environment = std::function<const char*(const char* name)>;

// None if no launcher started this process. Where one was started by another (torchrun inside srun's allocation, say),
// torchrun counts before mpirun, then mpiexec, then srun: the inner one of the combinations that there are. Throws
// Error, naming the variables, where some are missing, are no numbers, or contradict each other.
std::optional<Launch> find_launch(const Environment& environment);

}  // namespace so
