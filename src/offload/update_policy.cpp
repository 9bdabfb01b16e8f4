#include "offload/update_policy.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace so {
namespace {

// Of a window that the host may plan to fill: the link and the device's own traffic take their part of memory.
constexpr double usable = 0.9;

class SynchronousPolicy final : public UpdatePolicy {
 public:
  UpdateChoice choose(const UpdateFacts& facts) override {
    const std::vector in_place(facts.elements.size(), After::in_place);
    return {std::vector(facts.elements.size(), Ahead::leave), in_place, in_place};
  }
};

// A preview's share of an update's traffic, until one has been measured.
constexpr double preview_share = 0.6;

class AdaptivePolicy final : public UpdatePolicy {
 public:
  UpdateChoice choose(const UpdateFacts& f) override {
    const std::size_t count = f.elements.size();
    const std::vector in_place(count, After::in_place);
    UpdateChoice choice{std::vector(count, Ahead::leave), in_place, in_place};
    if (count == 0) return choice;
    const bool measured = f.update_seconds > 0 && f.forward_seconds > 0 && f.backward_seconds > 0;
    const double total = static_cast<double>(std::accumulate(f.elements.begin(), f.elements.end(), std::int64_t{0}));
    const double preview = f.preview_seconds > 0 ? f.preview_seconds : preview_share * f.update_seconds;
    // What the host has time for beyond one update of each element, in elements previewed.
    const double spare =
        measured ? (usable * (f.forward_seconds + f.backward_seconds) - total * f.update_seconds) / preview : 0;

    // With nothing done ahead, or all of it void.
    double left = spare;
    const double wait = measured ? weights_first(f, preview, left, choice.redo) : 0;

    // At the top, what would be done in time in any case is left; the others are speculated and previewed.
    const auto places = static_cast<std::size_t>(f.undo_places);
    std::size_t end = count;
    if (places < count && measured) end = std::max(places, first_in_time(f));
    const std::size_t begin = end - std::min(end, places);
    std::fill(choice.ahead.begin() + static_cast<std::ptrdiff_t>(begin),
              choice.ahead.begin() + static_cast<std::ptrdiff_t>(end), Ahead::speculate);
    double ahead = 0;  // seconds of the host
    for (std::size_t i = begin; i < end; ++i) ahead += update(f, i);
    double previews = spare;
    for (std::size_t i = 0; i < begin && previews > 0; ++i) {
      choice.ahead[i] = Ahead::preview;
      previews -= static_cast<double>(f.elements[i]);
      ahead += static_cast<double>(f.elements[i]) * preview;
    }
    if (!measured) return choice;

    // Void work costs up to two buckets' time, which are under way or fetched, and what the host has no time for.
    const double waste = 2 * total / static_cast<double>(count) * f.update_seconds +
                         std::max(0.0, ahead - std::max(0.0, left) * preview);
    if ((1 - f.clip_rate) * wait > f.clip_rate * waste) return choice;
    choice.ahead.assign(count, Ahead::leave);
    choice.after = choice.redo;
    return choice;
  }

 private:
  // When the next forward pass needs bucket i, from the verdict.
  static double deadline(const UpdateFacts& f, std::size_t i) {
    return usable * f.forward_seconds * f.forward_shares[i];
  }
  static double update(const UpdateFacts& f, std::size_t i) {
    return static_cast<double>(f.elements[i]) * f.update_seconds;
  }

  // The lowest bucket from which on all can be updated in place after the verdict and be in time.
  static std::size_t first_in_time(const UpdateFacts& f) {
    std::size_t first = f.elements.size();
    double slack = std::numeric_limits<double>::infinity();  // of the one with the least
    while (first > 0) {
      slack = std::min(slack, deadline(f, first - 1)) - update(f, first - 1);
      if (slack < 0) break;
      --first;
    }
    return first;
  }

  // If nothing is done ahead of the verdict: has the lowest buckets send their weights first, as many as make the
  // others be in time, within `spare` elements, of which it takes. Returns the seconds that the device waits all the
  // same.
  static double weights_first(const UpdateFacts& f, double preview, double& spare, std::vector<After>& after) {
    double done = 0, wait = 0;
    std::size_t next = 0;  // the first that does not go weights first
    for (std::size_t i = 0; i < f.elements.size(); ++i) {
      done += update(f, i);
      for (; done - wait > deadline(f, i) && next <= i && spare > 0; ++next) {
        after[next] = After::weights_first;
        const auto elements = static_cast<double>(f.elements[next]);
        done -= elements * (f.update_seconds - preview);
        spare -= elements;
      }
      wait = std::max(wait, done - deadline(f, i));
    }
    return wait;
  }
};

}  // namespace

std::unique_ptr<UpdatePolicy> make_synchronous_policy() { return std::make_unique<SynchronousPolicy>(); }
std::unique_ptr<UpdatePolicy> make_adaptive_policy() { return std::make_unique<AdaptivePolicy>(); }

}  // namespace so
