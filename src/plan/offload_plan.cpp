#include "plan/offload_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/units.h"

namespace so {
namespace {

constexpr double equal_share = 0.001;  // of a step: plans closer than this count as equal
constexpr int most_pieces = 16;        // of a unit: finer says nothing new
constexpr int settling_steps = 6;      // to the steady state
constexpr double rounding = 1 + 1e-9;

std::int64_t buckets_of(std::int64_t elements, std::int64_t bucket) { return (elements + bucket - 1) / bucket; }

// What the host does with its elements: it leaves the first to land until after the verdict, speculates the next and
// has a share of the rest previewed, the last to land.
struct Policy {
  double left = 0, speculated = 0;  // elements
  double previewed = 0;             // share of the rest
};

// Plays the schedule. Times are seconds since the verdict of the step before.
class Timeline {
 public:
  Timeline(const OffloadInputs& in, int device_units, std::int64_t keep, Residency residency) : in_(in) {
    const MachineRates& r = in.rates;
    const Recomputation& again = in.keeps[static_cast<std::size_t>(keep)];
    for (std::size_t u = 0; u < in.units.size(); ++u) {
      const UnitWork& unit = in.units[u];
      forward_.push_back(unit.forward_flops / r.gemm_flops);
      backward_.push_back((unit.backward_flops + again.flops[u]) / r.gemm_flops +
                          again.device_bytes[u] / r.device_memory);
      const auto elements = static_cast<double>(unit.elements);
      if (static_cast<int>(u) < device_units) {
        const bool inner = u > 0 && u + 1 < in.units.size();
        if (inner && residency.transient_weights) {
          const double cast = elements * (4 + in.weight_bytes) / r.device_memory;
          forward_.back() += cast;
          backward_.back() += cast;
        }
        device_update_ += elements * full_bytes() / r.device_memory;
        continue;
      }
      const auto pieces = std::clamp<std::int64_t>(buckets_of(unit.elements, in.bucket_elements), 1, most_pieces);
      for (std::int64_t i = 0; i < pieces; ++i)
        pieces_.push_back({.unit = static_cast<int>(u), .elements = elements / static_cast<double>(pieces)});
    }
    pass_ = sum(forward_) + sum(backward_);
  }

  double forward_seconds() const { return sum(forward_); }
  double backward_seconds() const { return sum(backward_); }
  double host_elements() const {
    double n = 0;
    for (const Piece& piece : pieces_) n += piece.elements;
    return n;
  }
  double update_seconds() const { return (full_bytes() + link_bytes()) / in_.rates.host_memory; }  // an element

  StepEstimate run(const Policy& policy) {
    begin(policy);
    // Until steps repeat; where they alternate, the mean of some.
    double before = -1, seconds = 0, host = 0, speculated = 0, previewed = 0;
    int counted = 0;
    for (int i = 0; i < 2 * settling_steps; ++i) {
      step();
      const bool repeats = std::abs(seconds_ - before) <= 1e-9 * seconds_;
      before = seconds_;
      if (repeats) seconds = host = counted = 0;
      if (repeats || i >= settling_steps) {
        ++counted;
        seconds += seconds_;
        host += host_busy_;
        speculated = std::max(speculated, speculated_);
        previewed = std::max(previewed, previewed_);
      }
      if (repeats) break;
    }
    seconds /= counted;
    const double gpu = device_update_ + static_cast<double>(in_.micro_batches) * pass_;
    return {.gpu = gpu,
            .device_update = device_update_,
            .host = host / counted,
            .exposed = seconds - gpu > 1e-9 * gpu ? seconds - gpu : 0,  // not what rounding makes
            .speculated_elements = speculated,
            .previewed_elements = previewed};
  }

 private:
  struct Piece {
    int unit = 0;
    double elements = 0;
    enum Way { leave, speculate, preview } way = leave;
    double gradient_here = 0, weights_back = 0;  // when
    enum { waiting, owing, done } progress = waiting;
  };

  static double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }
  double full_bytes() const { return 2 * in_.state_bytes + in_.gradient_bytes + in_.weight_bytes; }
  double link_bytes() const { return in_.gradient_bytes + in_.weight_bytes; }

