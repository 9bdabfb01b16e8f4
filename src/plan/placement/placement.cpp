#include "plan/placement/placement.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/quantities.h"
#include "offload/schedule/placement.h"

namespace so {
namespace {

constexpr int coarse_splits = 20;  // of a deep model, considered before those beside the best

bool fits_device(const Candidate& c) { return c.device_short == 0; }

// Adds those of the splits [first, last] that are not there; all come with the most on the device first.
void add_splits(const PlacementInputs& in, int first, int last, int stride, const Judge& judge,
                std::vector<Candidate>& all) {
  for (int d = last; d >= first; d = d == first ? -1 : std::max(first, d - stride))
    if (std::none_of(all.begin(), all.end(), [&](const Candidate& c) { return c.choice.device_units == d; }))
      add_candidates(in, d, judge, all);
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return a.choice.device_units > b.choice.device_units;
  });
}

// Throws why none of these fits, with the most on the device first.
[[noreturn]] void refuse(const PlacementInputs& in, const std::vector<Candidate>& all) {
  const auto device_short = [](const Candidate& a, const Candidate& b) { return a.device_short < b.device_short; };
  const auto host_short = [](const Candidate& a, const Candidate& b) { return a.host_short < b.host_short; };
  const Candidate &device = *std::min_element(all.begin(), all.end(), device_short),
                  &host = *std::min_element(all.begin(), all.end(), host_short);
  const bool shared = in.one_memory && in.forced_device_units == static_cast<int>(in.units.size());
  const std::string split = shared                   ? ""
                            : in.forced_device_units ? ", with the optimizer state split as asked"
                                                     : ", whatever the split of the optimizer state";
  if (device.device_short > 0)
    throw NothingFits(fmt::format("not enough memory on {}: {} short of {}{}", in.device_name,
                                  format_bytes(device.device_short), format_bytes(in.device_budget), split),
                      in.device_advice, device.choice);
  if (host.host_short > 0)
    throw NothingFits(fmt::format("not enough {}memory: {} short of {}{}", in.one_memory ? "" : "host ",
                                  format_bytes(host.host_short), format_bytes(in.host_budget), split),
                      in.host_advice, host.choice);
  // Each memory has splits that fit it, and no split fits both.
  const Candidate& most = *std::find_if(all.begin(), all.end(), fits_device);
  throw NothingFits(fmt::format("not enough memory: with as much of the optimizer state on {} as fits there, the host "
                                "is {} short of {} for the rest",
                                in.device_name, format_bytes(most.host_short), format_bytes(in.host_budget)),
                    in.host_advice, most.choice);
}

std::int64_t elements_of(const PlacementInputs& in, int begin, int end) {
  std::int64_t n = 0;
  for (int u = begin; u < end; ++u) n += in.units[static_cast<std::size_t>(u)].elements;
  return n;
}

std::string explain_split(const PlacementInputs& in, const ChosenPlan& plan, const Judge& judge) {
  const std::string what = describe_split(in, plan.device_units);
  if (in.one_memory && plan.device_units == static_cast<int>(in.units.size()))
    return what + ", which shares the CPU's memory";
  if (in.forced_device_units) return what + ", as asked";
  if (plan.device_units == static_cast<int>(in.units.size())) return what + ", where it fits";
  const std::optional<Choice> more = best_of_split(in, plan.device_units + 1, plan.considered, judge);
  if (!more) return what + ": there is no memory for more on the device";
  return what + fmt::format(": more on the device would leave less for activations ({:.3f} s a step, not {:.3f})",
                            estimate_step(in, *more).seconds(), plan.estimate.seconds());
}

