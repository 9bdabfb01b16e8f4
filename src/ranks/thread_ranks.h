// Ranks that are threads of one process, so that unit tests run what ranks do without a launcher.
#pragma once

#include <memory>
#include <vector>

#include "ranks/communicator.h"

namespace so {

// A communicator for each of `size` threads, by rank. Each belongs to one thread at a time and may outlive the others;
// one that is destroyed while the others need it is found by the time limit, in seconds.
std::vector<std::unique_ptr<Communicator>> make_thread_ranks(int size, double time_limit);

}  // namespace so