  void work(double& free_at, double not_before, double bytes) {
    const double seconds = bytes / in_.rates.host_memory;
    free_at = std::max(free_at, not_before) + seconds;
    host_busy_ += seconds;
  }
  void fetch(Piece& piece, double produced) {
    to_host_ = std::max(to_host_, produced) + piece.elements * in_.gradient_bytes / in_.rates.link_to_host;
    piece.gradient_here = to_host_;
  }
  // The part of the update that makes the piece's weights, and their way to the device.
  void update(Piece& piece) {
    const bool preview = piece.way == Piece::preview;
    const double bytes = preview ? in_.state_bytes + in_.gradient_bytes + in_.weight_bytes : full_bytes();
    work(host_, piece.gradient_here, piece.elements * (bytes + link_bytes()));
    to_device_ = std::max(to_device_, host_) + piece.elements * in_.weight_bytes / in_.rates.link_to_device;
    piece.weights_back = to_device_;
    piece.progress = preview ? Piece::owing : Piece::done;
  }

  void begin(const Policy& policy) {
    host_ = to_host_ = to_device_ = 0;
    const double rest = std::max(0.0, host_elements() - policy.left - policy.speculated);
    double from_top = 0, from_bottom = host_elements();  // elements above the piece, and from its end down
    for (auto piece = pieces_.rbegin(); piece != pieces_.rend(); ++piece) {
      const double end = from_top + piece->elements;
      piece->gradient_here = piece->weights_back = 0;
      piece->progress = Piece::waiting;
      piece->way = Piece::leave;
      if (end > policy.left * rounding)
        piece->way = end <= (policy.left + policy.speculated) * rounding ? Piece::speculate
                     : from_bottom <= policy.previewed * rest * rounding ? Piece::preview
                                                                         : Piece::leave;
      from_top = end;
      from_bottom -= piece->elements;
    }
  }

  // What waits after the verdict, the first unit first of what has come. Gradients come the last unit first, so that is
  // what has come last.
  void update_what_has_come() {
    come_.clear();
    auto next = pieces_.rbegin();
    for (;;) {
      for (; next != pieces_.rend() && (come_.empty() || next->gradient_here <= host_); ++next)
        if (next->progress == Piece::waiting) come_.push_back(&*next);
      if (come_.empty()) return;
      Piece& piece = *come_.back();
      come_.pop_back();
      update(piece);
    }
  }

  // From one verdict to the next.
  void step() {
    const bool overlapped = in_.schedule == Schedule::overlapped;
    host_busy_ = 0;
    host_ = std::max(0.0, host_);  // what is left now has waited for the verdict
    if (overlapped) {
      update_what_has_come();
    } else {
      for (Piece& piece : pieces_) {
        fetch(piece, 0);
        update(piece);
      }
    }
    // Their next gradients come in this order.
    for (auto piece = pieces_.rbegin(); piece != pieces_.rend(); ++piece)
      if (piece->progress == Piece::owing) work(host_, 0, piece->elements * (2 * in_.state_bytes + in_.gradient_bytes));

    double now = device_update_;
    if (!overlapped) now = std::max(now, host_);
    auto piece = pieces_.begin();
    for (std::size_t unit = 0; unit < forward_.size(); ++unit) {
      for (; piece != pieces_.end() && piece->unit == static_cast<int>(unit); ++piece)
        now = std::max(now, piece->weights_back);
      now += forward_[unit];
    }
    now += static_cast<double>(in_.micro_batches - 1) * pass_;

    const double verdict = now + sum(backward_);
    speculated_ = previewed_ = 0;
    auto next = pieces_.rbegin();
    for (int unit = static_cast<int>(backward_.size()) - 1; unit >= 0; --unit) {
      now += backward_[static_cast<std::size_t>(unit)];
      for (; next != pieces_.rend() && next->unit == unit; ++next) {
        next->progress = Piece::waiting;
        if (!overlapped) continue;
        fetch(*next, now);
        if (std::max(host_, next->gradient_here) >= verdict) continue;
        if (next->way == Piece::leave) continue;
        update(*next);
        (next->way == Piece::speculate ? speculated_ : previewed_) += next->elements;
      }
    }
    seconds_ = verdict;
    for (double* time : {&host_, &to_host_, &to_device_}) *time -= verdict;
    for (Piece& p : pieces_) {
      p.gradient_here -= verdict;
      p.weights_back -= verdict;
    }
  }

