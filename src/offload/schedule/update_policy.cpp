#include "offload/schedule/update_policy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "offload/schedule/step_time.h"

namespace so {
namespace {

// The next step's rates may be lower than those measured, and the link's traffic comes unevenly: a choice is judged by
// the mean of what it takes at the measured rates and at this part of them.
constexpr double usable = 0.9;

constexpr std::array step_times{&StepTimes::update_seconds,  &StepTimes::preview_seconds,
                                &StepTimes::link_seconds,    &StepTimes::link_preview_seconds,
                                &StepTimes::stream_seconds,  &StepTimes::forward_seconds,
                                &StepTimes::backward_seconds};

class SynchronousPolicy final : public UpdatePolicy {
 public:
  UpdateChoice choose(const UpdateFacts& facts) override {
    const std::vector in_place(facts.elements.size(), After::in_place);
    return {std::vector(facts.elements.size(), Ahead::leave), in_place, in_place};
  }
};

// The buckets in bands, from the top: `top` are speculated as their gradients come, `left` are left, as many as then
// have places are speculated, and of the others the lowest are previewed. While the host is busy with the first band,
// the gradients of the second come, so it does not wait for the third.
struct Bands {
  std::size_t top = 0, left = 0, previews = 0;
  auto operator<=>(const Bands&) const = default;
};

// The same bands, written in one way only: all of `count` buckets in which no others are left or previewed than these.
Bands in_one_form(std::size_t count, std::size_t places, Bands bands) {
  const std::size_t below = count - bands.top - bands.left, more = std::min(places - bands.top, below);
  bands.previews = std::min(bands.previews, below - more);
  if (bands.left == 0) bands.top = 0;  // what is speculated is in one piece
  return bands;
}

UpdateChoice nothing_ahead(std::size_t count, std::size_t weights_first) {
  std::vector after(count, After::in_place);
  std::fill_n(after.begin(), weights_first, After::weights_first);
  return {std::vector(count, Ahead::leave), after, after};
}

UpdateChoice with_bands(std::size_t count, std::size_t places, const Bands& bands) {
  UpdateChoice choice = nothing_ahead(count, 0);
  const std::size_t below = count - bands.top - bands.left, more = std::min(places - bands.top, below);
  const auto at = [&](std::size_t i) { return choice.ahead.begin() + static_cast<std::ptrdiff_t>(i); };
  std::fill_n(choice.ahead.begin(), std::min(bands.previews, below - more), Ahead::preview);
  std::fill(at(below - more), at(below), Ahead::speculate);
  std::fill(at(count - bands.top), choice.ahead.end(), Ahead::speculate);
  return choice;
}

// The lowest bucket from which on all can be updated in place after the verdict and be there when the next forward pass
// needs them.
std::size_t first_in_time(const UpdateFacts& f) {
  if (f.awaits_updates) return f.elements.size();
  // The host and the link share the work.
  const double update_seconds = f.link_seconds > 0 ? 1 / (1 / f.update_seconds + 1 / f.link_seconds) : f.update_seconds;
  std::size_t first = f.elements.size();
  double slack = std::numeric_limits<double>::infinity();  // of the one with the least
  while (first > 0) {
    slack = std::min(slack, f.first_forward_seconds() * f.needed[first - 1]) -
            static_cast<double>(f.elements[first - 1]) * update_seconds;
    if (slack < 0) break;
    --first;
  }
  return first;
}

// A choice has to be shorter than this part of another one to be taken instead.
constexpr double shorter = 0.999;
constexpr double unlimited = std::numeric_limits<double>::infinity();

// Returns what of 0 to `most` has the least seconds, and these: the first that is within a thousandth. Looks at a few,
// and then between the best one's neighbours. `seconds_of` is given a limit: from there on it may return any that are
// not less.
template <class Seconds>
std::pair<std::size_t, double> shortest(std::size_t most, const Seconds& seconds_of) {
  constexpr std::size_t looks = 12;
  std::size_t best = 0;
  double least = seconds_of(std::size_t{0}, unlimited);
  const auto look = [&](std::size_t at) {
    const double seconds = seconds_of(at, shorter * least);
    if (seconds >= shorter * least) return;
    least = seconds;
    best = at;
  };
  for (std::size_t i = 1; i <= looks; ++i) look(most * i / looks);
  const std::size_t from = best - std::min(best, most / looks), to = std::min(most, best + most / looks);
  for (std::size_t i = 1; i < looks; ++i) look(from + (to - from) * i / looks);
  return {best, least};
}

// Groups of buckets that are next to each other stand for one each, so that a choice is made in a millisecond whatever
// the number of buckets.
class Groups {
 public:
  explicit Groups(const UpdateFacts& facts) : facts_(facts) {
    const std::size_t count = facts.elements.size();
    each_ = (count + most - 1) / most;
    for (std::size_t i = 0, end = 0; i < count; i = end) {
      std::int64_t elements = 0, streamed = 0;
      for (end = i; end < std::min(count, i + each_) && facts.is_late(end) == facts.is_late(i); ++end) {
        elements += facts.elements[end];
        streamed += facts.streamed_elements(end);
      }
      elements_.push_back(elements);
      streamed_.push_back(streamed);
      needed_.push_back(facts.needed[i]);
      left_.push_back(facts.left[i]);
      if (!facts.late.empty()) late_.push_back(facts.late[i]);
    }
    facts_.elements = elements_;
    facts_.needed = needed_;
    facts_.left = left_;
    facts_.late = late_;
    facts_.streamed = streamed_;
  }
  const UpdateFacts& facts() const { return facts_; }
  std::size_t each() const { return each_; }

