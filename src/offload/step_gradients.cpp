#include "offload/step_gradients.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "offload/moved_gradients.h"

namespace so {
namespace {

// Gradients that have places of their own: those of a step's micro-batches add up there. With several ranks the last
// micro-batch's sum is reduced to this rank's slices.
class WholeGradients final : public GradientResidency {
 public:
  WholeGradients(Exchange& exchange, const UnitBuckets& buckets) : exchange_(exchange), buckets_(buckets) {}

  Stream& complete(int unit, bool last, Stream& stream) override {
    if (!last) return stream;
    Stream& sums = exchange_.reducing(stream);
    exchange_.reduce(buckets_.complete_with(unit), Accumulate::overwrite);
    return sums;
  }

 private:
  Exchange& exchange_;
  const UnitBuckets& buckets_;
};

// Gradients that take turns in a few places of device memory, with several ranks: each micro-batch's is reduced from
// there and added to this rank's slices.
class SlicedGradients final : public GradientResidency {
 public:
  // `places`: by unit, the number of its place; -1 of other residencies' units. `slices`: of the slices, which are
  // required and leave as gradients do.
  SlicedGradients(Device& device, Exchange& exchange, const UnitBuckets& buckets, std::vector<int> places,
                  GradientResidency& slices)
      : exchange_(exchange),
        buckets_(buckets),
        places_of_(std::move(places)),
        slices_(slices),
        summed_(places_of_.size(), false) {
    for (Place& place : places_) place.reduced = device.create_event();
  }

  void require(int unit, Stream& stream) override {
    Place& place = places_[turn(unit)];
    if (std::exchange(place.used, true)) stream.wait(*place.reduced);
  }
  bool here(int unit) const override {
    const Place& place = places_[turn(unit)];
    return !place.used || place.reduced->done();
  }
  bool adds_up() const override { return false; }
  Stream& complete(int unit, bool last, Stream& stream) override {
    const auto u = static_cast<std::size_t>(unit);
    const std::span<const Bucket> buckets = buckets_.of(unit);
    Stream& sums = exchange_.reducing(stream);
    slices_.require(unit, sums);
    exchange_.reduce(buckets, summed_[u] ? Accumulate::add : Accumulate::overwrite);
    sums.record(*places_[turn(unit)].reduced);
    summed_[u] = !last && std::any_of(buckets.begin(), buckets.end(), [](const Bucket& b) { return !b.frozen(); });
    return sums;
  }
  void leave(int unit, bool last, Stream& stream) override { slices_.leave(unit, last, stream); }
  void drop() override { summed_.assign(summed_.size(), false); }

 private:
  struct Place {
    bool used = false;
    std::unique_ptr<Event> reduced;  // what was there last
  };
  std::size_t turn(int unit) const { return static_cast<std::size_t>(places_of_[static_cast<std::size_t>(unit)]); }

  Exchange& exchange_;
  const UnitBuckets& buckets_;
  const std::vector<int> places_of_;  // by unit
  GradientResidency& slices_;
  std::array<Place, gradient_slots> places_;
  std::vector<bool> summed_;  // by unit: its slices have gradients of this step's micro-batches
};

}  // namespace

StepGradients::StepGradients(Device& device, const ParameterLayout& layout, const Placement& placement,
                             std::span<const Bucket> buckets, const UnitBuckets& unit_buckets, Exchange& exchange,
                             HostGradients& host)
    : layout_(layout), written_(static_cast<std::size_t>(layout.count()), false) {
  const Turns turns = turns_of(placement);
  const auto keep = [&](std::unique_ptr<GradientResidency> kind) { return kinds_.emplace_back(std::move(kind)).get(); };
  GradientResidency* const whole = keep(std::make_unique<WholeGradients>(exchange, unit_buckets));
  GradientResidency* const moved =
      host.moves() ? keep(std::make_unique<MovedGradients>(device, layout, buckets, turns.moving, host)) : whole;
  GradientResidency* const sliced =
      keep(std::make_unique<SlicedGradients>(device, exchange, unit_buckets, turns.gradients, *moved));
  for (const UnitPlacement& unit : placement.units)
    by_unit_.push_back(unit.sliced ? sliced : unit.moved ? moved : whole);
}

Accumulate StepGradients::write(int first, int count) {
  const int unit = layout_.parameter(first).unit;
  SO_CHECK(of(unit).holds(unit), "a gradient of '{}', which was not required", layout_.parameter(first).name);
  const Accumulate mode = written(first) ? Accumulate::add : Accumulate::overwrite;
  std::fill_n(written_.begin() + first, count, true);
  return mode;
}

Stream& StepGradients::complete(int unit, bool last, Stream& stream) {
  Stream& sums = of(unit).complete(unit, last, stream);
  if (last || of(unit).adds_up()) return sums;
  const auto [begin, end] = layout_.unit_parameters(unit);
  std::fill(written_.begin() + begin, written_.begin() + end, false);
  return sums;
}

void StepGradients::restart() { written_.assign(written_.size(), false); }

void StepGradients::drop() {
  restart();
  for (const auto& kind : kinds_) kind->drop();
}

std::int64_t StepGradients::sums_brought() const {
  std::int64_t units = 0;
  for (const auto& kind : kinds_) units += kind->sums_brought();
  return units;
}

}  // namespace so
