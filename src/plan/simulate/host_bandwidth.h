// How AdamW and the link's copies share the bandwidth of the host's memory (plan/simulate/simulator.h).
#pragma once

#include <array>
#include <cstddef>

namespace so {

// In this order: AdamW, copies to the host, copies to the device, and state that the link takes both ways.
inline constexpr std::size_t bandwidth_users = 4;
using BandwidthRates = std::array<double, bandwidth_users>;  // bytes/s

class HostBandwidth {
 public:
  // `most`: what each can use at most if nothing else works. `link_both`: what all copies can together.
  HostBandwidth(double capacity, BandwidthRates most, double link_both);

  // The rates while those whose bits are set in `active` work: each gets a part by its weight or as much as it can use,
  // and what that leaves goes to the others.
  const BandwidthRates& rates(std::size_t active) const { return rates_[active]; }

 private:
  std::array<BandwidthRates, std::size_t{1} << bandwidth_users> rates_{};
};

}  // namespace so
