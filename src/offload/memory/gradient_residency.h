// One way in which gradients are kept on the device until they are used. A kind of residency is a class; StepGradients
// (offload/step_gradients.h) makes one object for all units of a kind. For each unit and micro-batch the engine's
// thread calls require(), complete() and leave(), the first several times if the model writes a gradient in parts.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "offload/schedule/wait_reason.h"

namespace so {

class GradientResidency {
 public:
  virtual ~GradientResidency() = default;

  // Work that follows on `stream` may write the unit's gradient, or add to what is there of this step. Does not block.
  virtual void require(int, Stream&) {}
  // Whether the stream would not wait in require(); and for what it waits otherwise.
  virtual bool here(int) const { return true; }
  virtual WaitReason reason() const { return WaitReason::gradient; }
  // Whether the place of the unit's gradient is its own since require().
  virtual bool holds(int) const { return true; }
  // Whether the next micro-batch adds to what this one has written, rather than writing anew.
  virtual bool adds_up() const { return true; }
  // The micro-batch's gradient is written on `stream`. Returns the stream on which what the step has of it so far is
  // complete: after the `last` micro-batch, of all ranks.
  virtual Stream& complete(int, bool last, Stream& stream) = 0;
  // It may leave its place, once the work on `stream` has run, which complete() has returned; after the last
  // micro-batch once its owner, which has been told of it (HostOptimizer::landed()), has taken it.
  virtual void leave(int, bool last, Stream& stream) { static_cast<void>(last), static_cast<void>(stream); }
  // Forgets what the step's micro-batches have written.
  virtual void drop() {}
  // Units whose sums came back to the device; total.
  virtual std::int64_t sums_brought() const { return 0; }
};

}  // namespace so
