// The rates of a machine while all ranks of a run use it.
#pragma once

#include "plan/machine/rate_cache.h"
#include "ranks/collectives/route.h"
#include "ranks/communicator.h"

namespace so {

// Does what use_cached_rates() does for one rank. Of several, all measure at once, and the slowest of each rate is
// every rank's, so that all make the same plan; rank 0's earlier measurement with as many ranks of its host serves all.
// The rates of collectives are measured on the way that they will take, each time. Itself a collective; waits for the
// measurement. Does nothing on the CPU device.
void use_rates_of_ranks(PlanningMachine& machine, Runtime& runtime, const NumberFormats& formats, RateUse use,
                        Communicator& ranks, CollectiveRoute route);

// Takes a second or less, and up to 1/4 GB of device memory beside what NCCL has, and gives it back. A collective.
CollectiveRates measure_collectives(Device& device, Communicator& ranks, CollectiveRoute route);

}  // namespace so
