#include "offload/memory/gathered_weights.h"

#include <utility>

#include "base/error.h"

namespace so {

namespace {

std::vector<bool> with_slices(std::span<const UnitPlacement> units) {
  std::vector<bool> sliced;
  for (const UnitPlacement& unit : units) sliced.push_back(unit.weights == ResidencyKind::gathered);
  return sliced;
}

}  // namespace

GatheredWeights::GatheredWeights(Device& device, const ParameterLayout& layout, const DeviceWeights& weights,
                                 std::span<const Bucket> buckets, std::span<const UnitPlacement> units,
                                 UnitGathers gathers)
    : layout_(layout),
      weights_(weights),
      gathers_(std::move(gathers)),
      slices_(device, layout, weights.dtype(), buckets, with_slices(units), "weight slices") {
  int turn = 0;
  for (const UnitPlacement& unit : units) turns_.push_back(is_gathered(unit.weights) ? turn++ : none);
  empty_ = turn == 0;
  if (empty_) return;
  for (Place& place : places_) {
    place.arrived = device.create_event();
    place.free = device.create_event();
  }
}

void GatheredWeights::gather(int unit) {
  Place& to = place(unit);
  gathers_.require_sent(unit);
  Stream& stream = gathers_.stream();
  stream.wait(*to.free);
  if (follows_masters(unit)) gathers_.cast_masters(unit);
  const Range range = layout_.unit_range(unit);
  std::vector<BucketGather> gathers;
  for (std::int64_t begin = range.begin; begin < range.end;) {
    const Bucket& bucket = slices_.bucket_of(begin);
    std::byte* const all = weights_.at(begin);
    const std::byte* const own =
        follows_masters(unit) ? all + weights_.bytes_of({begin, bucket.own().begin}) : slices_.at(bucket.own().begin);
    gathers.push_back({&bucket, own, all});
    begin = bucket.range().end;
  }
  gathers_.gather(gathers);
  stream.record(*to.arrived);
  ++copies_;
}

void GatheredWeights::require(int unit, Stream& stream) {
  finish_prefetch();
  Place& at = place(unit);
  if (at.unit != unit) {
    SO_CHECK(!at.in_use, "the place for unit {} is in use", unit);
    at.unit = unit;
    gather(unit);
  }
  at.in_use = true;
  stream.wait(*at.arrived);
}

void GatheredWeights::release(int unit, Stream& stream) {
  Place& at = place(unit);
  stream.record(*at.free);
  at.in_use = false;
}

bool GatheredWeights::here(int unit) const {
  return place(unit).unit == unit && decided_ != unit && place(unit).arrived->done();
}

// The gathered unit that the pass comes to next, if no other unit has to be gathered before.
int GatheredWeights::next_of(const PassOrder& pass) const {
  for (std::size_t n = 1; n <= pass.left(); ++n) {
    const int unit = pass.ahead(n);
    if (has(unit)) return unit;
    if (!gathers_.whole(unit)) return none;
  }
  return none;
}

// Decides by what all ranks know: nothing here may depend on whether a gather has begun.
void GatheredWeights::prefetch(const PassOrder& pass) {
  if (empty_) return;
  const int next = next_of(pass);
  if (next != none && place(next).unit != next && !place(next).in_use) {
    finish_prefetch();
    place(next).unit = next;
    decided_ = next;
  }
  if (decided_ != none && gathers_.sent(decided_)) finish_prefetch();
}

void GatheredWeights::finish_prefetch() {
  if (decided_ != none) gather(std::exchange(decided_, none));
}

void GatheredWeights::place(Stream& stream, Range part, const void* weights) {
  const Range own = common(slices_.bucket_of(part.begin).own(), part);
  if (weights == nullptr || own.size() <= 0) return;
  std::byte* to = slices_.at(own.begin);
  if (to == nullptr) {  // for the masters that are made of them at once; whose place it was has to be gathered again
    Place& at = place(layout_.unit_of(own.begin));
    finish_prefetch();
    at.unit = none;
    stream.wait(*at.arrived);
    to = weights_.at(own.begin);
  }
  const std::byte* const from = static_cast<const std::byte*>(weights) + weights_.bytes_of({part.begin, own.begin});
  stream.copy(to, from, weights_.bytes_of(own));
}

void GatheredWeights::drop(int unit) {
  Place& at = place(unit);
  SO_CHECK(at.unit != unit || !at.in_use, "weights of unit {} change while they are used", unit);
  if (at.unit == unit) at.unit = none;
}

void GatheredWeights::drop_all() {
  if (empty_) return;
  finish_prefetch();
  gathers_.stream().synchronize();
  for (int unit = 0; unit < layout_.units(); ++unit)
    if (has(unit)) drop(unit);
}

}  // namespace so
