#include "plan/placement/search.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "base/host_memory.h"
#include "offload/schedule/placement.h"

namespace so {
namespace {

constexpr int away_parts = 8;  // units away from the device are considered in this part of those that may

// Finds the memory that a choice takes and whether it fits, beside `others` on the device, but not yet the time of its
// step.
Candidate consider(const PlacementInputs& in, const Choice& choice, const Judge& judge, std::size_t others = 0) {
  Candidate c{.choice = choice};
  const StateMemory state = in.memory(choice);
  const bool state_fits = state.host_bytes <= in.host_budget;
  c.host_short = beyond(state.host_bytes, in.host_budget);
  std::optional<std::size_t> host_bytes;  // with what is kept there, of the first choice that fits the device, or less
  for (std::int64_t keep = 0; keep < std::ssize(in.keeps) && !c.fits; ++keep) {
    const std::size_t short_by = beyond(state.device_bytes + others + in.activation_bytes(keep), in.device_budget);
    c.device_short = std::min(c.device_short, short_by);
    const std::size_t bytes = state.host_bytes + in.kept_on_host(keep);
    if (short_by > 0 || (host_bytes && bytes >= *host_bytes)) continue;
    host_bytes = bytes;
    c.choice.keep = keep;
    c.host_short = beyond(bytes, in.host_budget);
    c.fits = c.host_short == 0;
    if (!state_fits && !in.one_memory) break;  // in one memory what keeps less is short of less
  }
  if (!c.fits) return c;
  c.choice.spare_buckets = choose_spare_buckets(in, c.choice, *host_bytes);
  c.least = judge.least_score(in, c.choice);
  return c;
}

// Whether the user said how many units are not whole on the device.
bool is_forced(const PlacementInputs& in) { return in.ranks > 1 ? in.forced_gather : in.forced_stream; }

// With `part` of away_parts of the units that may not be whole on the device, or as many as the user asked for: they
// stream, and with several ranks they are gathered.
Choice with_part(const PlacementInputs& in, int device_units, const Counts& residency, int part) {
  Choice choice{residency, in.over_link == Toggle::on};
  choice.device_units = device_units;
  const int units = static_cast<int>(in.units.size());
  const int most = in.ranks > 1 ? std::min(in.most_gathered, most_gathered_units(units))
                                : std::min(in.most_streamed, most_streamed_units(units, device_units));
  const int count = is_forced(in) ? most : (most * part + away_parts - 1) / away_parts;
  (in.ranks > 1 ? choice.gathered_units : choice.streamed_units) = count;
  return choice;
}

// Where what layers keep leaves the device too little for the page tables of places for new state, also what keeps
// less.
void add_candidate(const PlacementInputs& in, const Choice& choice, const Judge& judge, std::vector<Candidate>& all) {
  const Candidate most = all.emplace_back(consider(in, choice, judge));
  if (!most.fits) return;
  const std::size_t host_bytes = in.memory(choice).host_bytes + in.kept_on_host(most.choice.keep),
                    tables = spare_tables(in, most.choice, host_bytes);
  if (tables > 0)
    if (Candidate less = consider(in, choice, judge, tables); less.fits && less.choice.keep != most.choice.keep)
      all.push_back(std::move(less));
}

}  // namespace

double Judge::price(const PlacementInputs& in, const Choice& choice) const {
  int costs = choice.over_link ? 1 : 0;
  if (choice.send_masters) ++costs;
  if (choice.move_gradients && in.micro_batches > 1) ++costs;
  return 1 + worth_it * costs;
}

double Judge::least_score(const PlacementInputs& in, const Choice& choice) const {
  const SimulatedRun run = with_host_rates(simulated_run(in, choice), slower_host);
  return price(in, choice) * (least_seconds(run) - run.device_update);
}

double Judge::first_score(const PlacementInputs& in, const Choice& choice) const {
  const SimulatedRun run = with_host_rates(simulated_run(in, choice), slower_host);
  return price(in, choice) * (in.known_steps->seconds_after(run, first_steps) - run.device_update);
}

double Judge::score(const PlacementInputs& in, const Choice& choice) const {
  double sum = 0;
  for (const double host : hosts) sum += rank_of(estimate_step(in, choice, host));
  return price(in, choice) * sum / static_cast<double>(hosts.size());
}

void add_candidates(const PlacementInputs& in, int device_units, const Judge& judge, std::vector<Candidate>& all) {
  const bool any_on_host = device_units < static_cast<int>(in.units.size());
  for (const Counts& kind : in.residencies) {
    std::optional<Choice> before;
    for (int part = 0; part <= (is_forced(in) ? 0 : away_parts); ++part) {
      Choice choice = with_part(in, device_units, kind, part);
      if (choice == before || !is_possible(in, choice)) continue;
      before = choice;
      const std::size_t first = all.size();
      add_candidate(in, choice, judge, all);
      const Candidate& c = all[first];
      const bool all_kept = c.fits && c.choice.keep == 0;
      if (c.fits && in.over_link == Toggle::automatic && any_on_host) {  // which takes more memory
        choice.over_link = true;
        add_candidate(in, choice, judge, all);
      }
      // What makes room for activations and state gains nothing where all of them are kept already.
      if (part == 0 && all_kept) break;
    }
  }
}

Candidate* best_of(const PlacementInputs& in, std::vector<Candidate>& all, const Judge& judge) {
  std::vector<Candidate*> fitting;
  for (Candidate& c : all)
    if (c.fits) fitting.push_back(&c);
  if (fitting.empty()) return nullptr;
  std::stable_sort(fitting.begin(), fitting.end(), [](const Candidate* a, const Candidate* b) {
    return std::pair(a->least, -a->choice.device_units) < std::pair(b->least, -b->choice.device_units);
  });
  double least = std::numeric_limits<double>::infinity();
  std::vector<Candidate*> seen;
  for (Candidate* c : fitting) {
    if (c->least > (1 + judge.equal_share) * least) break;
    if (!c->first) c->first = judge.first_score(in, c->choice);
    least = std::min(least, *c->first);
    seen.push_back(c);
  }
  // Those that count as equal by their first steps come in the order in which they would be taken.
  const auto by = [](double limit, const auto& score_of) {
    return [=](const Candidate* a, const Candidate* b) {
      const auto key = [&](const Candidate* c) {
        return std::pair(score_of(c) <= limit ? 0.0 : score_of(c), -c->choice.device_units);
      };
      return key(a) < key(b);
    };
  };
  std::stable_sort(seen.begin(), seen.end(),
                   by((1 + judge.equal_share) * least, [](const Candidate* c) { return *c->first; }));
  seen.resize(std::min(seen.size(), judge.settled));
  least = std::numeric_limits<double>::infinity();
  for (Candidate* c : seen) {
    if (!c->score) c->score = judge.score(in, c->choice);
    least = std::min(least, *c->score);
  }
  return *std::min_element(seen.begin(), seen.end(),
                           by((1 + judge.equal_share) * least, [](const Candidate* c) { return *c->score; }));
}

namespace {

struct Left {
  std::size_t bytes = 0;
  Choice choice;
};

// The most device memory that state leaves for activations if it fits beside `host_bytes` of them on the host, and with
// what; none if it does not.
std::optional<Left> most_left(const PlacementInputs& in, std::size_t host_bytes) {
  if (host_bytes > in.host_budget) return std::nullopt;
  const std::size_t host_budget = in.host_budget - host_bytes;
  std::optional<Left> most;
  for (const Counts& kind : in.residencies)
    for (int part = 0; part <= (is_forced(in) ? 0 : away_parts); ++part) {
      if (!is_possible(in, with_part(in, 0, kind, part))) continue;
      const auto choice = [&](int device_units) { return with_part(in, device_units, kind, part); };
      // The fewest units for which the host has room.
      int first = in.forced_device_units.value_or(0),
          last = in.forced_device_units.value_or(static_cast<int>(in.units.size()));
      while (first < last) {
        const int middle = first + (last - first) / 2;
        if (in.memory(choice(middle)).host_bytes <= host_budget)
          last = middle;
        else
          first = middle + 1;
      }
      const StateMemory memory = in.memory(choice(first));
      if (memory.host_bytes > host_budget || memory.device_bytes > in.device_budget) continue;
      const Left left{in.device_budget - memory.device_bytes, choice(first)};
      if (!most || left.bytes > most->bytes) most = left;
    }
  return most;
}

}  // namespace

std::optional<Choice> fitting_choice(const PlacementInputs& in) {
  const auto with = [](Choice choice, std::int64_t keep) {
    choice.keep = keep;
    return choice;
  };
  const std::optional<Left> most = most_left(in, 0);
  if (!most) return std::nullopt;
  for (std::int64_t keep = std::ssize(in.keeps) - 1; keep >= 0; --keep)
    if (in.kept_on_host(keep) == 0 && in.activation_bytes(keep) <= most->bytes) return with(most->choice, keep);
  // What keeps the least of the device's memory, by what it takes of the host's.
  std::map<std::size_t, std::int64_t> keeps;
  for (std::int64_t keep = 0; keep < std::ssize(in.keeps); ++keep) {
    std::int64_t& least = keeps.try_emplace(in.kept_on_host(keep), keep).first->second;
    if (in.activation_bytes(keep) < in.activation_bytes(least)) least = keep;
  }
  for (const auto& [host_bytes, keep] : keeps) {
    if (in.activation_bytes(keep) > most->bytes) continue;  // nor is more left where inputs take memory of the host
    if (const auto left = most_left(in, host_bytes); left && in.activation_bytes(keep) <= left->bytes)
      return with(left->choice, keep);
  }
  return std::nullopt;
}

}  // namespace so
