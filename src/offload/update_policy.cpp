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
    return {std::vector(facts.elements.size(), Ahead::leave), std::vector(facts.elements.size(), After::in_place)};
  }
};

// A preview's share of an update's traffic, until one has been measured.
constexpr double preview_share = 0.6;

class AdaptivePolicy final : public UpdatePolicy {
 public:
  UpdateChoice choose(const UpdateFacts& f) override {
    const std::size_t count = f.elements.size();
    UpdateChoice choice{std::vector(count, Ahead::leave), std::vector(count, After::in_place)};
    if (count == 0) return choice;
    const auto places = static_cast<std::size_t>(f.undo_places);
    const Times t(f);
    if (!t.measured) {
      speculate(choice, count - std::min(count, places), count);
      return choice;
    }

    // If nothing is done ahead, or all of it is void.
    double first = 0;
    const double wait = weights_first(t, choice.after, first);

    // At the top, what would be done in time in any case is left; the next are speculated, as many as have places, and
    // the lowest previewed.
    const std::size_t end = places < count ? std::max(places, first_in_time(t)) : count;
    const std::size_t begin = end - std::min(end, places);
    const std::size_t previews = best_previews(t, begin, end);
    const double saved = wait - wait_with(t, previews, begin, end);
    // Void work costs up to two buckets' time, which are under way or fetched, and what the host had no time for.
    const double ahead = t.total(begin, end) * f.update_seconds + t.total(0, previews) * t.preview;
    const double busy = t.total(0, count) * f.update_seconds + first * t.preview;
    const double waste = 2 * t.total(0, count) / static_cast<double>(count) * f.update_seconds +
                         std::max(0.0, ahead - std::max(0.0, usable * t.step + wait - busy));
    if ((1 - f.clip_rate) * saved <= f.clip_rate * waste) return choice;
    speculate(choice, begin, end);
    std::fill_n(choice.ahead.begin(), previews, Ahead::preview);
    return choice;
  }

 private:
  struct Times {
    explicit Times(const UpdateFacts& facts)
        : f(facts),
          measured(f.update_seconds > 0 && f.forward_seconds > 0 && f.backward_seconds > 0),
          preview(f.preview_seconds > 0 ? f.preview_seconds : preview_share * f.update_seconds),
          step(f.forward_seconds + f.backward_seconds) {
      sums.push_back(0);
      for (const std::int64_t elements : f.elements) sums.push_back(sums.back() + static_cast<double>(elements));
    }
    double update(std::size_t i) const { return static_cast<double>(f.elements[i]) * f.update_seconds; }
    // When the next forward pass needs bucket i, from the verdict.
    double deadline(std::size_t i) const { return usable * f.forward_seconds * f.forward_shares[i]; }
    double total(std::size_t from, std::size_t to) const { return sums[to] - sums[from]; }  // elements

    const UpdateFacts& f;
    const bool measured;
    const double preview, step;
    std::vector<double> sums;
  };

  static void speculate(UpdateChoice& choice, std::size_t begin, std::size_t end) {
    std::fill(choice.ahead.begin() + static_cast<std::ptrdiff_t>(begin),
              choice.ahead.begin() + static_cast<std::ptrdiff_t>(end), Ahead::speculate);
  }

  // The lowest bucket from which on all can be updated in place after the verdict and be in time.
  static std::size_t first_in_time(const Times& t) {
    std::size_t first = t.f.elements.size();
    double slack = std::numeric_limits<double>::infinity();  // of the one with the least
    while (first > 0) {
      slack = std::min(slack, t.deadline(first - 1)) - t.update(first - 1);
      if (slack < 0) break;
      --first;
    }
    return first;
  }

  // Seconds that the device waits if the `previews` lowest are previewed, those in [begin, end) speculated and the
  // others updated in place after the verdict.
  static double wait_with(const Times& t, std::size_t previews, std::size_t begin, std::size_t end) {
    double done = 0, wait = 0;
    for (std::size_t i = previews; i < t.f.elements.size(); ++i) {
      if (i >= begin && i < end) continue;
      done += t.update(i);
      wait = std::max(wait, done - t.deadline(i));
    }
    return wait;
  }

  // How many of the buckets below `begin` to preview so that a step is shortest. Each saves the device a wait after the
  // verdict, and costs the host, which may be what a step waits for as a whole.
  static std::size_t best_previews(const Times& t, std::size_t begin, std::size_t end) {
    const double updates = t.total(0, t.f.elements.size()) * t.f.update_seconds;
    const auto step_with = [&](std::size_t previews) {
      return std::max(t.step + wait_with(t, previews, begin, end),
                      (updates + t.total(0, previews) * t.preview) / usable);
    };
    std::size_t best = 0;
    double least = step_with(0);
    constexpr std::size_t candidates = 64;
    for (std::size_t i = 1; i <= candidates; ++i) {
      const std::size_t previews = begin * i / candidates;
      const double step = step_with(previews);
      if (step < least - 1e-3 * t.step) {  // not for less than a thousandth
        least = step;
        best = previews;
      }
    }
    return best;
  }

  // If nothing is done ahead of the verdict: has the lowest buckets send their weights first, as many as make the
  // others be in time and as the host has time for; `first` of their elements. Returns the seconds that the device
  // waits all the same.
  static double weights_first(const Times& t, std::vector<After>& after, double& first) {
    const UpdateFacts& f = t.f;
    double done = 0, wait = 0;
    std::size_t next = 0;  // the first that does not go weights first
    const double updates = t.total(0, f.elements.size()) * f.update_seconds;
    for (std::size_t i = 0; i < f.elements.size(); ++i) {
      done += t.update(i);
      for (; done - wait > t.deadline(i) && next <= i && updates + first * t.preview < usable * (t.step + wait);
           ++next) {
        after[next] = After::weights_first;
        const auto elements = static_cast<double>(f.elements[next]);
        done -= elements * (f.update_seconds - t.preview);
        first += elements;
      }
      wait = std::max(wait, done - t.deadline(i));
    }
    return wait;
  }
};

}  // namespace

std::unique_ptr<UpdatePolicy> make_synchronous_policy() { return std::make_unique<SynchronousPolicy>(); }
std::unique_ptr<UpdatePolicy> make_adaptive_policy() { return std::make_unique<AdaptivePolicy>(); }

}  // namespace so
