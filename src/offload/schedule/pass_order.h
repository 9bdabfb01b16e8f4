// The order in which a model's passes come to its units: forward first to last, backward last to first. Weights that
// come next are brought early by it.
#pragma once

#include <cstddef>
#include <vector>

namespace so {

// A unit of a backward pass, or of the forward pass that a backward pass runs again.
struct BackwardStep {
  int unit = 0;
  bool forward_again = false;
  bool operator==(const BackwardStep&) const = default;
};

// The order of a backward pass that goes down to `first_trained`. `remade`: by unit, whether its input is not kept from
// forward to backward; empty: all are kept. Where the pass comes to the last of such units in a row, the units before
// it run forward again, from the one on that kept its input. The first trained unit keeps its own.
std::vector<BackwardStep> backward_steps(int units, int first_trained, const std::vector<bool>& remade);

// Where a model's pass is. It follows the calls alone, so ranks that make the same calls see the same.
class PassOrder {
 public:
  // As backward_steps().
  PassOrder(int units, int first_trained, const std::vector<bool>& remade);

  // A unit comes into use, and is no longer used. A unit that comes while another is used (a tied embedding, by the
  // head) is not where the pass is. One that is not next in order (of a pass that goes forward only, or that begins
  // anew) belongs to a forward pass.
  void require(int unit);
  void release() { --in_use_; }
  // A backward pass has ended: a new pass begins.
  void end() { at_ = units_.size() - 1; }

  // How many units are still to come in a training pass; 0 ahead of a pass.
  std::size_t left() const { return units_.size() - 1 - at_; }
  // How many units come from here on until the next training pass is at the same place.
  std::size_t size() const { return units_.size(); }
  // The unit that comes as the n-th from here on, from 1. Behind the last of a pass the next one begins.
  int ahead(std::size_t n) const { return units_[(at_ + n) % units_.size()]; }

 private:
  std::vector<int> units_;  // of a training pass, in order; the head's forward and backward pass are one use
  std::size_t at_;          // where the pass is or was last
  int in_use_ = 0;
};

}  // namespace so
