#include "plan/placement/placement.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/quantities.h"
#include "offload/schedule/placement.h"

namespace so {
namespace {

constexpr int away_parts = 8;          // units away from the device are considered in this part of those that may
constexpr int coarse_splits = 20;      // of a deep model, looked at before those beside the best
constexpr double equal_share = 0.001;  // of a step: plans closer than this count as equal
struct Candidate {
  int device_units = 0;
  Residency residency;
  std::int64_t keep = -1;  // -1: no choice of activations fits
  std::size_t host_bytes = 0, device_short = 0, host_short = 0;
  double least_rank = 0;            // no schedule ranks better
  std::optional<SimulatedRun> run;  // at in.judged_at of the host's rates, once it was looked at
  bool estimated = false;
  std::int64_t undo_buckets = 0;
  StepEstimate estimate;  // of that run
  bool fits() const { return keep >= 0 && host_short == 0; }
};

// Finds the memory that a candidate takes and whether it fits, beside `others` on the device, but not yet the time of
// its step.
Candidate consider(const PlacementInputs& in, int device_units, Residency residency, std::size_t others = 0) {
  Candidate c;
  c.device_units = device_units;
  c.residency = residency;
  const StateMemory state = in.memory(device_units, residency);
  c.host_bytes = state.host_bytes;
  c.host_short = beyond(state.host_bytes, in.host_budget);
  c.device_short = std::numeric_limits<std::size_t>::max();
  const bool state_fits = c.host_short == 0;
  for (std::int64_t keep = 0; keep < std::ssize(in.keeps); ++keep) {
    const std::size_t short_by = beyond(state.device_bytes + others + in.activation_bytes(keep), in.device_budget);
    c.device_short = std::min(c.device_short, short_by);
    if (short_by > 0) continue;
    const std::size_t host_bytes = state.host_bytes + in.kept_on_host(keep);
    if (c.keep >= 0 && host_bytes >= c.host_bytes) continue;
    c.keep = keep;
    c.host_bytes = host_bytes;
    c.host_short = beyond(host_bytes, in.host_budget);
    if (c.fits() || !state_fits) break;
  }
  if (!c.fits()) return c;
  const SimulatedRun run = with_host_rates(simulated_run(in, device_units, c.keep, 0, residency), in.judged_at);
  c.least_rank = least_seconds(run) - run.device_update;
  return c;
}

// So many steps of a candidate are looked at, and the rank is then found to be no more than these parts above or below
// what they say: of 1,700 candidates of ten plans all but a hundredth were within half to four fifths of that.
struct Look {
  int steps;
  double above, below;
};
constexpr std::array looks{Look{3, 0.06, 0.25}, Look{4, 0.05, 0.09}, Look{6, 0.03, 0.03}};

const SimulatedRun& run_of(const PlacementInputs& in, Candidate& c) {
  if (!c.run) {
    c.undo_buckets = choose_undo_buckets(in, c.device_units, c.keep, c.host_bytes, c.residency);
    c.run = with_host_rates(simulated_run(in, c.device_units, c.keep, c.undo_buckets, c.residency), in.judged_at);
  }
  return *c.run;
}

void estimate(const PlacementInputs& in, Candidate& c) {
  if (std::exchange(c.estimated, true)) return;
  c.estimate = in.known_steps->estimate(run_of(in, c));
}

// Those of `candidates` that may be the best of them or count as equal to it, in order of their least ranks. A look may
// promise more than the next one bears out, so the best of those that were estimated always stays.
std::vector<Candidate*> shortlist(const PlacementInputs& in, std::vector<Candidate*> candidates) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate* a, const Candidate* b) { return a->least_rank < b->least_rank; });
  double known = std::numeric_limits<double>::infinity();  // the best does not rank higher, by estimates
  const Candidate* best = nullptr;                         // of these
  for (const Look& look : looks) {
    double limit = known;                             // and by what this look says, which the next one may not bear out
    std::vector<std::pair<Candidate*, double>> seen;  // with the least that their rank may be
    for (Candidate* c : candidates) {
      if (c->least_rank > limit && c != best) continue;
      const SimulatedRun& run = run_of(in, *c);
      const double rank = in.known_steps->seconds_after(run, look.steps) - run.device_update;
      if (!c->estimated && rank <= (1 + equal_share) * c->least_rank) estimate(in, *c);  // hardly any will be better
      if (c->estimated) {
        if (const double rank_of_equal = rank_of(c->estimate) + equal_share * c->estimate.seconds();
            rank_of_equal < known) {
          known = rank_of_equal;
          best = c;
        }
        limit = std::min(limit, known);
        seen.emplace_back(c, rank_of(c->estimate));
      } else {
        limit = std::min(limit, (1 + look.above) * rank);
        seen.emplace_back(c, (1 - look.below) * rank);
      }
    }
    candidates.clear();
    for (const auto& [c, least] : seen)
      if (least <= limit || c == best) candidates.push_back(c);
  }
  return candidates;
}

