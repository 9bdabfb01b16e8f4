#include "offload/engine_report.h"

#include <fmt/format.h>

#include <numeric>
#include <tuple>

namespace so {
namespace {

// Every counter. What a difference subtracts is what stands here, and a counter that does not stand here is a counter
// of which the sizes below know.
constexpr std::tuple host_counters{&HostCounters::speculated,
                                   &HostCounters::previewed,
                                   &HostCounters::committed_ahead,
                                   &HostCounters::updated_in_place,
                                   &HostCounters::updated_weights_first,
                                   &HostCounters::redone,
                                   &HostCounters::restored,
                                   &HostCounters::voided,
                                   &HostCounters::committed,
                                   &HostCounters::discarded,
                                   &HostCounters::adam_seconds,
                                   &HostCounters::gradient_wait_seconds,
                                   &HostCounters::save_wait_seconds};
constexpr std::tuple engine_counters{&EngineCounters::steps,
                                     &EngineCounters::skipped_steps,
                                     &EngineCounters::clipped_steps,
                                     &EngineCounters::committed_buckets,
                                     &EngineCounters::discarded_buckets,
                                     &EngineCounters::device_updates,
                                     &EngineCounters::streamed_units,
                                     &EngineCounters::save_wait_seconds,
                                     &EngineCounters::host,
                                     &EngineCounters::device_waits};

template <class Counters, class... Members>
constexpr std::size_t bytes_of(const std::tuple<Members Counters::*...>&) {
  return (sizeof(Members) + ...);
}
static_assert(bytes_of(host_counters) == sizeof(HostCounters), "a counter is missing in the list above");
static_assert(bytes_of(engine_counters) == sizeof(EngineCounters), "a counter is missing in the list above");

template <class Counters, class... Members>
void subtract(Counters& from, const Counters& counters, const std::tuple<Members Counters::*...>& members);

template <class Number>
void subtract(Number& from, const Number& counter) {
  from -= counter;
}
void subtract(WaitSeconds& from, const WaitSeconds& waits) {
  for (std::size_t i = 0; i < wait_reasons; ++i) from[i] -= waits[i];
}
void subtract(HostCounters& from, const HostCounters& counters) { subtract(from, counters, host_counters); }

template <class Counters, class... Members>
void subtract(Counters& from, const Counters& counters, const std::tuple<Members Counters::*...>& members) {
  std::apply([&](auto... member) { (subtract(from.*member, counters.*member), ...); }, members);
}

}  // namespace

EngineCounters since(const EngineCounters& now, const EngineCounters& before) {
  EngineCounters difference = now;
  subtract(difference, before, engine_counters);
  return difference;
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
