// Ranks that are processes, for tests of the program.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "ranks/mpi_ranks.h"
#include "support/on_gpu.h"
#include "support/sanitized.h"

namespace so::test {

// Why no ranks can be started here; empty: they can.
inline std::string why_no_ranks() {
  if (sanitized || on_gpu()) return "ranks of the CPU device, and MPI is not instrumented";
  if (!have_mpi()) return "this build has no MPI";
  if (std::system("command -v mpirun >/dev/null 2>&1") != 0) return "there is no mpirun on this machine";
  return "";
}

// Each command is a rank's.
inline std::vector<std::string> under_mpirun(const std::vector<std::vector<std::string>>& commands) {
  std::vector<std::string> words{"/usr/bin/env", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                 "mpirun"};
  words.insert(words.end(), {"--oversubscribe", "--bind-to", "none"});
  for (std::size_t i = 0; i < commands.size(); ++i) {
    if (i > 0) words.push_back(":");
    words.insert(words.end(), {"-n", "1"});
    words.insert(words.end(), commands[i].begin(), commands[i].end());
  }
  return words;
}

}  // namespace so::test