  const OffloadInputs& in_;
  std::vector<double> forward_, backward_;
  double pass_ = 0, device_update_ = 0;
  std::vector<Piece> pieces_;
  std::vector<Piece*> come_;
  double host_ = 0, to_host_ = 0, to_device_ = 0;  // when each is free
  double host_busy_ = 0, speculated_ = 0, previewed_ = 0, seconds_ = 0;
};

struct Candidate {
  int device_units = 0;
  Residency residency;
  std::int64_t keep = -1;  // -1: no choice of activations fits
  std::size_t device_short = 0, host_short = 0;
  std::int64_t undo_buckets = 0;
  StepEstimate estimate;
  bool fits() const { return keep >= 0 && host_short == 0; }
};

// How far `bytes` goes beyond `limit`.
std::size_t beyond(std::size_t bytes, std::size_t limit) { return bytes > limit ? bytes - limit : 0; }

Candidate consider(const OffloadInputs& in, int device_units, Residency residency) {
  Candidate c;
  c.device_units = device_units;
  c.residency = residency;
  const StateMemory state = in.memory(device_units, residency);
  c.host_short = beyond(state.host_bytes, in.host_budget);
  c.device_short = std::numeric_limits<std::size_t>::max();
  for (std::int64_t keep = 0; keep < std::ssize(in.keeps) && c.keep < 0; ++keep) {
    const std::size_t short_by = beyond(state.device_bytes + in.activation_bytes(keep), in.device_budget);
    c.device_short = std::min(c.device_short, short_by);
    if (short_by == 0) c.keep = keep;
  }
  if (!c.fits()) return c;

  std::int64_t places = 0;
  if (in.schedule == Schedule::overlapped) {
    for (std::size_t u = static_cast<std::size_t>(device_units); u < in.units.size(); ++u)
      places += buckets_of(in.units[u].elements, in.bucket_elements);
    if (in.undo_place_bytes > 0)
      places =
          std::min(places, static_cast<std::int64_t>(beyond(in.undo_budget, state.host_bytes) / in.undo_place_bytes));
  }
  c.estimate = estimate_step(in, device_units, c.keep, places, residency);
  // As many as the host can fill during backward, whether or not the estimate needs them all: a place saves the host
  // the second pass of a preview.
  const Timeline timeline(in, device_units, c.keep, residency);
  const double fillable = std::min(timeline.host_elements(), timeline.backward_seconds() / timeline.update_seconds());
  c.undo_buckets =
      std::min(places, static_cast<std::int64_t>(std::ceil(fillable / static_cast<double>(in.bucket_elements))));
  if (c.undo_buckets < places) c.estimate = estimate_step(in, device_units, c.keep, c.undo_buckets, residency);
  return c;
}

// The best for a split; if none fits, the one that comes nearest.
Candidate consider(const OffloadInputs& in, int device_units) {
  std::vector<Candidate> candidates;
  for (const Residency residency : in.residencies) candidates.push_back(consider(in, device_units, residency));
  // What keeps more comes first, so it wins where they are equal.
  const auto better = [](const Candidate& a, const Candidate& b) {
    if (a.fits() != b.fits()) return a.fits();
    if (!a.fits()) return a.device_short + a.host_short < b.device_short + b.host_short;
    return rank_of(a.estimate) < rank_of(b.estimate) - equal_share * b.estimate.seconds();
  };
  const Candidate* best = &candidates.front();
  for (const Candidate& c : candidates)
    if (better(c, *best)) best = &c;
  return *best;
}

[[noreturn]] void refuse(const OffloadInputs& in, const std::vector<Candidate>& candidates) {
  const auto device_short = [](const Candidate& a, const Candidate& b) { return a.device_short < b.device_short; };
  const auto host_short = [](const Candidate& a, const Candidate& b) { return a.host_short < b.host_short; };
  const Candidate &device = *std::min_element(candidates.begin(), candidates.end(), device_short),
                  &host = *std::min_element(candidates.begin(), candidates.end(), host_short);
  const std::string split = in.forced_device_units < 0 ? ", whatever the split of the optimizer state"
                                                       : ", with the optimizer state split as asked";
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
      std::find_if(candidates.rbegin(), candidates.rend(), [](const Candidate& c) { return c.device_short == 0; });
  throw NothingFits(fmt::format("not enough memory: with as much of the optimizer state on {} as fits there, the host "
                                "is {} short of {} for the rest",
                                in.device_name, format_bytes(most->host_short), format_bytes(in.host_budget)),
                    in.host_advice, most->device_units, most->residency);
}

std::int64_t elements_of(const OffloadInputs& in, int begin, int end) {
  std::int64_t n = 0;
  for (int u = begin; u < end; ++u) n += in.units[static_cast<std::size_t>(u)].elements;
  return n;
}

std::string explain_split(const OffloadInputs& in, const Candidate& chosen, const std::vector<Candidate>& all) {
  const int units = static_cast<int>(in.units.size()), d = chosen.device_units;
  const double share = static_cast<double>(elements_of(in, d, units)) /
                       static_cast<double>(std::max<std::int64_t>(1, elements_of(in, 0, units)));
  const std::string what =
      d == 0 ? "all on the host"
      : d == units
          ? "all on the device"
          : fmt::format("{:.1f}% on the host, the rest on the device (units 0 to {} of {})", 100 * share, d - 1, units);
  if (in.forced_device_units >= 0) return what + ", as asked";
  if (d == units) return what + ", where it fits";
  const Candidate& more = all[static_cast<std::size_t>(d) + 1];
  if (!more.fits()) return what + ": the device has no memory for more";
  return what + fmt::format(": more on the device would leave less for activations ({:.3f} s a step, not {:.3f})",
                            more.estimate.seconds(), chosen.estimate.seconds());
}

}  // namespace

