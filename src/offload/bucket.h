// A bucket: a contiguous piece of the flat parameter range that travels and is updated as one.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "offload/parameter_layout.h"
#include "optim/adamw.h"

namespace so {

// Who holds the bucket's optimizer state and updates it: the host's threads on host memory, or the device on its own.
enum class Owner : std::uint8_t { host, device };
std::string_view name_of(Owner owner);

// The states of a bucket within an optimizer step. The verdict is the decision, after the whole backward pass, whether
// the step stands, stands clipped, or is skipped.
enum class BucketState : std::uint8_t {
  idle,       // weights on the device are current, no gradient
  landing,    // its gradient is being produced
  deferred,   // its gradient is complete and waits for the verdict
  committed,  // the update has been computed and stands
  discarded,  // the step was skipped: nothing of it remains
  returning,  // updated weights are on their way to the device
};
std::string_view name_of(BucketState state);

// The verbs are the only way from state to state; one in the wrong state throws Bug. One thread at a time.
class Bucket {
 public:
  Bucket(int index, Range range, Owner owner) : index_(index), range_(range), owner_(owner) {}

  int index() const { return index_; }
  Range range() const { return range_; }
  Owner owner() const { return owner_; }
  BucketState state() const { return state_; }

  void land();    // idle, landing -> landing: a gradient of this step is being written (again, for a later micro-batch)
  void defer();   // landing -> deferred: the last micro-batch is complete
  void commit();  // deferred -> committed
  void discard();  // landing, deferred -> discarded
  void depart();   // committed -> returning
  void settle();   // returning, discarded -> idle

 private:
  void move(BucketState to, std::initializer_list<BucketState> from, std::string_view verb);

  int index_;
  Range range_;
  Owner owner_;
  BucketState state_ = BucketState::idle;
};

// Cuts the flat range into buckets of at most `elements` (a multiple of ParameterLayout::alignment), first at unit
// boundaries where they fall well, finer where a unit is larger than a bucket. In order, without gaps.
std::vector<Range> cut_buckets(const ParameterLayout& layout, std::int64_t elements);

}  // namespace so
