// Weights that stay on the device: their owner writes them there.
#pragma once

#include "offload/memory/device_weights.h"
#include "offload/memory/weight_residency.h"

namespace so {

class ResidentWeights final : public WeightResidency {
 public:
  explicit ResidentWeights(const DeviceWeights& weights) : weights_(weights) {}

  void require(int, Stream&) override {}
  void release(int, Stream&) override {}
  void place(Stream& stream, Range part, const void* weights) override {
    if (weights) stream.copy(weights_.at(part.begin), weights, weights_.bytes_of(part));
  }
  void drop(int) override {}
  void drop_all() override {}

 private:
  const DeviceWeights& weights_;
};

}  // namespace so
