// Where a model's pass is, and in which direction it goes: forward first to last unit, backward last to first. Weights
// that come next are brought early by it. It follows the calls alone, so ranks that make the same calls see the same.
#pragma once

namespace so {

class PassOrder {
 public:
  // A unit comes into use, and is no longer used. A unit that comes while another is used (a tied embedding, by the
  // head) is not where the pass is.
  void require(int unit);
  void release() { --in_use_; }
  // A backward pass has ended: a new pass begins.
  void end() { unit_ = none; }

  // The unit at which the pass is or was last; -1 ahead of a pass.
  int unit() const { return unit_; }
  int step() const { return step_; }  // to the next unit: 1 or -1

 private:
  static constexpr int none = -1;
  int unit_ = none, step_ = 1, in_use_ = 0;
};

}  // namespace so
