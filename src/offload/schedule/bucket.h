// A bucket: a contiguous piece of the flat parameter range that travels and is updated as one.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "offload/schedule/parameter_layout.h"
#include "offload/schedule/placement.h"
#include "optim/adamw.h"

namespace so {

// The states of a bucket within an optimizer step. The verdict is the decision, after the whole backward pass, whether
// the step stands, stands clipped, or is skipped. A device-owned bucket is never speculated, previewed or owing.
enum class BucketState : std::uint8_t {
  idle,        // weights on the device are current, no gradient
  landing,     // its gradient is being produced
  deferred,    // its gradient is complete; its update has not begun
  speculated,  // updated ahead of the verdict: new state beside the old, new weights sent
  previewed,   // ahead of the verdict, new weights were computed and sent; the state is the old one
  owing,       // the verdict is in and the weights sent are final; the state must still follow
  committed,   // the update stands
  discarded,   // what was done ahead of the verdict is void, or the step is skipped
  returning,   // all is decided and done but for weights that may still be on their way to the device
};
inline constexpr int bucket_states = 9;
std::string_view name_of(BucketState state);

// The verbs are the only way from state to state; one in the wrong state throws Bug. A trace shows the states. One
// thread at a time.
class Bucket {
 public:
  // `own`: a slice of `range`; empty where this rank has none of the bucket.
  Bucket(int index, Range range, Owner owner, Range own) : index_(index), range_(range), own_(own), owner_(owner) {}
  Bucket(int index, Range range, Owner owner) : Bucket(index, range, owner, range) {}

  int index() const { return index_; }
  Range range() const { return range_; }
  // The slice whose optimizer state this rank keeps and updates, and whose weights it loads and writes: all of it where
  // there is one rank.
  Range own() const { return own_; }
  Owner owner() const { return owner_; }
  bool on_host() const { return owner_ == Owner::host; }
  bool on_device() const { return owner_ == Owner::device; }
  bool frozen() const { return owner_ == Owner::nobody; }
  BucketState state() const { return state_; }

  void land();   // idle, landing -> landing: a gradient of this step is being written (again, for a later micro-batch)
  void defer();  // landing -> deferred: the last micro-batch is complete
  void speculate();  // deferred -> speculated
  void preview();    // deferred -> previewed
  void owe();        // deferred, previewed -> owing
  void commit();     // deferred, speculated, owing -> committed
  void discard();    // landing, deferred, speculated, previewed -> discarded
  void redo();       // discarded -> deferred: the step stands, but not as it was speculated
  void depart();     // committed, discarded -> returning: the final weights, new or old, have been sent
  void settle();     // returning, discarded -> idle

 private:
  void move(BucketState to, std::initializer_list<BucketState> from, std::string_view verb);

  int index_;
  Range range_, own_;
  Owner owner_;
  BucketState state_ = BucketState::idle;
  std::int64_t since_ = 0;  // ns of the trace's clock; 0 when nobody traces
};

// Cuts the flat range into buckets of at most `elements` (a multiple of ParameterLayout::alignment), first at unit
// boundaries where they fall well, finer where a unit is larger than a bucket, at whole blocks of a parameter
// (ParameterLayout::cut_before(), with `block`), which must fit into a bucket. In order, without gaps. Frozen
// parameters belong to nobody; no bucket has two owners, and none parts of two units if `within_units`.
std::vector<Bucket> make_buckets(const ParameterLayout& layout, std::int64_t elements,
                                 std::span<const UnitPlacement> units, bool within_units = false,
                                 std::int64_t block = 1);

// The buckets of each unit.
class UnitBuckets {
 public:
  // `buckets`: of all units, in order; they outlive this.
  UnitBuckets(const ParameterLayout& layout, std::span<Bucket> buckets);

  // Those that have a part of the unit.
  std::span<Bucket> of(int unit) const {
    const Part p = part(unit);
    return buckets_.subspan(p.first, p.count);
  }
  // Those whose gradients are complete when the unit's are. Units come last first, or else a bucket has parts of one
  // alone, so these begin in the unit.
  std::span<Bucket> complete_with(int unit) const { return of(unit).subspan(part(unit).begun_before); }

 private:
  struct Part {
    std::size_t first = 0, count = 0;
    std::size_t begun_before = 0;  // of them, in another unit: one at most
  };
  const Part& part(int unit) const { return parts_[static_cast<std::size_t>(unit)]; }

  const std::span<Bucket> buckets_;
  std::vector<Part> parts_;
};

}  // namespace so
