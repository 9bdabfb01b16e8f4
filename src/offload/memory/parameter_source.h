// How a model meets its weights and gradients: it says which unit of its pass it is about to run or has run, and asks
// for views. Whether anything moves, and where the arrays live, is the business of who implements this.
#pragma once

#include "base/accumulate.h"
#include "base/tensor.h"
#include "device/device.h"

namespace so {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // Work enqueued on `stream` after this call finds the weights of `unit` on the device, with all updates so far.
  virtual void require_weights(int unit, Stream& stream) = 0;
  // Work enqueued on `stream` after this call does not touch the weights of `unit`.
  virtual void release_weights(int unit, Stream& stream) = 0;
  // Device view of `count` joined parameters; valid for work enqueued between the two calls above.
  virtual Tensor weight(int first, int count = 1) const = 0;
};

class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // Work enqueued on `stream` after this call may write gradients of `unit`. Before the first gradient() of the unit in
  // a micro-batch.
  virtual void require_gradients(int unit, Stream& stream) = 0;
  // Device view of the gradient of `count` joined parameters, and how the next write to it must be made: the first of a
  // step overwrites, later ones (micro-batches, tied weights) add. Asking counts as writing. An empty tensor: all of
  // these parameters are frozen, and nobody wants the gradient.
  struct Target {
    Tensor tensor;
    Accumulate mode = Accumulate::overwrite;
  };
  virtual Target gradient(int first, int count = 1) = 0;
  // All gradients of `unit` of this micro-batch have been enqueued on `stream`. Called once per unit and micro-batch,
  // last unit first (unless the sink takes units in any order), also for units below the first that has a trained
  // parameter.
  virtual void gradients_ready(int unit, Stream& stream) = 0;
};

}  // namespace so
