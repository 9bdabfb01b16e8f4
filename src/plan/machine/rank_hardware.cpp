#include "plan/machine/rank_hardware.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/error.h"

namespace so {
namespace {

// The profile's smallest host with at least `gpus` GPUs; null if none is large enough.
const SharedHost* host_with(const HardwareProfile& profile, int gpus) {
  const auto found = std::find_if(profile.hosts.begin(), profile.hosts.end(),
                                  [&](const SharedHost& host) { return host.gpus >= gpus; });
  return found == profile.hosts.end() ? nullptr : &*found;
}

CollectiveRates ring_of(const Interconnect& between, const RankHosts& ranks) {
  CollectiveRates ring;
  const int hosts = ranks.hosts();
  if (ranks.per_host > 1) ring.bytes = between.peer;
  if (hosts > 1) ring.bytes = std::min(ring.bytes, ranks.per_host * between.network);
  ring.seconds =
      between.collective_seconds + (ranks.ranks - hosts) * between.peer_seconds + (hosts - 1) * between.network_seconds;
  return ring;
}

CollectiveRates all_to_all_of(const Interconnect& between, const RankHosts& ranks, int sequence) {
  CollectiveRates rates;
  // The fewest of a group's neighbours that one host has.
  const int near = std::gcd(sequence, ranks.per_host), far = sequence - near;
  const double others = sequence - 1;
  if (near > 1) rates.bytes = between.peer * others / (near - 1);
  if (far > 0) rates.bytes = std::min(rates.bytes, between.network * others / far);
  rates.seconds = between.collective_seconds + (near - 1) * between.peer_seconds + far * between.network_seconds;
  return rates;
}

}  // namespace

RankHosts rank_hosts(const HardwareProfile& profile, const std::string& name, int ranks, std::optional<int> per_host) {
  if (per_host && *per_host > ranks) fail("--gpus_per_host {}: there are {} (--gpus)", *per_host, ranks);
  if (ranks == 1) return {};
  const auto missing = [&](const char* key, const char* what) {
    fail("--gpus {}: the hardware file of {} does not say {}: {}: missing", ranks, name, what, key);
  };
  if (profile.between_gpus.peer == 0) missing("between_gpus", "how fast GPUs reach each other");
  if (profile.hosts.empty() && per_host != 1) missing("hosts", "what the GPUs of one host share");
  const int most = profile.hosts.empty() ? 1 : profile.hosts.back().gpus;
  const RankHosts all{ranks, per_host.value_or(std::min(ranks, most))};
  if (all.per_host > most)
    fail("--gpus_per_host {}: the hardware file of {} says what up to {} GPUs of one host share (hosts)", all.per_host,
         name, most);
  if (ranks % all.per_host != 0)
    fail("--gpus {}: that is no whole number of hosts with {} GPUs each; say with --gpus_per_host how many a host has",
         ranks, all.per_host);
  if (all.hosts() > 1 && profile.between_gpus.network == 0)
    missing("between_gpus.network", "how fast GPUs of several hosts reach each other");
  return all;
}

HardwareProfile part_of_rank(const HardwareProfile& profile, const RankHosts& ranks, int sequence) {
  SO_CHECK(ranks.ranks % sequence == 0, "groups of {} of {} ranks", sequence, ranks.ranks);
  if (ranks.ranks == 1) return profile;
  HardwareProfile part = profile;
  part.rates.collectives = ring_of(profile.between_gpus, ranks);
  if (sequence > 1) part.rates.sequence = all_to_all_of(profile.between_gpus, ranks, sequence);
  if (ranks.per_host == 1) return part;
  const SharedHost* host = host_with(profile, ranks.per_host);
  SO_CHECK(host, "no host with {} GPUs", ranks.per_host);
  part.host_memory = host->host_memory / static_cast<std::size_t>(ranks.per_host);
  part.host_threads = std::max(1, host->host_threads / ranks.per_host);
  const auto share = [&](double& alone, double shared) { alone = std::min(alone, shared / ranks.per_host); };
  share(part.rates.link_to_host, host->rates.link_to_host);
  share(part.rates.link_to_device, host->rates.link_to_device);
  share(part.rates.link_both, host->rates.link_both);
  share(part.rates.host_adamw, host->rates.host_adamw);
  share(part.rates.host_adamw_wide, host->rates.host_adamw_wide);
  share(part.rates.host_memory, host->rates.host_memory);
  if (part.measured) {
    // What a GPU alone has is no measurement of a rank's part; that of a host with as many GPUs is one.
    std::erase_if(*part.measured, [](const std::string& key) {
      return key.starts_with("host_") || std::any_of(shared_rate_names().begin(), shared_rate_names().end(),
                                                     [&](const auto& shared) { return key == shared.first; });
    });
    if (host->gpus == ranks.per_host)
      part.measured->insert(part.measured->end(), host->measured.begin(), host->measured.end());
  }
  return part;
}

}  // namespace so
