// The engine's optimizer state outside of steps: loaded, read and written.
#include <algorithm>

#include "base/error.h"
#include "offload/engine.h"

namespace so {
namespace {

// body(part) for the parts of `range` that lie in one unit each.
template <class Body>
void for_each_unit_part(const ParameterLayout& layout, Range range, const Body& body) {
  while (range.size() > 0) {
    const Range part{range.begin, std::min(range.end, layout.unit_range(layout.unit_of(range.begin)).end)};
    body(part);
    range.begin = part.end;
  }
}

}  // namespace

void OffloadEngine::begin_save() {
  host_.finish();
  gate_.begin();
}

std::vector<Range> OffloadEngine::own_ranges() const {
  std::vector<Range> ranges;
  for (const Bucket& bucket : buckets_) {
    const Range own = bucket.own();
    if (own.size() <= 0) continue;
    if (!ranges.empty() && ranges.back().end == own.begin)
      ranges.back().end = own.end;
    else
      ranges.push_back(own);
  }
  return ranges;
}

void OffloadEngine::read_state(StateArray array, Range range, const ReadBody& body) {
  for (const Bucket& bucket : buckets_) {
    const Range part = common(bucket.own(), range);
    if (part.size() <= 0) continue;
    if (bucket.frozen()) {
      if (array != StateArray::master) continue;
      for_each_unit_part(layout_, part, [&](Range in_unit) {
        frozen_.read(in_unit,
                     [&](std::int64_t offset, std::span<const float> values) { body(in_unit.begin + offset, values); });
      });
      continue;
    }
    const auto give = [&](std::int64_t offset, std::span<const float> values) { body(part.begin + offset, values); };
    if (bucket.on_host())
      host_.read_state(array, bucket, part, give);
    else
      device_optimizer_.read_state(array, bucket, part, give);
  }
}

void OffloadEngine::write_state(StateArray array, Range range, const WriteBody& fill) {
  for (const Bucket& bucket : buckets_) {
    const Range part = common(bucket.own(), range);
    if (part.size() <= 0) continue;
    if (bucket.frozen()) {
      if (array != StateArray::master) continue;
      for_each_unit_part(layout_, part, [&](Range in_unit) {
        frozen_.write(in_unit,
                      [&](std::int64_t offset, std::span<float> values) { fill(in_unit.begin + offset, values); });
      });
      continue;
    }
    const auto take = [&](std::int64_t offset, std::span<float> values) { fill(part.begin + offset, values); };
    if (bucket.on_host())
      host_.write_state(array, bucket, part, take);
    else
      device_optimizer_.write_state(array, bucket, part, take);
  }
}

WeightForms OffloadEngine::forms(DType stored) const {
  if (settings_.formats.weights == DType::f32) return {.wide = true, .narrow = false};
  // From bf16 the masters are widened where they lie, so that fewer bytes travel.
  if (stored == DType::bf16) return {.wide = false, .narrow = true};
  // The device rounds what it owns itself.
  return {.wide = true, .narrow = !host_.owned().empty() || layout_.has_frozen()};
}

WeightForms OffloadEngine::moment_forms() const {
  const bool narrow = settings_.formats.moments == DType::bf16;
  return {.wide = !narrow, .narrow = narrow};
}

std::vector<OffloadEngine::StatePlace> OffloadEngine::state_places(StateArray array) {
  std::vector<StatePlace> places;
  for (const Bucket& bucket : buckets_) {
    if (bucket.own().size() <= 0 || bucket.frozen()) continue;
    StatePlace& place = places.emplace_back();
    place.range = bucket.own();
    // fp32 weights go to the device from the same piece as the masters, and copies to it want pinned memory.
    const bool sent_too = array == StateArray::master && settings_.formats.weights == DType::f32;
    if (!bucket.on_host() || sent_too) continue;
    const Tensor state = host_.writable_state(array, bucket).values();
    if (state.dtype() == DType::f32) place.wide = state.as<float>();
    if (state.dtype() == DType::bf16) place.narrow = state.as<bf16>();
  }
  return places;
}

void OffloadEngine::place_moments(Stream& stream, StateArray array, const WeightPiece& piece) {
  const Range range{piece.begin, piece.begin + piece.size()};
  for (const Bucket& bucket : buckets_) {
    const Range part = common(bucket.own(), range);
    if (part.size() <= 0 || bucket.frozen()) continue;
    if (bucket.on_host())
      host_.place(array, bucket, part, piece);
    else
      device_optimizer_.place_moments(stream, array, bucket, part, piece);
  }
}

void OffloadEngine::place_weights(Stream& stream, const WeightPiece& piece) {
  const bool wide = settings_.formats.weights == DType::f32, sent = wide || !piece.narrow.empty();
  const Range range{piece.begin, piece.begin + piece.size()};
  for (const Bucket& bucket : buckets_) {
    const Range part = common(bucket.range(), range);
    if (part.size() <= 0) continue;
    SO_CHECK(sent || bucket.on_device(), "weights at {} came in fp32 only", part.begin);
    require_sent(bucket, stream);
    const auto from = static_cast<std::size_t>(part.begin - range.begin);
    const void* weights = nullptr;
    if (sent) weights = wide ? static_cast<const void*>(piece.wide.data() + from) : piece.narrow.data() + from;
    // The host's masters are read when the weights are made of them.
    if (!bucket.on_host() || !weights_.follows_masters(part.begin))
      weights_.at(part.begin).place(stream, part, weights);
    const Range own = common(bucket.own(), part);
    if (own.size() <= 0 || bucket.frozen()) continue;
    if (bucket.on_host())
      host_.place(StateArray::master, bucket, own, piece);
    else
      device_optimizer_.place_masters(stream, bucket, own, piece);
  }
}

void OffloadEngine::gather_placed(Stream& compute) {
  if (ranks_.size() == 1) return;
  compute.synchronize();  // what was placed is there
  weights_.drop_all();
  exchange_->forget();
  exchange_->gather(buckets_, compute);
  compute.synchronize();
}

void OffloadEngine::upload_weights(Stream& compute) {
  host_.finish();
  weights_.drop_all();
  exchange_->forget();
  for (const Bucket& bucket : buckets_) {
    if (bucket.frozen()) continue;
    if (bucket.on_host()) {
      host_.send_masters(bucket);
      host_.require_weights(bucket, compute);
    } else if (!weights_.follows_masters(bucket.own().begin)) {
      device_optimizer_.send_masters(bucket, compute);
    }
  }
  exchange_->gather(buckets_, compute);
  compute.synchronize();
}

}  // namespace so