// Says what is not kept on the device, and what that saves; empty if all is.
std::string explain_residency(const PlacementInputs& in, const Choice& choice) {
  const int units = static_cast<int>(in.units.size());
  std::vector<std::string> ways;
  if (choice.cast_weights)
    ways.push_back(fmt::format(
        "{}layers whose optimizer state is on the GPU keep no bf16 weights: they are cast from the fp32 ones before "
        "each {}",
        in.ranks > 1 ? "gathered " : "", in.ranks > 1 ? "gather" : "use"));
  if (choice.send_masters && in.ranks > 1)
    ways.push_back(
        "nor do those whose optimizer state is on the host: a slice of the fp32 ones travels to each GPU before each "
        "gather");
  if (choice.move_gradients)
    ways.push_back(in.micro_batches == 1
                       ? "gradients of layers whose optimizer state is on the host are moved there at once"
                       : "sums of gradients of layers whose optimizer state is on the host are kept there, and come "
                         "back for each micro-batch");
  if (choice.streamed_units > 0)
    ways.push_back(fmt::format("weights of {} of the {} layers whose optimizer state is on the host are {}",
                               choice.streamed_units, most_streamed_units(units, choice.device_units),
                               choice.send_masters
                                   ? "cast from the fp32 ones, which come from host memory before each use"
                                   : "streamed from host memory"));
  if (choice.gathered_units > 0)
    ways.push_back(
        fmt::format("of the weights and gradients of {} of the {} layers each GPU keeps a slice of 1/{}, and the "
                    "weights are gathered before each use",
                    choice.gathered_units, most_gathered_units(units), in.ranks));
  if (ways.empty()) return {};
  Choice kept = choice;
  static_cast<Counts&>(kept) = {.device_units = choice.device_units};
  return fmt::format("device memory saved: {}, {}", fmt::join(ways, "; "),
                     format_bytes(beyond(in.memory(kept).device_bytes, in.memory(choice).device_bytes)));
}

std::string explain_spare(const PlacementInputs& in, const ChosenPlan& plan) {
  if (in.schedule == Schedule::synchronous) return "AdamW on the host runs after backward (--mode zerooffload)";
  if (host_elements(plan.run) == 0) return "no optimizer state is on the host";
  return fmt::format(
      "AdamW on the host starts before the gradient norm is known, for up to {} buckets ({} of host memory); these "
      "updates are discarded if the step is clipped or skipped",
      plan.spare_buckets, format_bytes(static_cast<std::size_t>(plan.spare_buckets) * in.spare_place_bytes));
}

}  // namespace

std::string describe_residency(const Counts& counts) {
  std::vector<std::string_view> ways;
  if (counts.cast_weights) ways.emplace_back("weights cast for each use");
  if (counts.send_masters) ways.emplace_back("the host's too");
  if (counts.move_gradients) ways.emplace_back("gradients moved to the host");
  return ways.empty() ? "all kept on the device" : fmt::format("{}", fmt::join(ways, ", "));
}

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

std::optional<Choice> best_of_split(const PlacementInputs& in, int device_units,
                                    const std::vector<Candidate>& considered, const Judge& judge) {
  std::vector<Candidate> of_split;
  std::copy_if(considered.begin(), considered.end(), std::back_inserter(of_split),
               [&](const Candidate& c) { return c.choice.device_units == device_units; });
  if (of_split.empty()) add_candidates(in, device_units, judge, of_split);
  const Candidate* best = best_of(in, of_split, judge);
  return best ? std::optional(best->choice) : std::nullopt;
}

ChosenPlan choose_placement(const PlacementInputs& in, const Judge& judge) {
  const int units = static_cast<int>(in.units.size());
  SO_CHECK(units > 0 && !in.keeps.empty() && !in.residencies.empty() && in.bucket_elements > 0 &&
               in.forced_device_units.value_or(0) <= units,
           "{} units, {} choices of activations, buckets of {}, {} units forced", units, in.keeps.size(),
           in.bucket_elements, in.forced_device_units.value_or(0));
  const int stride = std::max(1, units / coarse_splits), least = in.forced_device_units.value_or(0),
            most = in.forced_device_units.value_or(units);
  ChosenPlan plan;
  std::vector<Candidate>& all = plan.considered;
  add_splits(in, least, most, stride, judge, all);
  const Candidate* best = best_of(in, all, judge);
  if (!in.forced_device_units && stride > 1) {
    // The splits between those, beside the best, or where something may fit, or what is short is shown.
    std::optional<Choice> beside = best ? best->choice : fitting_choice(in);
    if (const auto first = std::find_if(all.begin(), all.end(), fits_device); !beside && first != all.end())
      beside = first->choice;
    if (beside)
      add_splits(in, std::max(0, beside->device_units - stride + 1), std::min(units, beside->device_units + stride - 1),
                 1, judge, all);
    best = best_of(in, all, judge);
  }
  if (!best) refuse(in, all);

  static_cast<Choice&>(plan) = best->choice;
  plan.score = *best->score;
  plan.run = simulated_run(in, plan);
  plan.estimate = estimate_step(in, plan);
  plan.why_split = explain_split(in, plan, judge);
  plan.why_spare = explain_spare(in, plan);
  plan.why_residency = explain_residency(in, plan);
  return plan;
}

}  // namespace so
