#include "offload/engine_report.h"

#include <fmt/format.h>

#include <array>
#include <numeric>
#include <tuple>

namespace so {
namespace {

// All counters that since() subtracts. The static_asserts fail if one is missing.
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
                                   &HostCounters::over_link,
                                   &HostCounters::seconds};
constexpr std::tuple engine_counters{&EngineCounters::steps,
                                     &EngineCounters::skipped_steps,
                                     &EngineCounters::clipped_steps,
                                     &EngineCounters::committed_buckets,
                                     &EngineCounters::discarded_buckets,
                                     &EngineCounters::device_updates,
                                     &EngineCounters::streamed_units,
                                     &EngineCounters::gathered_units,
                                     &EngineCounters::sums_brought,
                                     &EngineCounters::seconds,
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
template <std::size_t count>
void subtract(std::array<double, count>& from, const std::array<double, count>& seconds) {
  for (std::size_t i = 0; i < count; ++i) from[i] -= seconds[i];
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
      "kept, {} discarded, {} rolled back; after it {} in full, {} weights first; by the device over the link {}",
      h.speculated, h.previewed, h.committed_ahead, h.voided, h.restored, h.updated_in_place, h.updated_weights_first,
      h.over_link);
}

StepOverlap overlap_of(const EngineCounters& difference) {
  return {.seconds = difference.seconds, .device_idle = difference.device_waits, .host = difference.host.seconds};
}

double total(const WaitSeconds& waits) { return std::accumulate(waits.begin(), waits.end(), 0.0); }

}  // namespace so
