// Ranks of this host, started by the program itself (--gpus N): it runs itself again as N ranks under MPI's launcher,
// and is to its user what a run of one process is. Rank 0 writes to the very standard output and error that this
// process has, so that a terminal stays one, and says how the run ended; signals that ask for an end reach rank 0.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ranks/launch.h"

namespace so {

// Starts the ranks with these arguments (without the program's name), waits for them, and returns rank 0's exit code.
// If the ranks end before rank 0 has said how, logs a sentence that names the rank that was lost, and returns 1.
// Throws Error where there is no MPI or no launcher, and for more ranks than 64 and than the host has CPUs. Calls
// fork(), so no other thread may run yet.
int run_local_ranks(int ranks, const std::vector<std::string>& arguments);

// In a process that run_local_ranks() started: its end of the connection to that process.
class LocalLauncher {
 public:
  // Null if this process was started otherwise. Rank 0 takes over the standard output and error of the process that
  // started it; throws std::runtime_error if that process is gone.
  static std::unique_ptr<LocalLauncher> connect(const Launch& launch, const Environment& environment);
  ~LocalLauncher();
  LocalLauncher(const LocalLauncher&) = delete;
  LocalLauncher& operator=(const LocalLauncher&) = delete;

  // Rank 0 tells how the run ended; the other ranks' codes do not count. Returns what this process shall exit with.
  int end(int exit_code);

 private:
  explicit LocalLauncher(int socket) : socket_(socket) {}
  int socket_;  // -1 on the other ranks
};

}  // namespace so
