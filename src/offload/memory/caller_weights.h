// Weights that live in memory of the caller's, such as a model's of another framework: a place and a format for each
// parameter. Their owner writes new ones into host memory of this object, and they come to the caller's places when a
// unit is required, on a stream of their own: so the caller finds its weights unchanged until it asks, whatever was
// computed ahead of the verdict, and a unit's copy runs beside work that uses other units.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "offload/memory/device_weights.h"
#include "offload/memory/weight_residency.h"
#include "offload/schedule/parameter_layout.h"
#include "optim/engine_ops.h"

namespace so {

class CallerWeights final : public WeightResidency {
 public:
  // `kept`: by unit. `weights` are in the caller's memory if there is such a unit, and outlive this. Host memory is
  // pinned, booked as "new weights"; contents are unspecified until written. At first the caller's places hold the
  // weights.
  CallerWeights(Device& device, const ParameterLayout& layout, const DeviceWeights& weights,
                const std::vector<bool>& kept);

  // begin() enqueues the copies of what has changed, and require() makes `stream` wait for them. The copies do not wait
  // for `stream`, so work that uses the unit's old weights must have run, as all has that was enqueued before the last
  // verdict. The host memory may be written again once a gradient that is enqueued on `stream` after require() is
  // complete.
  void require(int unit, Stream& stream) override;
  void begin(Range part) override;
  void release(int, Stream&) override {}
  bool here(int unit) const override { return at(unit) == Place::current; }
  void place(Stream& stream, Range part, const void* weights) override;
  void drop(int unit) override { at(unit) = here(unit) ? Place::voided : Place::older; }
  void settle(int unit, bool changed) override {
    if (at(unit) == Place::voided) at(unit) = changed ? Place::older : Place::current;
  }
  void drop_all() override;
  std::byte* host_memory(std::int64_t element) const override;
  std::int64_t copies() const override { return copied_; }

 private:
  void cast(const Tensor& to, const Tensor& from);

  // The caller's places of a unit hold its weights, those before a change without a verdict yet, or older ones.
  enum class Place : std::uint8_t { current, voided, older };
  Place& at(int unit) { return places_[static_cast<std::size_t>(unit)]; }
  Place at(int unit) const { return places_[static_cast<std::size_t>(unit)]; }

  const ParameterLayout& layout_;
  const DeviceWeights& weights_;
  const std::unique_ptr<EngineOps> ops_;
  std::vector<Place> places_;        // by unit
  std::vector<std::size_t> starts_;  // by unit, in bytes of the memory
  Buffer memory_;
  std::byte* mapped_ = nullptr;  // the memory as kernels reach it; null: they do not
  Buffer arriving_;              // on the device, of memory that is not mapped
  std::int64_t copied_ = 0;
  std::vector<std::unique_ptr<Event>> arrived_;  // by unit; null for the units of others
  std::unique_ptr<Stream> copies_;               // null if there is no such unit; last: its work uses the memory
};

}  // namespace so