 private:
  static constexpr std::size_t most = 160;
  UpdateFacts facts_;
  std::size_t each_ = 1;
  std::vector<std::int64_t> elements_, streamed_;
  std::vector<double> needed_, left_;
  std::vector<std::uint8_t> late_;
};

// Says how long a step takes with a choice.
class Outlook {
 public:
  Outlook(const UpdateFacts& measured, std::size_t places)
      : slower_(at_usable_rates(measured)), places_(places), measured_timer_(measured), slower_timer_(slower_) {}

  const UpdateFacts& slower() const { return slower_; }
  std::size_t places() const { return places_; }
  // Both return any seconds from `limit` on as soon as these are known not to be less.
  double seconds(const UpdateChoice& choice, Verdicts verdicts, double limit = unlimited) {
    const double slower = slower_timer_.seconds(choice, verdicts);
    constexpr double rounding = 1 - 1e-9;  // of sums in another order
    if (const double least = (measured_timer_.least_seconds() * rounding + slower) / 2; least >= limit) return least;
    return (measured_timer_.seconds(choice, verdicts) + slower) / 2;
  }
  // If the step stands.
  double seconds(const Bands& bands, double limit = unlimited) {
    const std::size_t count = slower_.elements.size();
    Seconds& known = known_[in_one_form(count, places_, bands)];
    if (known.value < limit && !known.exact) {
      known.value = seconds(with_bands(count, places_, bands), Verdicts::stand, limit);
      known.exact = known.value < limit || limit == unlimited;
    }
    return known.value;
  }

 private:
  struct Seconds {
    double value = 0;    // at least
    bool exact = false;  // or exactly
  };
  static UpdateFacts at_usable_rates(UpdateFacts facts) {
    for (double* seconds :
         {&facts.update_seconds, &facts.preview_seconds, &facts.link_seconds, &facts.link_preview_seconds})
      *seconds /= usable;
    return facts;
  }

  const UpdateFacts slower_;
  const std::size_t places_;
  StepTimer measured_timer_, slower_timer_;
  std::map<Bands, Seconds> known_;
};

class AdaptivePolicy final : public UpdatePolicy {
 public:
  UpdateChoice choose(const UpdateFacts& measured) override {
    const std::size_t count = measured.elements.size(),
                      places = std::min(count, static_cast<std::size_t>(measured.spare_places));
    if (count == 0) return nothing_ahead(count, 0);
    // Before anything is measured, those that land first.
    if (measured.update_seconds <= 0 || measured.forward_seconds <= 0 || measured.backward_seconds <= 0)
      return with_bands(count, places, {.top = places});
    UpdateFacts known = measured;
    if (known.preview_seconds <= 0) known.preview_seconds = preview_share * known.update_seconds;
    // A preview's state travels one way only.
    if (known.link_preview_seconds <= 0) known.link_preview_seconds = known.link_seconds;
    const Groups groups(known);
    const std::size_t n = groups.facts().elements.size(), each = groups.each(),
                      places_here = std::min(n, places / each);
    Outlook outlook(groups.facts(), places_here);
    const UpdateFacts& f = outlook.slower();

    const auto [first, none_seconds] = shortest(f.previews ? n : 0, [&](std::size_t i, double limit) {
      return outlook.seconds(nothing_ahead(n, i), Verdicts::clip, limit);
    });
    const auto [bands, bands_seconds] = best_bands(outlook);
    const auto [left_first, ahead_seconds] = first_of_left(outlook, with_bands(n, places_here, bands), bands_seconds);

    UpdateChoice ahead = with_bands(n, places_here, bands);
    ahead.redo = nothing_ahead(n, first).redo;
    const double p = f.clip_rate;
    const double expected_ahead =
                     (1 - p) * ahead_seconds + p * std::max(none_seconds, outlook.seconds(ahead, Verdicts::clip)),
                 expected_left = none_seconds;
    const UpdateChoice none = nothing_ahead(count, std::min(count, first * each));
    // Where neither is shorter, work ahead has time to spare, unless most of it is void.
    if (p < 0.5 ? shorter * expected_ahead > expected_left : expected_ahead >= expected_left) return none;
    Bands all{std::min(places, bands.top * each), 0, bands.previews * each};
    all.left = std::min(count - all.top, bands.left * each);
    UpdateChoice choice = with_bands(count, places, all);
    choice.after = nothing_ahead(count, std::min(count, left_first * each)).after;
    choice.redo = none.redo;
    return choice;
  }

