// Ranks that are processes, started by MPI's launcher on one host or several.
#pragma once

#include <memory>

#include "ranks/communicator.h"

namespace so {

// Whether this build has MPI; without it make_mpi_ranks() throws an Error that says how to get it.
bool have_mpi();

// Joins the ranks of this launch, on every process of it; once in a process. A process that no launcher started is the
// only rank. MPI ends with the last of the communicators, which waits for the other ranks to come to their end; after a
// failure it does not end, and the launcher, which finds the process gone, ends the others.
std::unique_ptr<Communicator> make_mpi_ranks(double time_limit);

}  // namespace so