// Whether the user said how many units are not whole on the device.
bool is_forced(const PlacementInputs& in) { return in.ranks > 1 ? in.forced_gather : in.forced_stream; }

// With `part` of away_parts of the units that may not be whole on the device, or as many as the user asked for: they
// stream, and with several ranks they are gathered.
Residency with_part(const PlacementInputs& in, int device_units, Residency residency, int part) {
  const int units = static_cast<int>(in.units.size());
  const int most = in.ranks > 1 ? std::min(in.most_gathered, most_gathered_units(units))
                                : std::min(in.most_streamed, most_streamed_units(units, device_units));
  const int count = is_forced(in) ? most : (most * part + away_parts - 1) / away_parts;
  (in.ranks > 1 ? residency.gathered_units : residency.streamed_units) = count;
  return residency;
}

// Where what layers keep leaves the device too little for the page tables of places for new state, also what keeps
// less.
void add_candidate(const PlacementInputs& in, int device_units, Residency residency, std::vector<Candidate>& all) {
  const Candidate most = all.emplace_back(consider(in, device_units, residency));
  if (!most.fits()) return;
  const std::size_t tables = undo_tables(in, device_units, most.keep, most.host_bytes, residency);
  if (tables == 0) return;
  Candidate less = consider(in, device_units, residency, tables);
  if (less.fits() && less.keep != most.keep) all.push_back(std::move(less));
}

// All that may be with a split.
void add_candidates(const PlacementInputs& in, int device_units, std::vector<Candidate>& all) {
  for (Residency residency : in.residencies) {
    residency = with_part(in, device_units, residency, 0);
    if (is_possible(in, residency)) {
      const std::size_t first = all.size();
      add_candidate(in, device_units, residency, all);
      // Streaming makes room for activations and state, so it gains nothing where all of them are kept already.
      if (all[first].keep == 0) continue;
    }
    if (is_forced(in)) continue;
    for (int part = 1; part <= away_parts; ++part) {
      const Residency more = with_part(in, device_units, residency, part);
      if (more == residency) continue;
      residency = more;
      add_candidate(in, device_units, residency, all);
    }
  }
}

// The most on the device first; of one split, what is kept the most first. Of the splits of a deep model, some.
std::vector<Candidate> first_candidates(const PlacementInputs& in, int stride) {
  std::vector<Candidate> all;
  if (in.forced_device_units) {
    add_candidates(in, *in.forced_device_units, all);
    return all;
  }
  for (int d = static_cast<int>(in.units.size()); d >= 0; d = d == 0 ? -1 : std::max(0, d - stride))
    add_candidates(in, d, all);
  return all;
}

