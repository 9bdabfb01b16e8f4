#include "plan/placement/alternatives.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/quantities.h"
#include "offload/schedule/placement.h"
#include "plan/placement/placement.h"

namespace so {
namespace {

constexpr std::array choices{PlanChoice::split,     PlanChoice::residency,   PlanChoice::streaming,
                             PlanChoice::gathering, PlanChoice::activations, PlanChoice::spare,
                             PlanChoice::cast};

// A few of 0 to `most`, `own` and its neighbours among them.
std::set<std::int64_t> few(std::int64_t most, std::int64_t own) {
  constexpr std::int64_t parts = 6;
  std::set<std::int64_t> values{own, std::max<std::int64_t>(0, own - 1), std::min(most, own + 1)};
  for (std::int64_t i = 0; i <= parts; ++i) values.insert(most * i / parts);
  return values;
}

// The first choice of activations that fits; if none does, the first that fits the device, or else the last.
std::int64_t first_keep(const PlacementInputs& in, const StateMemory& state) {
  std::optional<std::int64_t> fits_device;
  for (std::int64_t keep = 0; keep < std::ssize(in.keeps); ++keep) {
    if (state.device_bytes + in.activation_bytes(keep) > in.device_budget) continue;
    if (state.host_bytes + in.kept_on_host(keep) <= in.host_budget) return keep;
    if (!fits_device) fits_device = keep;
  }
  return fits_device.value_or(std::ssize(in.keeps) - 1);
}

void set_step(Alternative& a, const PlacementInputs& in, const Choice& choice) {
  a.seconds = estimate_step(in, choice).seconds();
  a.slower_seconds = estimate_step(in, choice, Judge::slower_host).seconds();
  a.score = Judge().score(in, choice);
}

Alternative play(const PlacementInputs& in, std::string what, const Choice& choice) {
  const StateMemory state = in.memory(choice);
  Alternative a;
  a.what = std::move(what);
  a.device_bytes = state.device_bytes + in.activation_bytes(choice.keep);
  a.host_bytes = state.host_bytes + in.kept_on_host(choice.keep) +
                 static_cast<std::size_t>(choice.spare_buckets) * in.spare_place_bytes;
  a.device_short = beyond(a.device_bytes, in.device_budget);
  a.host_short = beyond(a.host_bytes, choice.spare_buckets > 0 ? in.spare_budget : in.host_budget);
  set_step(a, in, choice);
  return a;
}

// With what the planner chooses beside a residency and a split.
Alternative play_with(const PlacementInputs& in, std::string what, Choice choice) {
  const StateMemory state = in.memory(choice);
  choice.keep = first_keep(in, state);
  choice.spare_buckets = choose_spare_buckets(in, choice, state.host_bytes + in.kept_on_host(choice.keep));
  return play(in, std::move(what), choice);
}

// The planner's choice for a split; if nothing fits, the plan's but for what cannot be.
Alternative best_of_split(const PlacementInputs& in, const ChosenPlan& plan, std::string what, int device_units) {
  // Its first steps decide, which is enough for one line of a list.
  if (const auto best = so::best_of_split(in, device_units, plan.considered, {.settled = 1}))
    return play(in, std::move(what), *best);
  Choice choice = plan;
  choice.device_units = device_units;
  const int most = most_streamed_units(static_cast<int>(in.units.size()), device_units);
  choice.streamed_units = std::min(choice.streamed_units, most);
  return play_with(in, std::move(what), choice);
}

}  // namespace

std::span<const PlanChoice> plan_choices() { return choices; }

std::string_view name_of(PlanChoice choice) {
  constexpr std::array<std::string_view, 8> names{"none",      "split",       "residency", "streaming",
                                                  "gathering", "activations", "spare",     "cast"};
  return names.at(static_cast<std::size_t>(choice));
}

bool is_open(PlanChoice choice, int ranks) {
  if (ranks == 1) return choice != PlanChoice::gathering;
  return choice != PlanChoice::streaming;
}

std::vector<Alternative> alternatives(const PlacementInputs& in, const ChosenPlan& plan, PlanChoice choice,
                                      const std::function<std::string(std::int64_t keep)>& describe_keep,
                                      const PlacementInputs* other_cast) {
  const int units = static_cast<int>(in.units.size());
  const Choice& own = plan;
  std::vector<Alternative> all;
  const auto add = [&](Alternative a, bool chosen) {
    a.chosen = chosen;
    all.push_back(std::move(a));
  };
  const auto add_residency = [&](std::string what, const Choice& other) {
    const bool chosen = other == own;
    add(chosen ? play(in, std::move(what), own) : play_with(in, std::move(what), other), chosen);
  };
  switch (choice) {
    case PlanChoice::none:
      break;
    case PlanChoice::split:
      for (const std::int64_t n : few(units, own.device_units)) {
        std::string what = fmt::format("{} of {} units on the device", n, units);
        const bool chosen = n == own.device_units;
        add(chosen ? play(in, std::move(what), own) : best_of_split(in, plan, std::move(what), static_cast<int>(n)),
            chosen);
      }
      break;
    case PlanChoice::residency:
      for (const Counts& kind : in.residencies) {
        Choice other = own;
        static_cast<Counts&>(other) = kind;
        other.device_units = own.device_units;
        other.streamed_units = own.streamed_units;
        other.gathered_units = own.gathered_units;
        if (is_possible(in, other)) add_residency(describe_residency(kind), other);
      }
      break;
    case PlanChoice::streaming:
      for (const std::int64_t n : few(most_streamed_units(units, own.device_units), own.streamed_units)) {
        Choice other = own;
        other.streamed_units = static_cast<int>(n);
        add_residency(fmt::format("{} of {} units streamed", n, units), other);
      }
      break;
    case PlanChoice::gathering:
      for (const std::int64_t n : few(most_gathered_units(units), own.gathered_units)) {
        Choice other = own;
        other.gathered_units = static_cast<int>(n);
        if (!is_possible(in, other)) other.cast_weights = other.send_masters = false;
        add_residency(fmt::format("{} of {} units gathered", n, units), other);
      }
      break;
    case PlanChoice::activations:
      for (const std::int64_t keep : few(std::ssize(in.keeps) - 1, own.keep)) {
        Choice other = own;
        other.keep = keep;
        add(play(in, describe_keep(keep), other), keep == own.keep);
      }
      break;
    case PlanChoice::spare: {
      const std::int64_t owned = spare_candidates(in, own.device_units);
      for (const std::int64_t n : few(owned, own.spare_buckets)) {
        Choice other = own;
        other.spare_buckets = n;
        add(play(in, fmt::format("{} of {} buckets", n, owned), other), n == own.spare_buckets);
      }
      break;
    }
    case PlanChoice::cast:
      for (const CastSide side : {CastSide::host, CastSide::device}) {
        const std::string what = side == CastSide::host ? "on the host" : "on the device";
        if (side == in.cast) {
          add(play(in, what, own), true);
        } else if (other_cast) {
          Alternative a;
          a.what = what;
          set_step(a, *other_cast, own);
          add(std::move(a), false);
        }
      }
      break;
  }
  return all;
}

std::string why_not(const Alternative& a, const Alternative& chosen) {
  if (a.device_short > 0 || a.host_short > 0)
    return fmt::format("does not fit: {}{}{}",
                       a.device_short > 0 ? format_bytes(a.device_short) + " of device memory short" : "",
                       a.device_short > 0 && a.host_short > 0 ? ", " : "",
                       a.host_short > 0 ? format_bytes(a.host_short) + " of host memory short" : "");
  const double slower = a.seconds - chosen.seconds;
  if (slower > 0.001 * chosen.seconds) return fmt::format("{:.3f} s slower", slower);
  const double on_slower_host = a.slower_seconds - chosen.slower_seconds;
  if (slower < -0.001 * chosen.seconds)
    return fmt::format("{:.3f} s quicker, but {}", -slower,
                       a.score < chosen.score - 0.001 * chosen.seconds ? "outside of what was asked for"
                       : on_slower_host > 0 ? fmt::format("{:.3f} s slower if the host is", on_slower_host)
                                            : "only because the device runs less of AdamW");
  return "no quicker";
}

std::string alternatives_table(std::span<const Alternative> all, std::size_t columns) {
  // Beside each other where that leaves the reason a place, else below.
  constexpr std::size_t figures = 46, reason = 24;
  std::size_t width = 0;
  for (const Alternative& a : all) width = std::max(width, a.what.size());
  const auto chosen = std::find_if(all.begin(), all.end(), [](const Alternative& a) { return a.chosen; });
  SO_CHECK(all.empty() || chosen != all.end(), "none of {} alternatives was chosen", all.size());
  const bool below = width + figures + reason > columns;
  std::string text;
  for (const Alternative& a : all) {
    text += below ? fmt::format("  {} {}\n     ", a.chosen ? ">" : " ", a.what)
                  : fmt::format("  {} {:<{}}", a.chosen ? ">" : " ", a.what, width);
    text += fmt::format("  {:8.3f} s", a.seconds);
    if (a.device_bytes > 0)
      text += fmt::format("  {:>9} device  {:>9} host", format_bytes(a.device_bytes), format_bytes(a.host_bytes));
    text += a.chosen ? "  chosen\n" : "  " + why_not(a, *chosen) + "\n";
  }
  return text;
}

}  // namespace so
