#include "plan/placement/step_estimate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/host_memory.h"
#include "offload/schedule/placement.h"
#include "plan/placement/judge.h"
#include "plan/simulate/device_program.h"

namespace so {
namespace {

std::int64_t buckets_of(std::int64_t elements, std::int64_t bucket) { return (elements + bucket - 1) / bucket; }

// The part of `elements` that the first rank owns, but for what slices are aligned to.
std::int64_t own_part(const PlacementInputs& in, std::int64_t elements) { return (elements + in.ranks - 1) / in.ranks; }

// The seconds of `calls` collectives in which `element_bytes` travel for each of all elements.
double collective_seconds(const PlacementInputs& in, std::int64_t calls, std::int64_t elements, double element_bytes) {
  if (in.ranks == 1) return 0;
  const double received = static_cast<double>(elements) * element_bytes * (1 - 1.0 / in.ranks);
  return static_cast<double>(calls) * in.rates.collectives.seconds + received / in.rates.collectives.bytes;
}
// Each of a unit's buckets is reduced by itself.
double reduce_seconds(const PlacementInputs& in, std::int64_t elements) {
  return collective_seconds(in, buckets_of(elements, in.bucket_elements), elements, in.reduced_bytes);
}
double gather_seconds(const PlacementInputs& in, std::int64_t elements) {
  const std::int64_t buckets = buckets_of(elements, in.bucket_elements);
  return collective_seconds(in, in.gathers_together ? std::min<std::int64_t>(buckets, 1) : buckets, elements,
                            in.bytes.stored);
}

// The unit's work waits for them: nothing of it goes on beside.
double exchange_seconds(const MachineRates& rates, double exchanges, double received) {
  return exchanges * rates.sequence.seconds + received / rates.sequence.bytes;
}

}  // namespace

KnownSteps::Steps& KnownSteps::of(const SimulatedRun& run) {
  Steps& known = steps_[run];
  if (!known.simulator && !known.estimate) known.simulator = std::make_unique<Simulator>(run);
  return known;
}

double KnownSteps::seconds_after(const SimulatedRun& run, int steps) {
  Steps& known = of(run);
  if (known.estimate) return known.estimate->seconds();
  while (known.simulator->played() < steps) known.simulator->step();
  return known.simulator->last_seconds();
}

const StepEstimate& KnownSteps::estimate(const SimulatedRun& run) {
  Steps& known = of(run);
  if (known.estimate) return *known.estimate;
  const SimulatedStep step = std::exchange(known.simulator, nullptr)->settle();
  return known.estimate.emplace(StepEstimate{.gpu = step.device,
                                             .device_update = run.device_update,
                                             .host = step.host_bytes / run.host_memory,
                                             .waits = step.waits,
                                             .exposed = std::accumulate(step.waits.begin(), step.waits.end(), 0.0),
                                             .speculated_elements = step.speculated,
                                             .previewed_elements = step.previewed,
                                             .over_link_elements = step.over_link,
                                             .times = step.times,
                                             .host_time = step.host,
                                             .collectives = step.collectives,
                                             .collective_waits = step.collective_waits});
}

double host_elements(const SimulatedRun& run) {
  double n = 0;
  for (std::size_t u = 0; u < run.units.size(); ++u)
    if (run.placement.on_host(static_cast<int>(u))) n += static_cast<double>(run.units[u].elements);
  return n;
}

double least_seconds(const SimulatedRun& run) {
  const Placement& placement = run.placement;
  const auto micro_batches = static_cast<double>(run.micro_batches);
  // A forward pass brings all that streams or is gathered; in the passes that follow, what is still there is not
  // brought again.
  const auto copies_of = [&](int units, int places) {
    const double again = units == 0 ? 0 : 1 - static_cast<double>(std::min(places, units)) / units;
    return 1 + (2 * micro_batches - 1) * again;
  };
  const double copies = copies_of(placement.streamed(), stream_places),
               gather_copies = copies_of(placement.gathered(), gather_places);
  double pass = 0, to_device = 0, to_host = 0, reduce = 0, gather = 0, sums = 0;
  int moved = 0;
  for (std::size_t u = 0; u < run.units.size(); ++u) {
    const UnitPlacement& row = placement.units[u];
    const SimulatedUnit& unit = run.units[u];
    const Traffic traffic = traffic_of(row, {unit.elements, unit.frozen}, run.bytes);
    pass += unit.first_forward();
    reduce += (row.sliced ? micro_batches : 1) * unit.reduce;
    gather += (is_gathered(row.weights) ? gather_copies : 1) * unit.gather;
    if (row.moved && static_cast<int>(u) >= run.first_trained_unit) sums += traffic.sum * (micro_batches - 1), ++moved;
    to_device += traffic.weights + traffic.use * (is_gathered(row.weights) ? gather_copies : copies);
    to_host += traffic.gradients;
  }
  pass += backward_seconds_of(run);
  to_host += sums;
  // The sum of a unit that has its slot alone stays there.
  if (moved >= 2 * (placement.ranks > 1 ? slice_slots : gradient_slots)) to_device += sums;
  const double owned = host_elements(run), update = run.bytes.update();
  const double all = run.device_update + micro_batches * pass;
  if (placement.over_link) {
    // Whatever share of it the link takes, it and the host can do no more than each alone, and no update takes less.
    const double over_link = 2 * run.bytes.state;
    return std::max({all, reduce, gather, owned / (run.host_adamw / update + run.link_both / over_link),
                     owned * std::min(update, over_link) / run.host_memory});
  }
  return std::max({all, to_host / run.link_to_host, to_device / run.link_to_device,
                   (to_host + to_device) / run.link_both, reduce, gather, owned * update / run.host_adamw,
                   (owned * update + to_host + to_device) / run.host_memory});
}

CastSide choose_cast(const MachineRates& r, double state_bytes) {
  constexpr double narrow = 2, wide = 4;
  const auto seconds = [&](double size, double adamw) {
    // Gradient and weight pass through the host's memory once more on their way.
    return std::max({size / r.link_to_host, size / r.link_to_device, (2 * state_bytes + 2 * size) / adamw,
                     (2 * state_bytes + 4 * size) / r.host_memory});
  };
  return seconds(wide, r.host_adamw_wide) < (1 - Judge().worth_it) * seconds(narrow, r.host_adamw) ? CastSide::device
                                                                                                   : CastSide::host;
}

bool is_possible(const PlacementInputs& in, const Counts& counts) {
  if (in.ranks == 1) return !counts.send_masters || counts.streamed_units > 0;
  return counts.gathered_units > 0 || (!counts.cast_weights && !counts.send_masters);
}

namespace {

// The placement of such a run; a rank's buckets are slices of those that are asked for.
Placement place(const PlacementInputs& in, const Choice& choice) {
  std::vector<Trained> trained;
  for (const UnitWork& unit : in.units)
    trained.push_back(unit.elements == 0 ? Trained::none : unit.frozen_elements == 0 ? Trained::all : Trained::some);
  const Recomputation& again = in.keeps[static_cast<std::size_t>(choice.keep)];
  return {.units = make_rows(trained, in.ranks, choice, again.inputs),
          .ranks = in.ranks,
          .schedule = in.schedule,
          .cast = in.cast,
          .over_link = choice.over_link,
          .bucket_elements = own_part(in, in.bucket_elements),
          .spare_buckets = choice.spare_buckets};
}

}  // namespace

SimulatedRun simulated_run(const PlacementInputs& in, const Choice& choice) {
  const MachineRates& r = in.rates;
  const Recomputation& again = in.keeps[static_cast<std::size_t>(choice.keep)];
  SimulatedRun run{.placement = place(in, choice),
                   .units = {},
                   .first_trained_unit = in.first_trained_unit,
                   .micro_batches = in.micro_batches,
                   .bytes = in.bytes,
                   .link_to_host = r.link_to_host,
                   .link_to_device = r.link_to_device,
                   .host_memory = r.host_memory,
                   .host_adamw = r.host_adamw,
                   .link_both = r.link_both};
  for (std::size_t u = 0; u < in.units.size(); ++u) {
    const UnitWork& unit = in.units[u];
    SimulatedUnit s{
        .elements = own_part(in, unit.elements),
        .forward = forward_seconds(unit, r) + exchange_seconds(r, unit.forward_exchanges, unit.forward_received),
        .backward = backward_seconds(unit, r) + again.flops[u] / r.gemm_flops +
                    again.device_bytes[u] / r.device_memory +
                    exchange_seconds(r, unit.backward_exchanges, unit.backward_received),
        .reduce = reduce_seconds(in, unit.elements),
        .gather = gather_seconds(in, unit.elements + unit.frozen_elements),
        .frozen = unit.frozen_elements};
    // Copies of what is kept on the host go beside the unit's work.
    if (!again.link_bytes.empty()) {
      s.input_to_host = std::max(0.0, again.link_bytes[u] / r.link_to_host - s.forward);
      s.backward = std::max(s.backward, again.link_bytes[u] / r.link_to_device);
    }
    const UnitPlacement& row = run.placement.units[u];
    const double cast = traffic_of(row, {s.elements, s.frozen}, run.bytes).cast / r.device_memory;
    if (is_gathered(row.weights)) {
      s.gather += cast;
    } else {
      s.forward += cast;
      s.backward += cast;
    }
    if (row.owner == Owner::device)
      run.device_update +=
          static_cast<double>(s.elements) * run.bytes.update() / (r.efficiencies.device_adamw * r.device_memory);
    run.units.push_back(s);
  }
  return run;
}

const StepEstimate& estimate_step(const PlacementInputs& in, const Choice& choice, double host) {
  return in.known_steps->estimate(with_host_rates(simulated_run(in, choice), host));
}

std::int64_t spare_candidates(const PlacementInputs& in, int device_units) {
  if (in.schedule == Schedule::synchronous) return 0;
  std::int64_t buckets = 0;
  for (std::size_t u = static_cast<std::size_t>(device_units); u < in.units.size(); ++u)
    buckets += buckets_of(in.units[u].elements, in.bucket_elements);
  return buckets;
}

namespace {

// As choose_spare_buckets(), but for the device's memory.
std::int64_t wanted_spare_buckets(const PlacementInputs& in, const Choice& choice, std::size_t host_bytes) {
  std::int64_t places = spare_candidates(in, choice.device_units);
  if (places == 0) return 0;
  if (in.spare_place_bytes > 0)
    places = std::min(places, static_cast<std::int64_t>(beyond(in.spare_budget, host_bytes) / in.spare_place_bytes));
  const SimulatedRun run = simulated_run(in, choice);
  const double full = in.bytes.update(),
               update = std::max(full / in.rates.host_adamw,  // an element
                                 (full + in.bytes.gradient + in.bytes.weight) / in.rates.host_memory);
  // The host may be quicker in the run than it was measured, and state over the link has half of it beside gradients.
  const double link = std::min(in.rates.link_to_host, in.rates.link_to_device) /
                      (2 * (in.bytes.state + in.bytes.gradient)),
               rate = Judge::quicker_host / update + (choice.over_link ? link : 0);
  const double fillable = std::min(host_elements(run), backward_seconds_of(run) * rate);
  return std::min(places,
                  static_cast<std::int64_t>(std::ceil(fillable / static_cast<double>(run.placement.bucket_elements))));
}

// Returns what one place takes. State is pinned where it travels.
std::size_t spare_table_bytes(const PlacementInputs& in, const Choice& choice) {
  return choice.over_link || choice.send_masters ? in.spare_table_bytes : 0;
}

}  // namespace

std::int64_t choose_spare_buckets(const PlacementInputs& in, const Choice& choice, std::size_t host_bytes) {
  const std::int64_t wanted = wanted_spare_buckets(in, choice, host_bytes);
  const std::size_t tables = spare_table_bytes(in, choice);
  if (wanted == 0 || tables == 0) return wanted;
  const std::size_t taken = in.memory(choice).device_bytes + in.activation_bytes(choice.keep);
  return std::min(wanted, static_cast<std::int64_t>(beyond(in.device_budget, taken) / tables));
}

std::size_t spare_tables(const PlacementInputs& in, const Choice& choice, std::size_t host_bytes) {
  const std::size_t tables = spare_table_bytes(in, choice);
  return tables == 0 ? 0 : static_cast<std::size_t>(wanted_spare_buckets(in, choice, host_bytes)) * tables;
}

SimulatedRun with_host_rates(SimulatedRun run, double part) {
  run.host_adamw *= part;
  run.host_memory *= part;
  return run;
}

double rank_of(const StepEstimate& estimate) { return estimate.seconds() - estimate.device_update; }

}  // namespace so