// With the splits between those that are there and next to one of `device_units`, or all that are not there.
void add_between(const PlacementInputs& in, int stride, std::optional<int> device_units, std::vector<Candidate>& all) {
  const auto is_there = [&](int d) {
    return std::any_of(all.begin(), all.end(), [&](const Candidate& c) { return c.device_units == d; });
  };
  const int units = static_cast<int>(in.units.size());
  const int first = device_units ? std::max(0, *device_units - stride + 1) : 0,
            last = device_units ? std::min(units, *device_units + stride - 1) : units;
  for (int d = last; d >= first; --d)
    if (!is_there(d)) add_candidates(in, d, all);
  std::stable_sort(all.begin(), all.end(),
                   [](const Candidate& a, const Candidate& b) { return a.device_units > b.device_units; });
}

// The first of those that rank within a thousandth of a step of the best; null if nothing fits. Only what could be that
// is simulated, by what it takes at the least.
Candidate* best_of(const PlacementInputs& in, std::vector<Candidate>& all) {
  std::vector<Candidate*> fitting;
  for (Candidate& c : all)
    if (c.fits()) fitting.push_back(&c);
  if (fitting.empty()) return nullptr;
  fitting = shortlist(in, std::move(fitting));
  SO_CHECK(!fitting.empty(), "none of {} placements is left", all.size());
  Candidate* best = nullptr;
  for (Candidate* c : fitting) {
    // A later candidate must be better by more than counts as equal.
    const double could_win = c->least_rank + (best && c > best ? equal_share * best->estimate.seconds() : 0);
    if (best && could_win > rank_of(best->estimate)) continue;
    estimate(in, *c);
    if (!best || rank_of(c->estimate) < rank_of(best->estimate)) best = c;
  }
  const double limit = rank_of(best->estimate) + equal_share * best->estimate.seconds();
  std::sort(fitting.begin(), fitting.end());
  for (Candidate* c : fitting) {
    if (c == best) break;
    if (c->least_rank > limit) continue;
    estimate(in, *c);
    if (rank_of(c->estimate) <= limit) return c;
  }
  return best;
}

[[noreturn]] void refuse(const PlacementInputs& in, const std::vector<Candidate>& candidates) {
  const auto device_short = [](const Candidate& a, const Candidate& b) { return a.device_short < b.device_short; };
  const auto host_short = [](const Candidate& a, const Candidate& b) { return a.host_short < b.host_short; };
  const Candidate &device = *std::min_element(candidates.begin(), candidates.end(), device_short),
                  &host = *std::min_element(candidates.begin(), candidates.end(), host_short);
  const std::string split = in.forced_device_units ? ", with the optimizer state split as asked"
                                                   : ", whatever the split of the optimizer state";
  if (device.device_short > 0)
    throw NothingFits(fmt::format("not enough memory on {}: {} short of {}{}", in.device_name,
                                  format_bytes(device.device_short), format_bytes(in.device_budget), split),
                      in.device_advice, device.device_units, device.residency);
  if (host.host_short > 0)
    throw NothingFits(fmt::format("not enough host memory: {} short of {}{}", format_bytes(host.host_short),
                                  format_bytes(in.host_budget), split),
                      in.host_advice, host.device_units, host.residency);
  // Each memory has splits that fit it, and no split fits both.
  const auto most =
      std::find_if(candidates.begin(), candidates.end(), [](const Candidate& c) { return c.device_short == 0; });
  throw NothingFits(fmt::format("not enough memory: with as much of the optimizer state on {} as fits there, the host "
                                "is {} short of {} for the rest",
                                in.device_name, format_bytes(most->host_short), format_bytes(in.host_budget)),
                    in.host_advice, most->device_units, most->residency);
}

std::int64_t elements_of(const PlacementInputs& in, int begin, int end) {
  std::int64_t n = 0;
  for (int u = begin; u < end; ++u) n += in.units[static_cast<std::size_t>(u)].elements;
  return n;
}

