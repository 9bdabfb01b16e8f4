#include "offload/bucket.h"

#include <algorithm>

namespace so {

std::string_view name_of(Owner owner) { return owner == Owner::host ? "host" : "device"; }

std::string_view name_of(BucketState state) {
  switch (state) {
    case BucketState::idle:
      return "idle";
    case BucketState::landing:
      return "landing";
    case BucketState::deferred:
      return "deferred";
    case BucketState::committed:
      return "committed";
    case BucketState::discarded:
      return "discarded";
    case BucketState::returning:
      return "returning";
  }
  SO_CHECK(false, "bucket state {}", static_cast<int>(state));
}

void Bucket::move(BucketState to, std::initializer_list<BucketState> from, std::string_view verb) {
  SO_CHECK(std::find(from.begin(), from.end(), state_) != from.end(), "bucket {}: {} while {}", index_, verb,
           name_of(state_));
  state_ = to;
}

void Bucket::land() { move(BucketState::landing, {BucketState::idle, BucketState::landing}, "land"); }
void Bucket::defer() { move(BucketState::deferred, {BucketState::landing}, "defer"); }
void Bucket::commit() { move(BucketState::committed, {BucketState::deferred}, "commit"); }
void Bucket::discard() { move(BucketState::discarded, {BucketState::landing, BucketState::deferred}, "discard"); }
void Bucket::depart() { move(BucketState::returning, {BucketState::committed}, "depart"); }
void Bucket::settle() { move(BucketState::idle, {BucketState::returning, BucketState::discarded}, "settle"); }

std::vector<Range> cut_buckets(const ParameterLayout& layout, std::int64_t elements) {
  SO_CHECK(elements > 0 && elements % ParameterLayout::alignment == 0, "bucket of {} elements", elements);
  std::vector<Range> buckets;
  Range open{0, 0};
  const auto close = [&](std::int64_t at) {
    open.end = at;
    if (open.size() > 0) buckets.push_back(open);
    open = {at, at};
  };
  for (int unit = 0; unit < layout.units(); ++unit) {
    const Range range = layout.unit_range(unit);
    if (range.end - open.begin <= elements) continue;  // joins the open bucket
    close(range.begin);
    // Equal pieces rather than full ones and a small rest.
    const std::int64_t pieces = (range.size() + elements - 1) / elements;
    for (std::int64_t piece = 1; piece < pieces; ++piece) {
      const std::int64_t at = range.begin + range.size() * piece / pieces;
      close(at / ParameterLayout::alignment * ParameterLayout::alignment);
    }
  }
  close(layout.elements());
  return buckets;
}

}  // namespace so
