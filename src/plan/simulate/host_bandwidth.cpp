#include "plan/simulate/host_bandwidth.h"

#include <algorithm>

namespace so {
namespace {

// How much of `capacity` each gets that could use `demands` of it.
BandwidthRates share(double capacity, const BandwidthRates& demands) {
  BandwidthRates got{};
  std::array<bool, bandwidth_users> served{};
  for (std::size_t left = bandwidth_users; left > 0; --left) {
    std::size_t least = bandwidth_users;
    for (std::size_t i = 0; i < bandwidth_users; ++i)
      if (!served[i] && (least == bandwidth_users || demands[i] < demands[least])) least = i;
    served[least] = true;
    got[least] = std::min(demands[least], capacity / static_cast<double>(left));
    capacity -= got[least];
  }
  return got;
}

}  // namespace

HostBandwidth::HostBandwidth(double capacity, BandwidthRates most, double link_both) {
  for (std::size_t active = 0; active < rates_.size(); ++active) {
    BandwidthRates demands{};
    for (std::size_t i = 0; i < bandwidth_users; ++i) demands[i] = (active >> i & 1) != 0 ? most[i] : 0;
    if (demands[1] + demands[2] + demands[3] > link_both) {
      const BandwidthRates copies = share(link_both, {0, demands[1], demands[2], demands[3]});
      demands = {demands[0], copies[1], copies[2], copies[3]};
    }
    rates_[active] = share(capacity, demands);
  }
}

}  // namespace so