// `seconds`: of the chosen one's step at the measured rates.
std::string explain_split(const PlacementInputs& in, const Candidate& chosen, double seconds,
                          std::vector<Candidate>& all) {
  const int units = static_cast<int>(in.units.size()), d = chosen.device_units;
  const std::string what = describe_split(in, d);
  if (in.forced_device_units) return what + ", as asked";
  if (d == units) return what + ", where it fits";
  std::vector<Candidate*> others;
  for (Candidate& c : all)
    if (c.device_units == d + 1 && c.fits()) others.push_back(&c);
  Candidate* more = nullptr;
  for (Candidate* c : shortlist(in, std::move(others))) {
    estimate(in, *c);
    if (!more || rank_of(c->estimate) < rank_of(more->estimate)) more = c;
  }
  if (!more) return what + ": there is no memory for more on the device";
  const StepEstimate other = estimate_step(in, more->device_units, more->keep, more->undo_buckets, more->residency);
  return what + fmt::format(": more on the device would leave less for activations ({:.3f} s a step, not {:.3f})",
                            other.seconds(), seconds);
}

}  // namespace

std::string describe_split(const PlacementInputs& in, int d) {
  const int units = static_cast<int>(in.units.size());
  const double share = static_cast<double>(elements_of(in, d, units)) /
                       static_cast<double>(std::max<std::int64_t>(1, elements_of(in, 0, units)));
  std::string what = d == 0       ? "all on the host"
                     : d == units ? "all on the device"
                                  : fmt::format("{:.1f}% on the host, the rest on the device (units 0 to {} of {})",
                                                100 * share, d - 1, units);
  if (in.ranks > 1) what += fmt::format(", a slice of 1/{} with each GPU", in.ranks);
  return what;
}

ChosenPlan choose_placement(const PlacementInputs& in) {
  const int units = static_cast<int>(in.units.size());
  SO_CHECK(units > 0 && !in.keeps.empty() && !in.residencies.empty() && in.bucket_elements > 0 &&
               in.forced_device_units.value_or(0) <= units,
           "{} units, {} choices of activations, buckets of {}, {} units forced", units, in.keeps.size(),
           in.bucket_elements, in.forced_device_units.value_or(0));
  const int stride = std::max(1, units / coarse_splits);
  std::vector<Candidate> candidates = first_candidates(in, stride);
  const Candidate* best = best_of(in, candidates);
  if (!in.forced_device_units && stride > 1) {
    add_between(in, stride, best ? std::optional(best->device_units) : std::nullopt, candidates);
    best = best_of(in, candidates);
  }
  if (!best) refuse(in, candidates);

  const StepEstimate estimate = estimate_step(in, best->device_units, best->keep, best->undo_buckets, best->residency);
  ChosenPlan plan{.device_units = best->device_units,
                  .residency = best->residency,
                  .keep = best->keep,
                  .undo_buckets = best->undo_buckets,
                  .estimate = estimate,
                  .rank = rank_of(best->estimate),
                  .run = simulated_run(in, best->device_units, best->keep, best->undo_buckets, best->residency),
                  .why_split = explain_split(in, *best, estimate.seconds(), candidates),
                  .why_undo = {},
                  .why_residency = {},
                  .considered = std::ssize(candidates)};
  plan.simulated = std::count_if(candidates.begin(), candidates.end(), [](const Candidate& c) { return c.estimated; });
  const auto memory = [&](Residency residency) { return in.memory(best->device_units, residency).device_bytes; };
  if (const Residency r = best->residency; r != Residency{}) {
    std::vector<std::string> ways;
    if (r.casts_weights())
      ways.push_back(fmt::format(
          "{}layers whose optimizer state is on the GPU keep no bf16 weights: they are cast from the fp32 ones before "
          "each {}",
          in.ranks > 1 ? "gathered " : "", in.ranks > 1 ? "gather" : "use"));
    if (r.sends_masters())
      ways.push_back(
          "nor do those whose optimizer state is on the host: a slice of the fp32 ones travels to each GPU before each "
          "gather");
    if (r.moves_gradients())
      ways.push_back(in.micro_batches == 1
                         ? "gradients of layers whose optimizer state is on the host are moved there at once"
                         : "sums of gradients of layers whose optimizer state is on the host are kept there, and come "
                           "back for each micro-batch");
    if (r.streamed_units > 0)
      ways.push_back(fmt::format(
          "weights of {} of the {} layers whose optimizer state is on the host are streamed from host memory",
          r.streamed_units, most_streamed_units(units, best->device_units)));
    if (r.gathered_units > 0)
      ways.push_back(
          fmt::format("of the weights and gradients of {} of the {} layers each GPU keeps a slice of 1/{}, and the "
                      "weights are gathered before each use",
                      r.gathered_units, most_gathered_units(units), in.ranks));
    plan.why_residency =
        fmt::format("device memory saved: {}, {}", fmt::join(ways, "; "), format_bytes(beyond(memory({}), memory(r))));
  }
  if (in.schedule == Schedule::synchronous) {
    plan.why_undo = "AdamW on the host runs after backward (--mode zerooffload)";
  } else if (host_elements(plan.run) == 0) {
    plan.why_undo = "no optimizer state is on the host";
  } else {
    plan.why_undo = fmt::format(
        "AdamW on the host starts before the gradient norm is known, for up to {} buckets ({} of host memory); these "
        "updates are discarded if the step is clipped or skipped",
        best->undo_buckets, format_bytes(static_cast<std::size_t>(best->undo_buckets) * in.undo_place_bytes));
  }
  return plan;
}

