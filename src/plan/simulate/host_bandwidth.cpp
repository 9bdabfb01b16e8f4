#include "plan/simulate/host_bandwidth.h"

#include <algorithm>

namespace so {
namespace {

// A processor's cores have more accesses under way than a GPU's copy engines, and copies that read memory wait longer
// for it than those that write it. bench_adamw_beside_copies on hosts of an H100 and two H200, AdamW beside copies both
// ways: 95 + 44 + 32, 88 + 32 + 25, 80 + 50 + 33 and 103 + 32 + 24 GB/s; in a step 95 + 40 + 32. State that the link
// takes comes in pieces each of which waits for the one before: 120 + 57 with nothing else beside it. The link itself
// gives equal parts.
constexpr BandwidthRates memory_weights = {3, 1.3, 1, 1.3}, link_weights = {0, 1, 1, 1};

// How much of `capacity` each gets that could use `demands` of it.
BandwidthRates share(double capacity, const BandwidthRates& demands, const BandwidthRates& weights) {
  BandwidthRates got{};
  std::array<bool, bandwidth_users> served{};
  double left = 0;  // weights of those that are not served
  for (std::size_t i = 0; i < bandwidth_users; ++i) {
    served[i] = demands[i] <= 0;
    if (!served[i]) left += weights[i];
  }
  for (;;) {
    // The one that needs the least for its weight.
    std::size_t least = bandwidth_users;
    for (std::size_t i = 0; i < bandwidth_users; ++i)
      if (!served[i] && (least == bandwidth_users || demands[i] / weights[i] < demands[least] / weights[least]))
        least = i;
    if (least == bandwidth_users) return got;
    served[least] = true;
    got[least] = std::min(demands[least], capacity * weights[least] / left);
    capacity -= got[least];
    left -= weights[least];
  }
}

}  // namespace

HostBandwidth::HostBandwidth(double capacity, BandwidthRates most, double link_both) {
  for (std::size_t active = 0; active < rates_.size(); ++active) {
    BandwidthRates demands{};
    for (std::size_t i = 0; i < bandwidth_users; ++i) demands[i] = (active >> i & 1) != 0 ? most[i] : 0;
    if (demands[1] + demands[2] + demands[3] > link_both) {
      const BandwidthRates copies = share(link_both, {0, demands[1], demands[2], demands[3]}, link_weights);
      demands = {demands[0], copies[1], copies[2], copies[3]};
    }
    rates_[active] = share(capacity, demands, memory_weights);
  }
}

}  // namespace so
