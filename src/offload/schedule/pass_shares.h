// Where in a step's passes the device comes to each unit, for a policy (update_policy.h): in the engine as the device's
// clock measures it (offload/pass_times.h), in a simulation as it was played. Elements say less: an embedding has many
// and takes no time, a token uses few of many experts, and the forward pass is measured up to the head's gradient.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace so {

struct PassShares {
  // For each unit the share of the first micro-batch's forward pass that comes before its weights are needed. That pass
  // ends where the backward pass's first gradient is complete. `never`: that pass does not need them.
  static constexpr double never = 2;
  std::vector<double> needed;
  // For each unit the share of the last micro-batch's backward pass, from the first gradient on, that is left when its
  // own is complete.
  std::vector<double> left;

  // Until anything is known: by the units' elements.
  static PassShares by_elements(std::span<const std::int64_t> elements);
  // Whether no two differ by more than `most`.
  bool is_within(double most, const PassShares& others) const;
};

// The same by bucket, whose unit is the one in which it begins.
struct BucketShares {
  std::vector<double> needed, left;

  BucketShares() = default;
  BucketShares(const PassShares& units, std::span<const int> unit_of);
};

}  // namespace so