std::string describe_rates(const MachineRates& r) {
  return fmt::format(
      "matrix products {:.4g} TFLOP/s, device memory {:.4g} GB/s, link {:.4g} GB/s to the host and {:.4g} back, host "
      "AdamW {:.4g} GB/s",
      r.gemm_flops / 1e12, r.device_memory / 1e9, r.link_to_host / 1e9, r.link_to_device / 1e9, r.host_memory / 1e9);
}

CastSide choose_cast(const MachineRates& r, double state_bytes) {
  constexpr double clearly = 0.95, narrow = 2, wide = 4;
  const auto seconds = [&](double size, double memory) {
    // Gradient and weight pass through the host's memory once more on their way.
    return std::max({size / r.link_to_host, size / r.link_to_device, (2 * state_bytes + 4 * size) / memory});
  };
  return seconds(wide, r.host_wide) < clearly * seconds(narrow, r.host_memory) ? CastSide::device : CastSide::host;
}

StepEstimate estimate_step(const OffloadInputs& inputs, int device_units, std::int64_t keep, std::int64_t undo_buckets,
                           Residency residency) {
  Timeline timeline(inputs, device_units, keep, residency);
  StepEstimate best = timeline.run({});
  if (inputs.schedule == Schedule::synchronous || best.exposed == 0) return best;
  const double all = timeline.host_elements(),
               places = std::min(static_cast<double>(undo_buckets * inputs.bucket_elements), all);
  const double under_forward = timeline.forward_seconds() / timeline.update_seconds();
  double before = -1;
  for (const double share : {1.0, 0.75, 0.5, 0.25, 0.125, 0.0}) {
    const double speculated = std::min(places, share * all);
    if (speculated == before) continue;
    before = speculated;
    for (const double left : {0.0, under_forward, 0.25 * all, 0.5 * all})
      for (const double previewed : {0.0, 0.5, 1.0}) {
        const StepEstimate estimate = timeline.run({left, speculated, previewed});
        if (estimate.seconds() < best.seconds()) best = estimate;
        if (best.exposed == 0) return best;
      }
  }
  return best;
}

double rank_of(const StepEstimate& estimate) { return estimate.seconds() - estimate.device_update; }

