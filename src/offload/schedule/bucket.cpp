#include "offload/schedule/bucket.h"

#include <algorithm>
#include <array>

#include "device/trace.h"

namespace so {

std::string_view name_of(BucketState state) {
  constexpr std::array<std::string_view, bucket_states> names = {
      "idle", "landing", "deferred", "speculated", "previewed", "owing", "committed", "discarded", "returning"};
  return names.at(static_cast<std::size_t>(state));
}

void Bucket::move(BucketState to, std::initializer_list<BucketState> from, std::string_view verb) {
  SO_CHECK(std::find(from.begin(), from.end(), state_) != from.end(), "bucket {}: {} while {}", index_, verb,
           name_of(state_));
  if (tracing()) {
    const std::int64_t now = trace_now();
    if (state_ != BucketState::idle) trace_bucket_state(index_, name_of(state_), since_, now);
    since_ = now;
  }
  state_ = to;
}

void Bucket::land() { move(BucketState::landing, {BucketState::idle, BucketState::landing}, "land"); }
void Bucket::defer() { move(BucketState::deferred, {BucketState::landing}, "defer"); }
void Bucket::speculate() { move(BucketState::speculated, {BucketState::deferred}, "speculate"); }
void Bucket::preview() { move(BucketState::previewed, {BucketState::deferred}, "preview"); }
void Bucket::owe() { move(BucketState::owing, {BucketState::deferred, BucketState::previewed}, "owe"); }
void Bucket::commit() {
  move(BucketState::committed, {BucketState::deferred, BucketState::speculated, BucketState::owing}, "commit");
}
void Bucket::discard() {
  move(BucketState::discarded,
       {BucketState::landing, BucketState::deferred, BucketState::speculated, BucketState::previewed}, "discard");
}
void Bucket::redo() { move(BucketState::deferred, {BucketState::discarded}, "redo"); }
void Bucket::depart() { move(BucketState::returning, {BucketState::committed, BucketState::discarded}, "depart"); }
void Bucket::settle() { move(BucketState::idle, {BucketState::returning, BucketState::discarded}, "settle"); }

std::vector<Bucket> make_buckets(const ParameterLayout& layout, std::int64_t elements,
                                 std::span<const UnitPlacement> units, bool within_units, std::int64_t block) {
  SO_CHECK(elements > 0 && elements % ParameterLayout::alignment == 0, "bucket of {} elements", elements);
  SO_CHECK(static_cast<int>(units.size()) == layout.units(), "owners of {} of {} units", units.size(), layout.units());
  std::vector<Bucket> buckets;
  Range open{0, 0};
  Owner owner = Owner::host;
  const auto close = [&](std::int64_t at) {
    open.end = at;
    if (open.size() > 0) buckets.emplace_back(static_cast<int>(buckets.size()), open, owner);
    open = {at, at};
  };
  for (int unit = 0; unit < layout.units(); ++unit) {
    if (within_units) close(layout.unit_range(unit).begin);
    for (const auto& [range, trained] : layout.stretches(unit)) {
      const Owner wanted = trained ? units[static_cast<std::size_t>(unit)].owner : Owner::nobody;
      if (wanted != owner) close(range.begin);
      owner = wanted;
      if (range.end - open.begin <= elements) continue;  // joins the open bucket
      close(range.begin);
      // Equal pieces rather than full ones and a small rest. Where blocks are large, cuts come early and pieces are
      // more.
      const std::int64_t pieces = (range.size() + elements - 1) / elements;
      for (std::int64_t piece = 1; range.end - open.begin > elements; ++piece) {
        const std::int64_t even = range.begin + range.size() * std::min(piece, pieces) / pieces,
                           at = std::min(even, open.begin + elements),
                           cut = layout.cut_before(at / ParameterLayout::alignment * ParameterLayout::alignment, block);
        SO_CHECK(cut > open.begin || piece < pieces, "a block at {} is larger than a bucket of {}", cut, elements);
        close(cut);
      }
    }
  }
  close(layout.elements());
  return buckets;
}

UnitBuckets::UnitBuckets(const ParameterLayout& layout, std::span<Bucket> buckets) : buckets_(buckets) {
  std::size_t first = 0;
  for (int unit = 0; unit < layout.units(); ++unit) {
    const Range range = layout.unit_range(unit);
    while (buckets[first].range().end <= range.begin) ++first;
    std::size_t last = first;
    while (last < buckets.size() && buckets[last].range().begin < range.end) ++last;
    const bool begun_before = last > first && buckets[first].range().begin < range.begin;
    parts_.push_back({first, last - first, begun_before ? std::size_t{1} : 0});
  }
}

}  // namespace so