 private:
  // Returns for how many of the lowest the weights go first, if they were not done ahead, and the seconds then; 0 of
  // them unless that is shorter by more than a thousandth.
  static std::pair<std::size_t, double> first_of_left(Outlook& outlook, UpdateChoice choice, double seconds) {
    if (!outlook.slower().previews) return {0, seconds};
    const std::size_t count = choice.after.size();
    const auto [first, least] = shortest(count, [&](std::size_t i, double limit) {
      choice.after = nothing_ahead(count, i).after;
      return outlook.seconds(choice, Verdicts::stand, limit);
    });
    return least < shorter * seconds ? std::pair(first, least) : std::pair(std::size_t{0}, seconds);
  }

  // At the top, what would be done in time in any case is left; the next are speculated, as many as have places, and
  // the lowest previewed. Or a part of those with places is at the very top, and fewer are left, if that is shorter by
  // more than a thousandth.
  static std::pair<Bands, double> best_bands(Outlook& outlook) {
    const std::size_t count = outlook.slower().elements.size(), places = outlook.places();
    const auto with_previews = [&](Bands bands) {
      const std::size_t below = count - bands.top - bands.left,
                        most = outlook.slower().previews ? below - std::min(below, places - bands.top) : 0;
      const auto [previews, seconds] = shortest(most, [&](std::size_t i, double limit) {
        bands.previews = i;
        return outlook.seconds(bands, limit);
      });
      bands.previews = previews;
      return std::pair(bands, seconds);
    };
    const std::size_t in_time = count - first_in_time(outlook.slower());
    std::pair<Bands, double> best = with_previews({.left = std::min(in_time, count - places)});
    constexpr std::size_t parts = 8;
    for (std::size_t i = 0; i <= parts; ++i) {
      const std::size_t top = (places * i + parts - 1) / parts;
      for (std::size_t j = 0; j <= parts; ++j) {
        const Bands bands{
            .top = top, .left = std::min(count - top, in_time * j / parts), .previews = best.first.previews};
        if (outlook.seconds(bands, shorter * best.second) >= shorter * best.second) continue;
        const std::pair<Bands, double> refined = with_previews(bands);
        if (refined.second < shorter * best.second) best = refined;
      }
    }
    return best;
  }
};

}  // namespace

StepTimes StepTimes::or_else(const StepTimes& others) const {
  StepTimes all = *this;
  for (double StepTimes::*time : step_times)
    if (all.*time <= 0) all.*time = others.*time;
  return all;
}

bool StepTimes::is_within(double part, const StepTimes& others) const {
  return std::all_of(step_times.begin(), step_times.end(), [&](double StepTimes::*time) {
    const double a = this->*time, b = others.*time;
    return std::abs(a - b) <= part * std::max(std::abs(a), std::abs(b));
  });
}

double first_forward_seconds(double forward_seconds, double backward_seconds, std::int64_t micro_batches) {
  const auto count = static_cast<double>(micro_batches);
  return std::max(0.0, (forward_seconds - (count - 1) * backward_seconds) / count);
}

double UpdateFacts::first_forward_seconds() const {
  return so::first_forward_seconds(forward_seconds, backward_seconds, micro_batches);
}

std::unique_ptr<UpdatePolicy> make_synchronous_policy() { return std::make_unique<SynchronousPolicy>(); }
std::unique_ptr<UpdatePolicy> make_adaptive_policy() { return std::make_unique<AdaptivePolicy>(); }

}  // namespace so
