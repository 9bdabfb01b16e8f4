#include "offload/engine_report.h"

#include <fmt/format.h>

#include <numeric>

namespace so {

EngineCounters since(const EngineCounters& now, const EngineCounters& before) {
  EngineCounters d = now;
  d.steps -= before.steps;
  d.skipped_steps -= before.skipped_steps;
  d.clipped_steps -= before.clipped_steps;
  d.committed_buckets -= before.committed_buckets;
  d.discarded_buckets -= before.discarded_buckets;
  d.device_updates -= before.device_updates;
  d.streamed_units -= before.streamed_units;
  d.save_wait_seconds -= before.save_wait_seconds;
  for (std::size_t i = 0; i < wait_reasons; ++i) d.device_waits[i] -= before.device_waits[i];
  const HostCounters& b = before.host;
  d.host.speculated -= b.speculated;
  d.host.previewed -= b.previewed;
  d.host.committed_ahead -= b.committed_ahead;
  d.host.updated_in_place -= b.updated_in_place;
  d.host.updated_weights_first -= b.updated_weights_first;
  d.host.redone -= b.redone;
  d.host.restored -= b.restored;
  d.host.voided -= b.voided;
  d.host.committed -= b.committed;
  d.host.discarded -= b.discarded;
  d.host.adam_seconds -= b.adam_seconds;
  d.host.gradient_wait_seconds -= b.gradient_wait_seconds;
  d.host.save_wait_seconds -= b.save_wait_seconds;
  return d;
}

std::string describe_schedule(const EngineCounters& counters) {
  const HostCounters& h = counters.host;
  if (h.speculated + h.previewed + h.updated_in_place + h.updated_weights_first + h.restored + h.discarded == 0)
    return {};
  return fmt::format(
      "buckets of AdamW on the host: before the gradient norm was known {} in full, {} weights only, of which {} were "
      "kept, {} discarded, {} rolled back; after it {} in full, {} weights first",
      h.speculated, h.previewed, h.committed_ahead, h.voided, h.restored, h.updated_in_place, h.updated_weights_first);
}

std::string describe_waits(const EngineCounters& counters) {
  const auto waited = [&](WaitReason reason) { return counters.device_waits[static_cast<std::size_t>(reason)]; };
  return fmt::format(
      "device idle {:.4f} s: waiting for AdamW on the host {:.4f}, transfers {:.4f}, "
      "streamed weights {:.4f}, a gradient buffer {:.4f}, the gradient norm {:.4f}; "
      "host: AdamW {:.4f}, waiting for gradients {:.4f}, for a checkpoint {:.4f}",
      total(counters.device_waits), waited(WaitReason::host), waited(WaitReason::link), waited(WaitReason::stream),
      waited(WaitReason::gradient), waited(WaitReason::verdict), counters.host.adam_seconds,
      counters.host.gradient_wait_seconds, counters.save_wait_seconds);
}

double total(const WaitSeconds& waits) { return std::accumulate(waits.begin(), waits.end(), 0.0); }

}  // namespace so