OffloadPlan choose_offload(const OffloadInputs& in) {
  const int units = static_cast<int>(in.units.size());
  SO_CHECK(units > 0 && !in.keeps.empty() && in.bucket_elements > 0 && in.forced_device_units <= units,
           "{} units, {} choices of activations, buckets of {}, {} units forced", units, in.keeps.size(),
           in.bucket_elements, in.forced_device_units);
  std::vector<Candidate> candidates;
  if (in.forced_device_units >= 0)
    candidates.push_back(consider(in, in.forced_device_units));
  else
    for (int d = 0; d <= units; ++d) candidates.push_back(consider(in, d));

  const Candidate* best = nullptr;
  for (const Candidate& c : candidates)
    if (c.fits() && (!best || rank_of(c.estimate) < rank_of(best->estimate))) best = &c;
  if (!best) refuse(in, candidates);
  const double limit = rank_of(best->estimate) + equal_share * best->estimate.seconds();
  for (const Candidate& c : candidates)
    if (c.fits() && rank_of(c.estimate) <= limit && c.device_units > best->device_units) best = &c;

  OffloadPlan plan{.device_units = best->device_units,
                   .residency = best->residency,
                   .keep = best->keep,
                   .undo_buckets = best->undo_buckets,
                   .estimate = best->estimate,
                   .why_split = explain_split(in, *best, candidates),
                   .why_undo = {},
                   .why_residency = {}};
  const auto memory = [&](Residency residency) { return in.memory(best->device_units, residency).device_bytes; };
  if (best->residency != Residency{})
    plan.why_residency = fmt::format(
        "device memory saved: {}{}{}, {}",
        best->residency.transient_weights ? "weights of device-owned layers are made of their masters for each use"
                                          : "",
        best->residency == Residency{true, true} ? "; " : "",
        best->residency.transient_gradients ? "gradients of host-owned layers are moved to host memory" : "",
        format_bytes(beyond(memory({}), memory(best->residency))));
  if (in.schedule == Schedule::synchronous) {
    plan.why_undo = "no places for new state: the synchronous schedule updates in place";
  } else if (best->device_units == units) {
    plan.why_undo = "no places for new state: the host has none";
  } else {
    plan.why_undo = fmt::format(
        "places for new state of {} buckets ({}): as many as the host can fill before the verdict "
        "and its memory holds",
        best->undo_buckets, format_bytes(static_cast<std::size_t>(best->undo_buckets) * in.undo_place_bytes));
  }
  return plan;
}

bool any_fits(const OffloadInputs& in) {
  std::optional<std::size_t> most_left;  // of the device's memory, for activations
  for (const Residency residency : in.residencies) {
    // The fewest units for which the host has room.
    int first = 0, last = static_cast<int>(in.units.size());
    if (in.forced_device_units >= 0) first = last = in.forced_device_units;
    while (first < last) {
      const int middle = first + (last - first) / 2;
      if (in.memory(middle, residency).host_bytes <= in.host_budget)
        last = middle;
      else
        first = middle + 1;
    }
    const StateMemory state = in.memory(first, residency);
    if (state.host_bytes > in.host_budget || state.device_bytes > in.device_budget) continue;
    most_left = std::max(most_left.value_or(0), in.device_budget - state.device_bytes);
  }
  if (!most_left) return false;
  // The last keeps the least, but for what little a layer's scratch makes.
  for (std::int64_t keep = std::ssize(in.keeps) - 1; keep >= 0; --keep)
    if (in.activation_bytes(keep) <= *most_left) return true;
  return false;
}

double host_share(const ParameterLayout& layout, int device_units) {
  SO_CHECK(device_units >= 0 && device_units <= layout.units(), "{} of {} units", device_units, layout.units());
  if (device_units == layout.units()) return 0;
  const std::int64_t begin = layout.unit_range(device_units).begin;
  return static_cast<double>(layout.elements() - begin) / static_cast<double>(layout.elements());
}

int device_units_for_ratio(const ParameterLayout& layout, double ratio) {
  SO_CHECK(ratio >= 0 && ratio <= 1, "ratio {}", ratio);
  int units = 0;
  while (host_share(layout, units) > ratio) ++units;
  return units;
}

}  // namespace so
