#include "offload/device_optimizer.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "offload/range_update.h"

namespace so {
namespace {

// Pieces in which state is read and written: 32 MiB, where copies run at full speed.
constexpr std::int64_t transfer_elements = std::int64_t{8} << 20;

// This rank's slices of a run of buckets, which are adjacent.
Range own_of(std::span<const Bucket> run) { return {run.front().own().begin, run.back().own().end}; }

}  // namespace

DeviceOptimizer::DeviceOptimizer(Device& device, EngineOps& ops, const ParameterLayout& layout,
                                 std::span<Bucket> buckets, OptimizerState& state, const UnitWeights& weights,
                                 const UnitGradients& gradients, SaveGate& gate)
    : ops_(ops),
      layout_(layout),
      buckets_(buckets),
      state_(state),
      weights_(weights),
      gradients_(gradients),
      gate_(gate),
      adamw_(make_device_adamw(device)) {
  std::int64_t largest = 0;
  for (const Bucket& bucket : buckets) {
    current_.push_back(bucket.on_device() ? device.create_event() : nullptr);
    if (bucket.on_device()) largest = std::max(largest, bucket.own().size());
  }
  if (largest > 0) transfer_ = std::make_unique<StateTransfer>(device, std::min(largest, transfer_elements));
}

void DeviceOptimizer::land(Bucket& bucket) {
  if (bucket.state() == BucketState::returning) bucket.settle();
  bucket.land();
}

void DeviceOptimizer::landed() {
  for (Bucket& bucket : buckets_)
    if (bucket.on_device()) bucket.defer();
}

void DeviceOptimizer::decide(bool stands, const AdamWSteps& steps, Stream& compute) {
  if (stands) {
    for_each_run(buckets_, [&](std::span<Bucket> run) { update(run, compute, steps); });
    return;
  }
  for (Bucket& bucket : buckets_) {
    if (!bucket.on_device()) continue;
    bucket.discard();
    bucket.settle();
    ++counters_.discarded;
  }
}

void DeviceOptimizer::require(const Bucket& bucket, Stream& stream) { stream.wait(current(bucket)); }

void DeviceOptimizer::send_masters(const Bucket& bucket, Stream& stream) {
  cast_masters({&bucket, 1}, stream);
  stream.record(current(bucket));
}

void DeviceOptimizer::cast_masters(std::span<const Bucket> buckets, Stream& stream) {
  std::vector<DeviceCast> casts;
  for (const Bucket& bucket : buckets) {
    if (!bucket.on_device() || bucket.own().size() == 0) continue;
    weights_.for_each_part(bucket.own(), [&](Range part, Tensor weights) {
      const Tensor masters(state_.master(bucket, part.begin), DType::f32, {part.size()});
      if (weights.dtype() == DType::bf16)
        casts.push_back({weights, masters});
      else
        stream.copy(weights.data(), masters.data(), weights.bytes());
    });
  }
  ops_.cast(stream, casts);
}

template <class Body>
void DeviceOptimizer::for_each_run(std::span<Bucket> buckets, const Body& body) const {
  while (!buckets.empty()) {
    const bool ours = buckets.front().on_device();
    const std::span<Bucket> run = ours ? adjacent(buckets) : buckets.first(1);
    if (ours) body(run);
    buckets = buckets.subspan(run.size());
  }
}

std::span<Bucket> DeviceOptimizer::adjacent(std::span<Bucket> buckets) const {
  // Long beside what a launch takes to begin and to end; and by no more than this does a save hold up an update.
  constexpr std::int64_t most_elements = std::int64_t{64} << 20;
  if (weights_.on_device().are_callers()) return buckets.first(1);
  const Range first = buckets.front().own();
  const auto arrays = [&](const Bucket& bucket) {
    const std::int64_t begin = bucket.own().begin;
    const AdamWState state = state_.at(bucket, begin);
    const std::byte* const weights = weights_.follows_masters(begin) ? nullptr : weights_.own_at(begin);
    return std::array<const void*, 5>{weights, gradients_.own_at(begin), state.master, state.m.data(), state.v.data()};
  };
  // Scales of codes that are adjacent are adjacent too.
  const std::size_t moment = size_of(state_.dtype(StateArray::first_moment));
  const std::array<std::size_t, 5> sizes{size_of(weights_.on_device().dtype()), size_of(gradients_.own_dtype()),
                                         sizeof(float), moment, moment};
  const std::array<const void*, 5> begins = arrays(buckets.front());
  const auto follows = [&](const Bucket& next) {
    if (!next.on_device() || next.own().end - first.begin > most_elements) return false;
    const std::array<const void*, 5> there = arrays(next);
    if ((there[0] == nullptr) != (begins[0] == nullptr)) return false;
    for (std::size_t i = begins[0] == nullptr ? 1 : 0; i < begins.size(); ++i)
      if (static_cast<const std::byte*>(there[i]) !=
          static_cast<const std::byte*>(begins[i]) +
              static_cast<std::size_t>(next.own().begin - first.begin) * sizes[i])
        return false;
    return true;
  };
  std::size_t count = 1;
  while (count < buckets.size() && follows(buckets[count])) ++count;
  return buckets.first(count);
}

void DeviceOptimizer::update(std::span<Bucket> run, Stream& compute, const AdamWSteps& steps) {
  for (const Bucket& bucket : run) counters_.save_wait_seconds += gate_.wait(bucket.index());
  const Range range = own_of(run);
  const auto update_part = [&](Range part, Tensor weights) {
    update_range(*adamw_, compute, steps, layout_, part,
                 Tensor(gradients_.own_at(part.begin), gradients_.own_dtype(), {part.size()}),
                 state_.at(run.front(), part.begin), weights);
  };
  if (range.size() > 0 && weights_.follows_masters(range.begin))
    update_part(range, Tensor(nullptr, weights_.on_device().dtype(), {range.size()}));
  else if (range.size() > 0)
    weights_.for_each_part(range, update_part);
  for (Bucket& bucket : run) {
    compute.record(current(bucket));
    bucket.commit();
    bucket.depart();
    ++counters_.committed;
  }
}

void DeviceOptimizer::read_state(StateArray array, const Bucket& bucket, Range part, const ReadPiece& body) {
  transfer_->read(state_.part(array, bucket, part), current(bucket), body);
}

void DeviceOptimizer::write_state(StateArray array, const Bucket& bucket, Range part, const WritePiece& fill) {
  const Range whole = layout_.whole_blocks(part);
  if (state_.dtype(array) != DType::u8)
    return transfer_->write(state_.part(array, bucket, part), {0, part.size()}, current(bucket), fill);
  transfer_->write(state_.part(array, bucket, whole), {part.begin - whole.begin, part.end - whole.begin},
                   current(bucket), fill);
}

void DeviceOptimizer::place_masters(Stream& stream, const Bucket& bucket, Range part, const WeightPiece& piece) {
  const Tensor weights = weights_at(part), masters(state_.master(bucket, part.begin), DType::f32, {part.size()});
  if (weights.dtype() == DType::f32) {
    stream.copy(masters.data(), weights.data(), masters.bytes());
  } else if (!piece.wide.empty()) {
    stream.copy(masters.data(), piece.wide.data() + (part.begin - piece.begin), masters.bytes());
    if (piece.narrow.empty() && !weights_.follows_masters(part.begin)) ops_.cast(stream, weights, masters);
  } else {
    ops_.cast(stream, masters, weights);
  }
}

void DeviceOptimizer::place_moments(Stream& stream, StateArray array, const Bucket& bucket, Range part,
                                    const WeightPiece& piece) {
  const auto from = static_cast<std::size_t>(part.begin - piece.begin);
  if (state_.dtype(array) == DType::u8)
    return write_state(array, bucket, part, [&](std::int64_t offset, std::span<float> values) {
      std::copy_n(piece.wide.data() + from + offset, values.size(), values.data());
    });
  require(bucket, stream);
  const Tensor to = state_.part(array, bucket, part).values();
  const bool narrow = to.dtype() == DType::bf16;
  SO_CHECK(!(narrow ? piece.narrow.empty() : piece.wide.empty()), "moments at {} came in another format", part.begin);
  stream.copy(to.data(),
              narrow ? static_cast<const void*>(piece.narrow.data() + from)
                     : static_cast<const void*>(piece.wide.data() + from),
              to.bytes());
}

}  // namespace so
