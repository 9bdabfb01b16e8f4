// The calls for late units, embeddings: the forward pass needs some of their rows first, and the others last or never.
#include <optional>
#include <utility>
#include <vector>

#include "base/delay_point.h"
#include "base/error.h"
#include "device/trace.h"
#include "offload/engine.h"
#include "offload/host_optimizer.h"

namespace so {

void OffloadEngine::set_late(int unit) {
  SO_CHECK(!settings_.weight_places.empty() && unit >= settings_.device_units, "unit {} cannot be late", unit);
  mark_late(unit);
}

void OffloadEngine::mark_late(int unit) {
  for (const Bucket& bucket : buckets_of(unit)) host_.set_late(bucket);
  late_.resize(unit_of_.size(), 0);
  for (std::size_t i = 0; i < late_.size(); ++i)
    if (unit_of_[i] == unit) late_[i] = 1;
  passes_.forget_need(unit);  // but for some rows
  shares_ = BucketShares(passes_.shares(), unit_of_);
}

bool OffloadEngine::preview_rows(int parameter, std::int64_t width, std::span<const std::int64_t> rows,
                                 const void* gradients, void* weights) {
  const std::vector<std::int64_t> shape{static_cast<std::int64_t>(rows.size()), width};
  std::optional<ThreadPool::Job> job = host_.begin_rows(
      layout_.range(parameter), width, rows, Tensor(const_cast<void*>(gradients), settings_.formats.gradients, shape),
      Tensor(weights, settings_.formats.weights, shape));
  if (!job) return false;
  host_.finish_rows(std::move(*job));
  host_.open_late();
  return true;
}

// The first pass after a verdict reads single rows. When the model has enqueued that, the update of all may begin, and
// further passes wait for it.
void OffloadEngine::require_rows(int unit, std::span<const std::int32_t> rows, Stream& stream) {
  if (!late_rows_ || unit != 0 || rows.empty() || !host_.late_waits()) return require_weights(unit, stream);
  const TraceSpan span("bring embedding rows");
  waits_.begin(stream, WaitReason::host);
  late_rows_->bring(rows, *landed_.front(), stream);
  waits_.end(stream);
  weights_.required(unit);
  reads_rows_ = true;
}

void OffloadEngine::rows_are_read(Stream& stream) {
  reads_rows_ = false;
  stream.record(*rows_read_);
  host_.open_late(rows_read_.get());
}

void HostOptimizer::set_late(const Bucket& bucket) {
  const std::lock_guard lock(mutex_);
  schedule_.set_late(bucket);
  entry(bucket).late = true;
}

bool HostOptimizer::late_waits() const {
  const std::lock_guard lock(mutex_);
  throw_error();
  return late_may_not_begin();
}

std::optional<ThreadPool::Job> HostOptimizer::begin_rows(Range parameter, std::int64_t width,
                                                         std::span<const std::int64_t> rows, Tensor gradients,
                                                         Tensor weights) {
  AdamWSteps steps;
  {
    const std::lock_guard lock(mutex_);
    throw_error();
    if (!late_may_not_begin()) return std::nullopt;
    for (const Bucket& bucket : buckets_)
      SO_CHECK(common(bucket.range(), parameter).size() <= 0 || schedule_.is_late(bucket),
               "rows of bucket {}, which is no late one", bucket.index());
    steps = final_;
  }
  delay_point();
  // Until they are opened nobody touches the late buckets. The forward pass waits for these rows, and as urgently for
  // none of the buckets that stand in line.
  return pool_.begin_before_others(update_.preview_rows(buckets_, steps, parameter, width, rows, gradients, weights));
}

void HostOptimizer::open_late(Event* read) {
  {
    const std::lock_guard lock(mutex_);
    store_late();
    late_read_ = read;
    if (read == nullptr) schedule_.open_late();
  }
  changed_.notify_all();
}

void HostOptimizer::store_late() {
  for (const int index : owned()) {
    const Entry& e = entry(index);
    if (e.stored && e.late && bucket(index).state() == BucketState::deferred)
      ring_.fetch(e.stored, gradient_of(bucket(index)), *e.complete, *e.fetched);
  }
}

void HostOptimizer::open_late_if_read() {
  if (late_read_ == nullptr || !late_read_->done()) return;
  late_read_ = nullptr;
  schedule_.open_late();
  changed_.notify_all();
}

void HostOptimizer::require_late_weights(Stream& stream) {
  for (const int index : owned())
    if (entry(index).late) stream.wait(*entry(index).current);
}

}  // namespace so
