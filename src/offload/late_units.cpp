// The calls for late units, tables of a PyTorch model: its forward pass needs some of their rows first, and the others
// last or never.
#include <vector>

#include "base/delay_point.h"
#include "base/error.h"
#include "offload/engine.h"
#include "offload/host_optimizer.h"

namespace so {

void OffloadEngine::set_late(int unit) {
  SO_CHECK(settings_.placement.unit(unit).weights == ResidencyKind::callers, "unit {} cannot be late", unit);
  for (const Bucket& bucket : unit_buckets_.of(unit)) host_.set_late(bucket);
  chooser_.set_late(unit);
}

bool OffloadEngine::preview_rows(int parameter, std::int64_t width, std::span<const std::int64_t> rows,
                                 const void* gradients, void* weights) {
  const std::vector<std::int64_t> shape{static_cast<std::int64_t>(rows.size()), width};
  return host_.preview_rows(layout_.range(parameter), width, rows,
                            Tensor(const_cast<void*>(gradients), settings_.formats.gradients, shape),
                            Tensor(weights, settings_.formats.weights, shape));
}

void HostOptimizer::set_late(const Bucket& bucket) {
  const std::lock_guard lock(mutex_);
  SO_CHECK(!gradients_.moves(), "bucket {} is late, and its gradient moves", bucket.index());
  schedule_.set_late(bucket);
}

bool HostOptimizer::preview_rows(Range parameter, std::int64_t width, std::span<const std::int64_t> rows,
                                 Tensor gradients, Tensor weights) {
  AdamWSteps steps;
  {
    const std::lock_guard lock(mutex_);
    throw_error();
    if (!schedule_.late_closed()) return false;
    for (const Bucket& bucket : buckets_)
      SO_CHECK(common(bucket.range(), parameter).size() <= 0 || schedule_.is_late(bucket),
               "rows of bucket {}, which is no late one", bucket.index());
    steps = final_;
  }
  delay_point();
  // Until they are opened nobody touches the late buckets. The forward pass waits for these rows, and as urgently for
  // none of the buckets that stand in line.
  pool_.finish(
      pool_.begin_before_others(update_.preview_rows(buckets_, steps, parameter, width, rows, gradients, weights)));
  {
    const std::lock_guard lock(mutex_);
    schedule_.open_late();
  }
  changed_.notify_all();
  return true;
}

}  // namespace so
