// One rank's part of hosts with several GPUs, from a hardware profile.
#pragma once

#include <optional>
#include <string>

#include "plan/machine/hardware.h"

namespace so {

// Ranks that share a run, a GPU each.
struct RankHosts {
  int ranks = 1, per_host = 1;
  int hosts() const { return ranks / per_host; }
};

// `per_host`: none: as many as the profile says that a host has at most, or all ranks if they are fewer. `name`: of the
// profile, for messages. Throws Error if the profile lacks the figures, naming the key, or says of no such host.
RankHosts rank_hosts(const HardwareProfile& profile, const std::string& name, int ranks, std::optional<int> per_host);

// The profile of a rank while all ranks work. Its memory, threads and rates are its part of the host's, and no rate is
// higher than that of a GPU alone. Collectives are rings: every GPU receives from one and sends to another, and a host
// is entered and left once by each of its GPUs' network adapters, as NCCL lays them out. So their rate is that between
// GPUs, or that of a host's adapters together, whichever is lower, and their latency grows with the ranks. In
// all-to-alls among the `sequence` ranks of a group, neighbours, a GPU receives of those of its host and of the others
// at once, each at its own rate.
HardwareProfile part_of_rank(const HardwareProfile& profile, const RankHosts& hosts, int sequence = 1);

}  // namespace so
