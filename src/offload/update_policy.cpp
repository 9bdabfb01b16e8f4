#include "offload/update_policy.h"

#include <algorithm>
#include <numeric>

namespace so {
namespace {

// Of a window that the host may plan to fill: the link and the device's own traffic take their part of memory.
constexpr double usable = 0.9;

class SynchronousPolicy final : public UpdatePolicy {
 public:
  UpdateChoice choose(const UpdateFacts& facts) override {
    return {std::vector(facts.elements.size(), Ahead::leave), std::vector(facts.elements.size(), After::in_place)};
  }
};

// A preview's share of an update's traffic, until one has been measured.
constexpr double preview_share = 0.6;

// Elements whose weights must go first so that `elements` get their weights within `window` seconds, as far as `spare`
// seconds of the host's time allow for the extra traffic.
double weights_first(double update, double preview, double elements, double window, double spare) {
  const double late = elements * update - window;
  if (late <= 0 || update <= preview) return 0;
  const double wanted = late / (update - preview), affordable = spare / preview;
  return std::clamp(std::min(wanted, affordable), 0.0, elements);
}

class AdaptivePolicy final : public UpdatePolicy {
 public:
  UpdateChoice choose(const UpdateFacts& f) override {
    const std::size_t count = f.elements.size();
    UpdateChoice choice{std::vector(count, Ahead::leave), std::vector(count, After::in_place)};
    if (count == 0) return choice;
    const auto total = static_cast<double>(std::accumulate(f.elements.begin(), f.elements.end(), std::int64_t{0}));
    const bool measured = f.update_seconds > 0 && f.forward_seconds > 0 && f.backward_seconds > 0;
    const double preview = f.preview_seconds > 0 ? f.preview_seconds : preview_share * f.update_seconds;

    // If nothing is done ahead: how much must go weights first, and what the device waits all the same.
    const double window = usable * f.forward_seconds, step = usable * (f.forward_seconds + f.backward_seconds);
    const double first =
        measured ? weights_first(f.update_seconds, preview, total, window, step - total * f.update_seconds) : 0;
    const double wait = measured ? std::max(0.0, (total - first) * f.update_seconds + first * preview - window) : 0;
    double done = 0;
    for (std::size_t i = 0; i < count && done < first; done += static_cast<double>(f.elements[i++]))
      choice.after[i] = After::weights_first;

    // Work ahead of the verdict that turns out void costs up to two buckets' time, which are under way or fetched.
    const double waste = 2 * total / static_cast<double>(count) * f.update_seconds;
    if (measured && (1 - f.clip_rate) * wait <= f.clip_rate * waste) return choice;

    // Leave at the top what fits under the next forward pass in any case; speculate and preview the others.
    const auto places = static_cast<std::size_t>(f.undo_places);
    double rest = total;  // elements at and below bucket i
    std::size_t i = count;
    if (places < count) {
      const double room = measured ? window / f.update_seconds : 0;
      double left = 0;
      for (; i > places && left + static_cast<double>(f.elements[i - 1]) <= room; --i)
        left += static_cast<double>(f.elements[i - 1]);
      rest -= left;
    }
    std::size_t taken = 0;
    for (; i > 0 && taken < places; --i, ++taken) {
      choice.ahead[i - 1] = Ahead::speculate;
      rest -= static_cast<double>(f.elements[i - 1]);
    }
    // Those have the least time after the verdict.
    double spare = measured ? (step - total * f.update_seconds) / preview : 0;
    for (std::size_t j = 0; j < i && spare > 0; ++j) {
      choice.ahead[j] = Ahead::preview;
      spare -= static_cast<double>(f.elements[j]);
    }
    return choice;
  }
};

}  // namespace

std::unique_ptr<UpdatePolicy> make_synchronous_policy() { return std::make_unique<SynchronousPolicy>(); }
std::unique_ptr<UpdatePolicy> make_adaptive_policy() { return std::make_unique<AdaptivePolicy>(); }

}  // namespace so
