// Weights that do not stay on the device: where they lie in host memory, and their way to the device ahead of each use.
// Of some units they lie nowhere: the host's master weights come, and are cast on the device.
//
// A pass meets units in order (schedule/pass_order.h). Streamed units take places of device memory in turn
// (Counts), so while one is worked with, the next in that order arrives in the other place. What is on the
// device is only a copy: nothing goes back.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "offload/memory/device_weights.h"
#include "offload/memory/weight_residency.h"
#include "offload/schedule/parameter_layout.h"
#include "offload/schedule/placement.h"

namespace so {

class WeightStream final : public WeightResidency {
 public:
  // Copied at a time. Updated weights of other units go between: while a whole unit travelled, tens of milliseconds of
  // the large ones, the host would wait for its staging ring.
  static constexpr std::int64_t piece_bytes = std::int64_t{64} << 20;

  struct Sources {
    // Whether the host memory of a unit, or its masters, are what its next use shall find; never waits.
    std::function<bool(int unit)> final_weights;
    // Enqueues: all of a unit's weights are made of its masters. Work that follows on the stream finds them.
    std::function<void(int unit, Stream& stream)> cast_masters;
  };
  // `weights` has a slot for each unit that streams (turns_of()), and outlives this. Host memory is pinned, booked as
  // "streamed weights"; contents are unspecified until written.
  WeightStream(Device& device, const ParameterLayout& layout, const DeviceWeights& weights,
               std::span<const UnitPlacement> units, Sources sources);
  // Waits for copies under way.
  ~WeightStream() override;

  bool has(int unit) const { return index_[static_cast<std::size_t>(unit)] >= 0; }

  // WeightResidency
  // Enqueues the pieces that are final, so that of a unit that is waited for only the last one is still to come when
  // the host has made all of it.
  void begin(Range part) override;
  void require(int unit, Stream& stream) override;
  void release(int unit, Stream& stream) override;
  bool here(int unit) const override;
  WaitReason reason() const override { return WaitReason::stream; }
  // Enqueues the copies of the units that come next, of those whose weights are final and whose place is free.
  void prefetch(const PassOrder& pass) override;
  void place(Stream& stream, Range part, const void* weights) override;
  void drop(int unit) override;
  void drop_all() override;
  // Written by whoever updates weights, between the end of a unit's last use in a step and the time final_weights()
  // says so.
  std::byte* host_memory(std::int64_t element) const override;
  bool follows_masters(int unit) const override { return starts_[static_cast<std::size_t>(index_of(unit))] == nowhere; }
  std::int64_t copies() const override { return copies_; }

 private:
  struct Place {
    int unit = -1;          // whose weights are there or on their way
    std::int64_t sent = 0;  // of them, those before this element
    bool in_use = false;    // between require() and release()
    std::unique_ptr<Event> arrived, free;
  };
  Place& place(int unit) { return places_[static_cast<std::size_t>(index_of(unit)) % places_.size()]; }
  const Place& place(int unit) const { return places_[static_cast<std::size_t>(index_of(unit)) % places_.size()]; }
  int index_of(int unit) const { return index_[static_cast<std::size_t>(unit)]; }
  // Enqueues those pieces of the unit that end at most there; made of masters it is one.
  void send(int unit, std::int64_t end);

  const ParameterLayout& layout_;
  const DeviceWeights& weights_;
  const Sources sources_;
  std::vector<int> index_;  // by unit: its number among the streamed ones, -1 for others
  std::vector<int> units_;  // streamed, ascending
  static constexpr std::size_t nowhere = ~std::size_t{0};
  std::vector<std::size_t> starts_;  // of each, in bytes of the host memory, or nowhere
  std::array<Place, stream_places> places_;
  std::int64_t copies_ = 0;
  Buffer memory_;
  std::unique_ptr<Stream> stream_;  // null if nothing streams
};

}  // namespace so
