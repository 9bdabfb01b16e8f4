#include "offload/engine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>

#include "base/error.h"
#include "base/log.h"

namespace so {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::size_t flat_bytes(const ParameterLayout& layout, DType dtype) {
  return static_cast<std::size_t>(layout.elements()) * size_of(dtype);
}

// Two: while one bucket is updated, the next one's gradient arrives and the one before leaves.
constexpr int slot_count = 2;

}  // namespace

struct OffloadEngine::Slot {
  Buffer gradient, weights;
  std::unique_ptr<Event> gradient_here, weights_gone;
};

OffloadEngine::OffloadEngine(Device& device, Ops& ops, ThreadPool& host_pool, Communicator& ranks,
                             const ParameterLayout& layout, const EngineSettings& settings)
    : device_(device),
      ops_(ops),
      host_pool_(host_pool),
      ranks_(ranks),
      layout_(layout),
      settings_(settings),
      weights_(device, layout, settings.compute),
      gradients_(device.allocate(MemoryKind::device, flat_bytes(layout, DType::f32), "gradients")),
      stats_(device.allocate(MemoryKind::device, sizeof(GradStats) * static_cast<std::size_t>(layout.count()),
                             "gradient stats")),
      stats_host_(device.allocate(MemoryKind::pinned, stats_.bytes(), "gradient stats")),
      master_(device.allocate(MemoryKind::pageable, flat_bytes(layout, DType::f32), "master weights")),
      m_(device.allocate(MemoryKind::pageable, flat_bytes(layout, DType::f32), "first moments")),
      v_(device.allocate(MemoryKind::pageable, flat_bytes(layout, DType::f32), "second moments")),
      written_(static_cast<std::size_t>(layout.count()), false),
      to_host_(device.create_stream("to host")),
      to_device_(device.create_stream("to device")),
      gradients_complete_(device.create_event()),
      gate_(0) {
  std::int64_t largest = 0;
  for (const Range range : cut_buckets(layout, settings.bucket_elements)) {
    buckets_.emplace_back(static_cast<int>(buckets_.size()), range, Owner::host);
    weights_back_.push_back(device.create_event());
    largest = std::max(largest, range.size());
  }
  gate_.resize(static_cast<int>(buckets_.size()));
  for (int i = 0; i < slot_count; ++i) {
    Slot slot;
    slot.gradient =
        device.allocate(MemoryKind::pinned, static_cast<std::size_t>(largest) * sizeof(float), "gradient ring");
    slot.weights = device.allocate(MemoryKind::pinned, static_cast<std::size_t>(largest) * size_of(settings.compute),
                                   "weight ring");
    slot.gradient_here = device.create_event();
    slot.weights_gone = device.create_event();
    slots_.push_back(std::move(slot));
  }
  if (!device.backed()) return;
  // First touch by the threads that will update these pages; padding and moments start at zero.
  const std::int64_t grain = std::max<std::int64_t>(1 << 16, layout.elements() / (8 * host_pool.size()));
  host_pool.parallel_for(layout.elements(), grain, [&](std::int64_t begin, std::int64_t end) {
    for (Buffer* buffer : {&master_, &m_, &v_})
      std::memset(static_cast<float*>(buffer->data()) + begin, 0,
                  static_cast<std::size_t>(end - begin) * sizeof(float));
  });
}

// Copies may still be on their way to or from the staging memory, which goes before the streams do.
OffloadEngine::~OffloadEngine() {
  for (Stream* stream : {to_host_.get(), to_device_.get()}) {
    try {
      stream->synchronize();
    } catch (const std::exception& error) {
      log_error("{}: {}", stream->name(), error.what());
    }
  }
}

bool OffloadEngine::meets(const Bucket& bucket, Range range) const {
  return bucket.range().begin < range.end && range.begin < bucket.range().end;
}

void OffloadEngine::require_weights(int unit, Stream& stream) {
  for (const Bucket& bucket : buckets_)
    if (bucket.state() == BucketState::returning && meets(bucket, layout_.unit_range(unit)))
      stream.wait(*weights_back_[static_cast<std::size_t>(bucket.index())]);
}

