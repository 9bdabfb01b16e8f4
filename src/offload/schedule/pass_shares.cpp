#include "offload/schedule/pass_shares.h"

#include <algorithm>
#include <cmath>

namespace so {

PassShares PassShares::by_elements(std::span<const std::int64_t> elements) {
  PassShares shares;
  double all = 0, to_last = 0;
  for (const std::int64_t n : elements) {
    to_last = all;
    all += static_cast<double>(n);
  }
  double before = 0;
  for (const std::int64_t n : elements) {
    shares.needed.push_back(all > 0 ? before / all : 0);
    shares.left.push_back(to_last > 0 ? before / to_last : 0);
    before += static_cast<double>(n);
  }
  return shares;
}

bool PassShares::is_within(double most, const PassShares& others) const {
  const auto near = [&](double a, double b) { return std::abs(a - b) <= most; };
  return std::equal(needed.begin(), needed.end(), others.needed.begin(), others.needed.end(), near) &&
         std::equal(left.begin(), left.end(), others.left.begin(), others.left.end(), near);
}

BucketShares::BucketShares(const PassShares& units, std::span<const int> unit_of) {
  for (const int unit : unit_of) {
    needed.push_back(units.needed[static_cast<std::size_t>(unit)]);
    left.push_back(units.left[static_cast<std::size_t>(unit)]);
  }
}

}  // namespace so
