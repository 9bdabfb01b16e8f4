// The part of a machine that one of its ranks may plan with.
#pragma once

#include "plan/machine/planning_machine.h"
#include "ranks/communicator.h"

namespace so {

// Leaves `machine` what a rank may have of it, where the ranks of a host share its memory evenly: of what is free, and
// of what --host_memory lets the run have there. The same of the memory of a GPU that `gpu_ranks` of them share. The
// least of all ranks, so that every rank makes the same plan. A collective; does nothing for one rank.
void share_machine(Communicator& ranks, PlanningMachine& machine, int gpu_ranks = 1);

// Returns a rank's share of the host's memory that is free now, the same for every rank of the host. A collective.
HostMemory share_of_host(Communicator& ranks);

}  // namespace so