GradientSink::Target OffloadEngine::gradient(int first, int count) {
  Target target{layout_.view(gradients_.data(), DType::f32, first, count),
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
  for (int p = first; p < last; ++p) ops_.grad_stats(stream, stats + p, layout_.view(gradients_.data(), DType::f32, p));
}

void OffloadEngine::send_gradient(const Bucket& bucket, Slot& slot) {
  const Range range = bucket.range();
  to_host_->copy(slot.gradient.data(), static_cast<const float*>(gradients_.data()) + range.begin,
                 static_cast<std::size_t>(range.size()) * sizeof(float));
  to_host_->record(*slot.gradient_here);
}

void OffloadEngine::update(Bucket& bucket, Slot& slot, const AdamWStep& step) {
  auto start = std::chrono::steady_clock::now();
  slot.gradient_here->synchronize();
  slot.weights_gone->synchronize();
  counters_.gradient_wait_seconds += seconds_since(start);
  counters_.save_wait_seconds += gate_.wait(bucket.index());

  start = std::chrono::steady_clock::now();
  const std::int64_t base = bucket.range().begin;
  for (const ParameterLayout::Run& run : layout_.runs(bucket.range())) {
    const std::int64_t begin = run.range.begin, local = begin - base;
    const auto n = static_cast<std::size_t>(run.range.size());
    const AdamWState state{master().data() + begin, first_moment().data() + begin, second_moment().data() + begin};
    const std::span<const float> gradient(static_cast<const float*>(slot.gradient.data()) + local, n);
    WeightSpan out;
    if (settings_.compute == DType::bf16)
      out = std::span<bf16>(static_cast<bf16*>(slot.weights.data()) + local, n);
    else
      out = std::span<float>(static_cast<float*>(slot.weights.data()) + local, n);
    adamw_update_parallel(host_pool_, step, run.decay, gradient, state, state, out);
  }
  counters_.adam_seconds += seconds_since(start);
}

void OffloadEngine::return_weights(Bucket& bucket, Slot& slot) {
  const Range range = bucket.range();
  to_device_->copy(weights_.at(range.begin), slot.weights.data(),
                   static_cast<std::size_t>(range.size()) * size_of(settings_.compute));
  to_device_->record(*slot.weights_gone);
  to_device_->record(*weights_back_[static_cast<std::size_t>(bucket.index())]);
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
  if (!device_.backed()) {
    for (Bucket& bucket : buckets_) bucket.discard(), bucket.settle();
    return {};
  }
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
  const auto slot_of = [&](std::size_t bucket) -> Slot& { return slots_[bucket % slots_.size()]; };
  send_gradient(buckets_.front(), slot_of(0));
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    // The slot of the next bucket held the gradient of the one before this, whose update is done.
    if (b + 1 < buckets_.size()) send_gradient(buckets_[b + 1], slot_of(b + 1));
    update(buckets_[b], slot_of(b), step);
    buckets_[b].commit();
    ++counters_.committed_buckets;
    return_weights(buckets_[b], slot_of(b));
    buckets_[b].depart();
  }
  return verdict;
}

void OffloadEngine::upload_weights() {
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    Slot& slot = slots_[b % slots_.size()];
    slot.weights_gone->synchronize();
    const Range range = buckets_[b].range();
    const float* from = master().data() + range.begin;
    host_pool_.parallel_for(range.size(), 1 << 16, [&](std::int64_t begin, std::int64_t end) {
      if (settings_.compute == DType::f32)
        std::memcpy(static_cast<float*>(slot.weights.data()) + begin, from + begin,
                    static_cast<std::size_t>(end - begin) * sizeof(float));
      else
        for (std::int64_t i = begin; i < end; ++i) static_cast<bf16*>(slot.weights.data())[i] = bf16(from[i]);
    });
    return_weights(buckets_[b], slot);
  }
  to_device_->synchronize();
}

}  // namespace so
