#include "offload/schedule/update_policy.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "offload/schedule/step_time.h"

namespace so {
namespace {

// The host plans with this part of the rates that were measured: the next step's may be lower, and the link's traffic
// comes unevenly.
constexpr double usable = 0.9;
// By so much a step in which all is left until after the verdict may last longer than it was played to: the link takes
// time too, an embedding has many elements and is done at once, and the last of what is measured as the forward pass is
// the head's. What is done ahead has time to spare.
constexpr double surprise = 0.02;
// A preview's share of an update's traffic, until one has been measured.
constexpr double preview_share = 0.6;

class SynchronousPolicy final : public UpdatePolicy {
 public:
  UpdateChoice choose(const UpdateFacts& facts) override {
    const std::vector in_place(facts.elements.size(), After::in_place);
    return {std::vector(facts.elements.size(), Ahead::leave), in_place, in_place};
  }
};

class AdaptivePolicy final : public UpdatePolicy {
 public:
  UpdateChoice choose(const UpdateFacts& measured) override {
    const std::size_t count = measured.elements.size(),
                      places = std::min(count, static_cast<std::size_t>(measured.undo_places));
    const UpdateChoice nothing = nothing_ahead(count, 0);
    if (count == 0) return nothing;
    if (measured.update_seconds <= 0 || measured.forward_seconds <= 0 || measured.backward_seconds <= 0)
      return with_ahead(nothing, count - places, count, 0);
    UpdateFacts f = measured;
    f.update_seconds /= usable;
    f.preview_seconds = f.preview_seconds > 0 ? f.preview_seconds / usable : preview_share * f.update_seconds;

    const auto [none, none_seconds] =
        shortest(f, count, Verdicts::clip, [&](std::size_t first) { return nothing_ahead(count, first); });

    // At the top, what would be done in time in any case is left; the next are speculated, as many as have places, and
    // the lowest previewed.
    const std::size_t end = places < count ? std::max(places, first_in_time(f)) : count;
    const auto [ahead, ahead_seconds] =
        shortest(f, end - places, Verdicts::stand, [&, redo = none](std::size_t previews) {
          UpdateChoice choice = with_ahead(nothing, end - places, end, previews);
          choice.redo = redo.redo;
          return choice;
        });

    // Work that a clipped step voids costs what the host had no time for, and up to two buckets that are under way.
    double total = 0;
    for (const std::int64_t elements : f.elements) total += static_cast<double>(elements);
    const double under_way = 2 * total / static_cast<double>(count) * f.update_seconds;
    const double void_seconds = std::max(none_seconds, step_time(f, ahead, Verdicts::clip)) + under_way;
    const double p = f.clip_rate;
    const double expected_ahead = (1 - p) * ahead_seconds + p * void_seconds,
                 expected_left = (1 - p) * (1 + surprise) * none_seconds + p * none_seconds;
    return expected_ahead < expected_left ? ahead : none;
  }

 private:
  // The lowest `first` send their weights first.
  static UpdateChoice nothing_ahead(std::size_t count, std::size_t first) {
    std::vector after(count, After::in_place);
    std::fill_n(after.begin(), first, After::weights_first);
    return {std::vector(count, Ahead::leave), after, after};
  }
  static UpdateChoice with_ahead(UpdateChoice choice, std::size_t begin, std::size_t end, std::size_t previews) {
    std::fill_n(choice.ahead.begin(), previews, Ahead::preview);
    std::fill(choice.ahead.begin() + static_cast<std::ptrdiff_t>(begin),
              choice.ahead.begin() + static_cast<std::ptrdiff_t>(end), Ahead::speculate);
    return choice;
  }

  // Returns the choice with the shortest step among those that `make` gives for 0 to `most`: the first that is within a
  // thousandth. Looks at a few, and then between the best one's neighbours.
  template <class Make>
  static std::pair<UpdateChoice, double> shortest(const UpdateFacts& f, std::size_t most, Verdicts verdicts,
                                                  const Make& make) {
    constexpr std::size_t looks = 12;
    std::size_t best = 0;
    double least = step_time(f, make(0), verdicts);
    const auto look = [&](std::size_t at) {
      const double seconds = step_time(f, make(at), verdicts);
      if (seconds >= 0.999 * least) return;
      least = seconds;
      best = at;
    };
    for (std::size_t i = 1; i <= looks; ++i) look(most * i / looks);
    const std::size_t from = best - std::min(best, most / looks), to = std::min(most, best + most / looks);
    for (std::size_t i = 1; i < looks; ++i) look(from + (to - from) * i / looks);
    return {make(best), least};
  }

  // The lowest bucket from which on all can be updated in place after the verdict and be there when the next forward
  // pass needs them.
  static std::size_t first_in_time(const UpdateFacts& f) {
    std::size_t first = f.elements.size();
    double slack = std::numeric_limits<double>::infinity();  // of the one with the least
    while (first > 0) {
      slack = std::min(slack, f.forward_seconds * f.forward_shares[first - 1]) -
              static_cast<double>(f.elements[first - 1]) * f.update_seconds;
      if (slack < 0) break;
      --first;
    }
    return first;
  }
};

}  // namespace

std::unique_ptr<UpdatePolicy> make_synchronous_policy() { return std::make_unique<SynchronousPolicy>(); }
std::unique_ptr<UpdatePolicy> make_adaptive_policy() { return std::make_unique<AdaptivePolicy>(); }

}  // namespace so
