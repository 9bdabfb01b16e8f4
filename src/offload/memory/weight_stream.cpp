#include "offload/memory/weight_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "device/wait_on_exit.h"

namespace so {

WeightStream::WeightStream(Device& device, const ParameterLayout& layout, const DeviceWeights& weights,
                           std::span<const UnitPlacement> units, Sources sources)
    : layout_(layout), weights_(weights), sources_(std::move(sources)) {
  SO_CHECK(static_cast<int>(units.size()) == layout.units(), "{} of {} units", units.size(), layout.units());
  std::size_t bytes = 0;
  for (int unit = 0; unit < layout.units(); ++unit) {
    const ResidencyKind kind = units[static_cast<std::size_t>(unit)].weights;
    if (!is_streamed(kind)) {
      index_.push_back(-1);
      continue;
    }
    index_.push_back(static_cast<int>(units_.size()));
    units_.push_back(unit);
    starts_.push_back(kind == ResidencyKind::streamed ? bytes : nowhere);
    if (kind == ResidencyKind::streamed)
      bytes += static_cast<std::size_t>(layout.unit_range(unit).size()) * size_of(weights.dtype());
  }
  if (units_.empty()) return;
  if (bytes > 0) memory_ = device.allocate(MemoryKind::pinned, bytes, "streamed weights");
  stream_ = device.create_stream("weights");
  for (Place& place : places_) {
    place.arrived = device.create_event();
    place.free = device.create_event();
  }
}

// Whoever waits for the copies has been told of an error.
WeightStream::~WeightStream() {
  if (stream_) wait_or_log(*stream_, LogLevel::debug);
}

std::byte* WeightStream::host_memory(std::int64_t element) const {
  const int unit = layout_.unit_of(element);
  SO_CHECK(has(unit), "unit {} does not stream", unit);
  if (follows_masters(unit)) return nullptr;
  const std::int64_t offset = element - layout_.unit_range(unit).begin;
  return static_cast<std::byte*>(memory_.data()) + starts_[static_cast<std::size_t>(index_of(unit))] +
         static_cast<std::size_t>(offset) * size_of(weights_.dtype());
}

void WeightStream::send(int unit, std::int64_t end) {
  Place& to = place(unit);
  const Range range = layout_.unit_range(unit);
  const bool made = follows_masters(unit);
  if (made && end < range.end) return;
  if (to.unit != unit) {
    SO_CHECK(!to.in_use, "the place for unit {} is in use", unit);
    stream_->wait(*to.free);
    to.unit = unit;
    to.sent = range.begin;
    ++copies_;
  }
  if (made && to.sent < range.end) {
    sources_.cast_masters(unit, *stream_);
    stream_->record(*to.arrived);
    to.sent = range.end;
  }
  const std::int64_t piece = piece_bytes / static_cast<std::int64_t>(size_of(weights_.dtype()));
  while (to.sent < range.end) {
    const std::int64_t count = std::min(piece, range.end - to.sent);
    if (to.sent + count > end) return;
    if (to.sent > range.begin) stream_->yield();
    stream_->copy(weights_.at(to.sent), host_memory(to.sent),
                  static_cast<std::size_t>(count) * size_of(weights_.dtype()));
    to.sent += count;
    if (to.sent == range.end) stream_->record(*to.arrived);
  }
}

void WeightStream::begin(Range part) { send(layout_.unit_of(part.begin), part.end); }

void WeightStream::require(int unit, Stream& stream) {
  Place& at = place(unit);
  send(unit, layout_.unit_range(unit).end);
  at.in_use = true;
  stream.wait(*at.arrived);
}

void WeightStream::release(int unit, Stream& stream) {
  Place& at = place(unit);
  stream.record(*at.free);
  at.in_use = false;
}

bool WeightStream::here(int unit) const {
  const Place& at = place(unit);
  return at.unit == unit && at.sent == layout_.unit_range(unit).end && at.arrived->done();
}

void WeightStream::prefetch(const PassOrder& pass) {
  if (units_.empty()) return;
  const Place* before = nullptr;  // of the streamed unit that comes first
  for (std::size_t n = 1; n <= pass.size(); ++n) {
    const int unit = pass.ahead(n);
    if (!has(unit)) continue;
    Place& to = place(unit);
    if (&to == before) return;  // it is needed for another unit, or this one again, before
    if (to.unit != unit && !to.in_use && sources_.final_weights(unit)) send(unit, layout_.unit_range(unit).end);
    if (before != nullptr) return;
    before = &to;
  }
}

void WeightStream::place(Stream&, Range part, const void* weights) {
  SO_CHECK(weights, "streamed weights at {} came in another form", part.begin);
  drop_all();
  std::memcpy(host_memory(part.begin), weights, weights_.bytes_of(part));
}

void WeightStream::drop(int unit) {
  Place& at = place(unit);
  SO_CHECK(at.unit != unit || !at.in_use, "weights of unit {} change while they are used", unit);
  if (at.unit == unit) at.unit = -1;
}

void WeightStream::drop_all() {
  if (!stream_) return;
  stream_->synchronize();
  for (const int unit : units_) drop(unit);
}

}  // namespace so