namespace {

// The most device memory that state leaves for activations if it fits beside `host_bytes` of them on the host; none if
// it does not.
std::optional<std::size_t> most_left(const PlacementInputs& in, std::size_t host_bytes) {
  if (host_bytes > in.host_budget) return std::nullopt;
  const std::size_t host_budget = in.host_budget - host_bytes;
  const int units = static_cast<int>(in.units.size());
  std::optional<std::size_t> left;
  for (const Residency& residency : in.residencies)
    for (int part = 0; part <= (is_forced(in) ? 0 : away_parts); ++part) {
      if (!is_possible(in, with_part(in, 0, residency, part))) continue;
      const auto state = [&](int device_units) {
        return in.memory(device_units, with_part(in, device_units, residency, part));
      };
      // The fewest units for which the host has room.
      int first = 0, last = units;
      if (in.forced_device_units) first = last = *in.forced_device_units;
      while (first < last) {
        const int middle = first + (last - first) / 2;
        if (state(middle).host_bytes <= host_budget)
          last = middle;
        else
          first = middle + 1;
      }
      const StateMemory memory = state(first);
      if (memory.host_bytes > host_budget || memory.device_bytes > in.device_budget) continue;
      left = std::max(left.value_or(0), in.device_budget - memory.device_bytes);
    }
  return left;
}

}  // namespace

bool any_placement_fits(const PlacementInputs& in) {
  const std::int64_t count = std::ssize(in.keeps);
  if (const auto left = most_left(in, 0))
    for (std::int64_t keep = count - 1; keep >= 0; --keep)
      if (in.kept_on_host(keep) == 0 && in.activation_bytes(keep) <= *left) return true;
  // Of the choices that keep something on the host, those that take less of the device than all with less there.
  std::map<std::size_t, std::size_t> device_bytes;  // by the host's
  for (std::int64_t keep = 0; keep < count; ++keep) {
    const std::size_t bytes = in.activation_bytes(keep);
    std::size_t& least = device_bytes.try_emplace(in.kept_on_host(keep), bytes).first->second;
    least = std::min(least, bytes);
  }
  std::vector<std::pair<std::size_t, std::size_t>> worth_it;
  for (const auto& sizes : device_bytes)
    if (worth_it.empty() || sizes.second < worth_it.back().second) worth_it.push_back(sizes);
  return std::any_of(worth_it.rbegin(), worth_it.rend(), [&](const auto& sizes) {
    const auto left = most_left(in, sizes.first);
    return left && sizes.second <= *left;
  });
}

}  // namespace so
