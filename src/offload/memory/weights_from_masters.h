// Weights that are not kept: each use casts them from the master weights, which the device owns, into the one place
// that all such units share. All on the model's stream, like everything that changes the masters.
#pragma once

#include <functional>
#include <utility>

#include "offload/memory/device_weights.h"
#include "offload/memory/weight_residency.h"

namespace so {

class WeightsFromMasters final : public WeightResidency {
 public:
  // `cast` enqueues the cast of all of a unit's weights.
  using Cast = std::function<void(int unit, Stream& stream)>;
  WeightsFromMasters(const DeviceWeights& weights, Cast cast) : weights_(weights), cast_(std::move(cast)) {}

  void require(int unit, Stream& stream) override {
    if (held_ == unit) return;
    held_ = unit;
    cast_(unit, stream);
  }
  void release(int, Stream&) override {}
  // The shared place takes what the masters are made of on the device.
  void place(Stream& stream, Range part, const void* weights) override {
    held_ = none;
    if (weights) stream.copy(weights_.at(part.begin), weights, weights_.bytes_of(part));
  }
  void drop(int unit) override {
    if (held_ == unit) held_ = none;
  }
  void drop_all() override { held_ = none; }
  bool follows_masters(int) const override { return true; }

 private:
  static constexpr int none = -1;
  const DeviceWeights& weights_;
  const Cast cast_;
  int held_ = none;  // the unit whose weights are in the place
};

}  // namespace so
