// One way in which weights are kept between their uses and come to the device for each. A kind of residency is a class;
// UnitWeights (unit_weights.h) makes one object for all units of a kind.
//
// The thread that enqueues the model's work makes all calls but host_memory().
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device.h"
#include "offload/schedule/parameter_layout.h"
#include "offload/schedule/pass_order.h"
#include "offload/schedule/wait_reason.h"

namespace so {

class WeightResidency {
 public:
  virtual ~WeightResidency() = default;

  // Work that follows on `stream` finds the unit's weights on the device. Their owner has made them final.
  virtual void require(int unit, Stream& stream) = 0;
  // Before require(): the weights of `part` of a unit are final, and those of the unit that lie before it. Enqueues
  // what can begin with them, and waits for nothing.
  virtual void begin(Range) {}
  // Work that follows on `stream` does not touch them.
  virtual void release(int unit, Stream& stream) = 0;
  // Whether the stream would not wait in require(); and for what it waits otherwise.
  virtual bool here(int) const { return true; }
  virtual WaitReason reason() const { return WaitReason::link; }
  // Brings units that come next in the pass, where that is possible without waiting. After each require() and
  // release().
  virtual void prefetch(const PassOrder&) {}
  // Brings what prefetch() has decided on and could not bring yet. May wait. Before the weights of any other unit are
  // gathered.
  virtual void finish_prefetch() {}

  // Loading: weights of elements `part`, which lie in one unit, are these, in host memory; null if they come with their
  // masters. Enqueues, or copies at once.
  virtual void place(Stream& stream, Range part, const void* weights) = 0;
  // The unit's weights change from here on: a copy of them is void. Nobody uses it.
  virtual void drop(int unit) = 0;
  // The verdict after drop(): the weights have changed, or stay as they were. Ignores units that were not dropped.
  virtual void settle(int unit, bool changed) { (void)unit, (void)changed; }
  // Does what drop() does for all units, after waiting for copies under way.
  virtual void drop_all() = 0;

  // Where the host's threads write new weights of `element` and the rest of its unit, any thread; null if they are sent
  // to the device instead.
  virtual std::byte* host_memory(std::int64_t) const { return nullptr; }
  // Whether require() has the weights come from all ranks.
  virtual bool gathers() const { return false; }
  // Where this rank keeps its slices of the weights on the device, from `element` on, which lies in one; null if none
  // are kept beside the weights' own place.
  virtual std::byte* slice(std::int64_t) const { return nullptr; }
  // Whether require() makes the unit's weights of their masters, so that nobody else may write them.
  virtual bool follows_masters(int) const { return false; }
  // How often the weights of a unit have been copied to the device.
  virtual std::int64_t copies() const { return 0; }
};

}  // namespace so
