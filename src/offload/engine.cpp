#include "offload/engine.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/error.h"

namespace so {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<Bucket> make_buckets(const ParameterLayout& layout, const EngineSettings& settings) {
  SO_CHECK(settings.device_units >= 0 && settings.device_units <= layout.units(), "{} of {} units",
           settings.device_units, layout.units());
  const std::int64_t boundary = settings.device_units == 0 ? 0 : layout.unit_range(settings.device_units - 1).end;
  std::vector<Bucket> buckets;
  const auto add = [&](Range range) {
    if (range.size() > 0)
      buckets.emplace_back(static_cast<int>(buckets.size()), range,
                           range.begin < boundary ? Owner::device : settings.owner);
  };
  for (const Range range : cut_buckets(layout, settings.bucket_elements)) {
    const std::int64_t at = std::clamp(boundary, range.begin, range.end);
    add({range.begin, at});
    add({at, range.end});
  }
  return buckets;
}

std::int64_t largest(std::span<const Bucket> buckets, Owner owner) {
  std::int64_t elements = 0;
  for (const Bucket& bucket : buckets)
    if (bucket.owner() == owner) elements = std::max(elements, bucket.range().size());
  return elements;
}

// Pieces in which device-owned state is read and written: 32 MiB, where copies run at full speed.
constexpr std::int64_t transfer_elements = std::int64_t{8} << 20;

Range common(Range a, Range b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

}  // namespace

OffloadEngine::OffloadEngine(Device& device, Ops& ops, ThreadPool& host_pool, Communicator& ranks,
                             const ParameterLayout& layout, const EngineSettings& settings)
    : device_(device),
      ops_(ops),
      host_pool_(host_pool),
      ranks_(ranks),
      layout_(layout),
      settings_(settings),
      weights_(device, layout, settings.compute),
      gradients_(device.allocate(MemoryKind::device, gradient_bytes(layout.elements()), "gradients")),
      stats_(device.allocate(MemoryKind::device, sizeof(GradStats) * static_cast<std::size_t>(layout.count()),
                             "gradient stats")),
      stats_host_(device.allocate(MemoryKind::pinned, stats_.bytes(), "gradient stats")),
      buckets_(make_buckets(layout, settings)),
      host_state_(device, Owner::host, buckets_),
      device_state_(device, Owner::device, buckets_),
      written_(static_cast<std::size_t>(layout.count()), false),
      gradients_complete_(device.create_event()),
      ring_(device, largest(buckets_, Owner::host), settings.gradients, settings.compute),
      device_adamw_(make_device_adamw(device)),
      gate_(static_cast<int>(buckets_.size())) {
  SO_CHECK(settings.gradients == DType::f32 || settings.gradients == settings.compute, "gradients in {}",
           name_of(settings.gradients));
  for (const Bucket& bucket : buckets_) {
    current_.push_back(device.create_event());
    if (bucket.owner() == Owner::host) host_owned_.push_back(bucket.index());
  }
  if (const std::int64_t elements = largest(buckets_, Owner::device); elements > 0)
    transfer_ = std::make_unique<StateTransfer>(device, std::min(elements, transfer_elements));
  if (!device.backed()) return;
  host_state_.clear(host_pool);
  const auto stream = device.create_stream("clear");
  device_state_.clear(*stream);
  stream->synchronize();
}

bool OffloadEngine::meets(const Bucket& bucket, Range range) const { return common(bucket.range(), range).size() > 0; }

void OffloadEngine::require_weights(int unit, Stream& stream) {
  for (const Bucket& bucket : buckets_)
    if (bucket.state() == BucketState::returning && meets(bucket, layout_.unit_range(unit)))
      stream.wait(current(bucket));
}

GradientSink::Target OffloadEngine::gradient(int first, int count) {
  Target target{layout_.view(gradients_.data(), settings_.gradients, first, count),
                written_[static_cast<std::size_t>(first)] ? Accumulate::add : Accumulate::overwrite};
  const Range range{layout_.range(first).begin, layout_.range(first + count - 1).end};
  for (Bucket& bucket : buckets_) {
    if (!meets(bucket, range)) continue;
    // The weights that the last step sent back are there: this step's forward pass has waited for them.
    if (bucket.state() == BucketState::returning) bucket.settle();
    bucket.land();
  }
  std::fill_n(written_.begin() + first, count, true);
  return target;
}

void OffloadEngine::gradients_ready(int unit, Stream& stream) {
  if (!last_micro_batch_) return;
  const auto [first, last] = layout_.unit_parameters(unit);
  auto* stats = static_cast<GradStats*>(stats_.data());
  for (int p = first; p < last; ++p)
    ops_.grad_stats(stream, stats + p, layout_.view(gradients_.data(), settings_.gradients, p));
}

Verdict OffloadEngine::finish_step(Stream& compute, double lr, std::int64_t update_number) {
  SO_CHECK(last_micro_batch_, "finish_step before the last micro-batch");
  last_micro_batch_ = false;
  // What nobody wrote is an earlier step's gradient, which must not be taken for this one's.
  const auto missing = std::find(written_.begin(), written_.end(), false);
  SO_CHECK(missing == written_.end(), "no gradient of '{}' in this step",
           layout_.parameter(static_cast<int>(missing - written_.begin())).name);
  compute.copy(stats_host_.data(), stats_.data(), stats_.bytes());
  compute.record(*gradients_complete_);
  for (Bucket& bucket : buckets_) bucket.defer();
  written_.assign(written_.size(), false);
  gradients_complete_->synchronize();

  const Verdict verdict =
      make_verdict({static_cast<const GradStats*>(stats_host_.data()), static_cast<std::size_t>(layout_.count())},
                   ranks_, settings_.max_grad_norm);
  ++counters_.steps;
  if (!verdict.finite) {
    ++counters_.skipped_steps;
    for (Bucket& bucket : buckets_) {
      bucket.discard();
      bucket.settle();
      ++counters_.discarded_buckets;
    }
    return verdict;
  }
  if (verdict.clip != 1.0f) ++counters_.clipped_steps;

  const AdamWStep step = make_adamw_step(settings_.adamw, lr, settings_.weight_decay, update_number, verdict.clip);
  // The device first, so that it works beside the host.
  for (Bucket& bucket : buckets_)
    if (bucket.owner() == Owner::device) update_on_device(bucket, compute, step);
  update_on_host(step);
  return verdict;
}

void OffloadEngine::committed(Bucket& bucket) {
  bucket.commit();
  ++counters_.committed_buckets;
  bucket.depart();
}

void OffloadEngine::update_on_device(Bucket& bucket, Stream& compute, const AdamWStep& step) {
  counters_.save_wait_seconds += gate_.wait(bucket.index());
  const Range range = bucket.range();
  std::vector<AdamWRun> runs;
  for (const ParameterLayout::Run& run : layout_.runs(range))
    runs.push_back({run.range.begin - range.begin, run.range.end - range.begin, run.decay});
  device_adamw_->update(compute, step, runs, Tensor(gradient_at(range.begin), settings_.gradients, {range.size()}),
                        device_state_.at(bucket, range.begin),
                        Tensor(weights_.at(range.begin), settings_.compute, {range.size()}));
  compute.record(current(bucket));
  committed(bucket);
  ++counters_.device_updates;
}

void OffloadEngine::update_on_host(const AdamWStep& step) {
  const auto fetch = [&](std::size_t turn) {
    if (turn >= host_owned_.size()) return;
    const Range range = buckets_[static_cast<std::size_t>(host_owned_[turn])].range();
    ring_.fetch(ring_.slot(turn), gradient_at(range.begin), gradient_bytes(range.size()));
  };
  fetch(0);
  for (std::size_t turn = 0; turn < host_owned_.size(); ++turn) {
    // The slot of the next bucket held the gradient of the one before this, whose update is done.
    fetch(turn + 1);
    Bucket& bucket = buckets_[static_cast<std::size_t>(host_owned_[turn])];
    StagingRing::Slot& slot = ring_.slot(turn);
    auto start = std::chrono::steady_clock::now();
    ring_.wait(slot);
    counters_.gradient_wait_seconds += seconds_since(start);
    counters_.save_wait_seconds += gate_.wait(bucket.index());
    start = std::chrono::steady_clock::now();
    run_adamw(bucket, slot, step);
    counters_.adam_seconds += seconds_since(start);
    const Range range = bucket.range();
    ring_.give(slot, weights_.at(range.begin), static_cast<std::size_t>(range.size()) * size_of(settings_.compute),
               current(bucket));
    committed(bucket);
  }
}

void OffloadEngine::run_adamw(const Bucket& bucket, StagingRing::Slot& slot, const AdamWStep& step) {
  const auto part = [&]<class T>(const Buffer& memory, Range range) {
    return std::span<T>(static_cast<T*>(memory.data()) + (range.begin - bucket.range().begin),
                        static_cast<std::size_t>(range.size()));
  };
  for (const ParameterLayout::Run& run : layout_.runs(bucket.range())) {
    GradientSpan gradient;
    if (settings_.gradients == DType::bf16)
      gradient = part.operator()<const bf16>(slot.gradient, run.range);
    else
      gradient = part.operator()<const float>(slot.gradient, run.range);
    WeightSpan weights;
    if (settings_.compute == DType::bf16)
      weights = part.operator()<bf16>(slot.weights, run.range);
    else
      weights = part.operator()<float>(slot.weights, run.range);
    const AdamWState state = host_state_.at(bucket, run.range.begin);
    adamw_update_parallel(host_pool_, step, run.decay, gradient, state, state, weights);
  }
}

void OffloadEngine::read_state(StateArray array, Range range, const ReadBody& body) {
  for (const Bucket& bucket : buckets_) {
    const Range part = common(bucket.range(), range);
    if (part.size() <= 0) continue;
    const float* from = state_of(bucket).at(array, bucket, part.begin);
    if (bucket.owner() == Owner::host)
      body(part.begin, {from, static_cast<std::size_t>(part.size())});
    else
      transfer_->read(from, part.size(), current(bucket),
                      [&](std::int64_t offset, std::span<const float> values) { body(part.begin + offset, values); });
  }
}

void OffloadEngine::write_state(StateArray array, Range range, const WriteBody& fill) {
  for (const Bucket& bucket : buckets_) {
    const Range part = common(bucket.range(), range);
    if (part.size() <= 0) continue;
    float* to = state_of(bucket).at(array, bucket, part.begin);
    if (bucket.owner() == Owner::host)
      fill(part.begin, {to, static_cast<std::size_t>(part.size())});
    else
      transfer_->write(to, part.size(), current(bucket),
                       [&](std::int64_t offset, std::span<float> values) { fill(part.begin + offset, values); });
  }
}

WeightForms OffloadEngine::forms(DType stored) const {
  if (settings_.compute == DType::f32) return {.wide = true, .narrow = false};
  // From bf16 the masters are widened where they lie, so that fewer bytes travel.
  if (stored == DType::bf16) return {.wide = false, .narrow = true};
  // The device rounds what it owns itself.
  return {.wide = true, .narrow = !host_owned_.empty()};
}

void OffloadEngine::place_weights(Stream& stream, const WeightPiece& piece) {
  const bool has_wide = !piece.wide.empty(), has_narrow = !piece.narrow.empty();
  const Range range{piece.begin, piece.begin + piece.size()};
  for (const Bucket& bucket : buckets_) {
    const Range part = common(bucket.range(), range);
    if (part.size() <= 0) continue;
    const auto from = static_cast<std::size_t>(part.begin - range.begin);
    float* const master = state_of(bucket).at(StateArray::master, bucket, part.begin);
    const Tensor weights(weights_.at(part.begin), settings_.compute, {part.size()}),
        masters(master, DType::f32, {part.size()});
    stream.wait(current(bucket));
    const bool sent = settings_.compute == DType::f32 || has_narrow;
    SO_CHECK(sent || bucket.owner() == Owner::device, "host-owned weights at {} came in fp32 only", part.begin);
    if (sent)
      stream.copy(weights.data(),
                  settings_.compute == DType::f32 ? static_cast<const void*>(piece.wide.data() + from)
                                                  : piece.narrow.data() + from,
                  weights.bytes());
    if (bucket.owner() == Owner::device) {
      if (settings_.compute == DType::f32) {
        stream.copy(master, weights.data(), masters.bytes());
      } else if (has_wide) {
        stream.copy(master, piece.wide.data() + from, masters.bytes());
        if (!sent) ops_.cast(stream, weights, masters);
      } else {
        ops_.cast(stream, masters, weights);
      }
      continue;
    }
    host_pool_.parallel_for(part.size(), 1 << 16, [&](std::int64_t begin, std::int64_t end) {
      const std::size_t first = from + static_cast<std::size_t>(begin), count = static_cast<std::size_t>(end - begin);
      if (has_wide)
        std::memcpy(master + begin, piece.wide.data() + first, count * sizeof(float));
      else
        std::copy_n(piece.narrow.data() + first, count, master + begin);
    });
  }
}

void OffloadEngine::upload_weights(Stream& compute) {
  const bool narrow = settings_.compute == DType::bf16;
  std::size_t turn = 0;
  for (const Bucket& bucket : buckets_) {
    const Range range = bucket.range();
    const std::size_t bytes = static_cast<std::size_t>(range.size()) * size_of(settings_.compute);
    float* master = state_of(bucket).at(StateArray::master, bucket, range.begin);
    if (bucket.owner() == Owner::device) {
      if (narrow)
        ops_.cast(compute, Tensor(weights_.at(range.begin), settings_.compute, {range.size()}),
                  Tensor(master, DType::f32, {range.size()}));
      else
        compute.copy(weights_.at(range.begin), master, bytes);
      compute.record(current(bucket));
      continue;
    }
    StagingRing::Slot& slot = ring_.slot(turn++);
    ring_.wait(slot);
    host_pool_.parallel_for(range.size(), 1 << 16, [&](std::int64_t begin, std::int64_t end) {
      if (narrow)
        for (std::int64_t i = begin; i < end; ++i) static_cast<bf16*>(slot.weights.data())[i] = bf16(master[i]);
      else
        std::memcpy(static_cast<float*>(slot.weights.data()) + begin, master + begin,
                    static_cast<std::size_t>(end - begin) * sizeof(float));
    });
    ring_.give(slot, weights_.at(range.begin), bytes, current(bucket));
  }
  if (!host_owned_.empty()) ring_.finish_giving();
  compute.synchronize();
}

}  // namespace so
