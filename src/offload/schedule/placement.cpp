#include "offload/schedule/placement.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "offload/schedule/unit_places.h"

namespace so {
namespace {

std::vector<int> units_that_may(int units, int device_units) {
  std::vector<int> may;
  for (int unit = device_units; unit < units; ++unit)
    if (!unit_stays(unit, units)) may.push_back(unit);
  return may;
}

// Marks `count` of the units that need not stay, from the first that the device does not own on.
std::vector<bool> spread(int units, int device_units, int count) {
  const std::vector<int> may = units_that_may(units, device_units);
  const auto most = static_cast<int>(may.size());
  SO_CHECK(count >= 0 && count <= most, "{} of {} units streamed or gathered", count, most);
  std::vector<bool> chosen(static_cast<std::size_t>(units), false);
  // The unit at which the running share of them passes a whole number; the last of each run, so that the forward pass
  // begins with units that are there.
  for (int i = 0; i < most; ++i)
    chosen[static_cast<std::size_t>(may[static_cast<std::size_t>(i)])] = (i + 1) * count / most > i * count / most;
  return chosen;
}

void check_counts(const Counts& counts, int units, int ranks) {
  SO_CHECK(counts.device_units >= 0 && counts.device_units <= units, "{} of {} units are the device's",
           counts.device_units, units);
  SO_CHECK(ranks > 1 || counts.gathered_units == 0, "{} units gathered from one rank", counts.gathered_units);
  SO_CHECK(ranks == 1 || (counts.streamed_units == 0 && !counts.callers),
           "{} ranks with {} streamed units, or with weights of a caller's", ranks, counts.streamed_units);
  SO_CHECK(ranks == 1 || counts.gathered_units > 0 || (!counts.cast_weights && !counts.send_masters),
           "{} ranks with weights made of masters, of which none are gathered", ranks);
  SO_CHECK(!counts.callers || counts.streamed_units == 0, "weights of a caller's where {} units stream",
           counts.streamed_units);
}

ResidencyKind weights_of(const Counts& counts, bool on_device, bool has_masters, bool streams, bool gathered,
                         int ranks) {
  const bool made = has_masters && (on_device ? counts.cast_weights : counts.send_masters);
  if (gathered) return made ? ResidencyKind::gathered_from_masters : ResidencyKind::gathered;
  if (made && on_device && ranks == 1) return ResidencyKind::from_masters;
  if (streams) return made ? ResidencyKind::streamed_from_masters : ResidencyKind::streamed;
  return ResidencyKind::resident;
}

}  // namespace

std::string_view name_of(Owner owner) {
  return owner == Owner::host ? "host" : owner == Owner::device ? "device" : "nobody";
}

std::string_view name_of(ResidencyKind weights) {
  constexpr std::array<std::string_view, 7> names = {
      "resident", "streamed", "from_masters", "gathered", "callers", "gathered_from_masters", "streamed_from_masters"};
  return names.at(static_cast<std::size_t>(weights));
}

std::string_view name_of(Input input) {
  constexpr std::array<std::string_view, 3> names = {"kept", "on_host", "remade"};
  return names.at(static_cast<std::size_t>(input));
}

std::vector<Trained> trained_units(const ParameterLayout& layout) {
  std::vector<Trained> units;
  for (int unit = 0; unit < layout.units(); ++unit)
    units.push_back(layout.trained_elements(unit) == 0 ? Trained::none
                    : layout.has_frozen(unit)          ? Trained::some
                                                       : Trained::all);
  return units;
}

int most_streamed_units(int units, int device_units) {
  return static_cast<int>(units_that_may(units, device_units).size());
}

int most_gathered_units(int units) { return most_streamed_units(units, 0); }

std::vector<UnitPlacement> make_rows(std::span<const Trained> units, int ranks, const Counts& counts,
                                     std::span<const Input> inputs) {
  const auto count = static_cast<int>(units.size());
  check_counts(counts, count, ranks);
  SO_CHECK(inputs.empty() || inputs.size() == units.size(), "inputs of {} of {} units", inputs.size(), count);
  const std::vector<bool> streams = spread(count, counts.device_units, counts.streamed_units),
                          gathered = spread(count, 0, counts.gathered_units);
  std::vector<UnitPlacement> rows(units.size());
  for (std::size_t u = 0; u < rows.size(); ++u) {
    const auto unit = static_cast<int>(u);
    const bool on_device = unit < counts.device_units, stays = unit_stays(unit, count);
    UnitPlacement& row = rows[u];
    row.owner = on_device ? Owner::device : Owner::host;
    if (counts.callers && !on_device)
      row.weights = ResidencyKind::callers;
    else if (!stays)
      row.weights = weights_of(counts, on_device, units[u] == Trained::all, streams[u], gathered[u], ranks);
    row.moved = counts.move_gradients && !on_device && !stays && units[u] != Trained::none;
    row.sliced = ranks > 1 && (row.moved || gathered[u]);
    if (!inputs.empty()) row.input = inputs[u];
  }
  return rows;
}

int Placement::count(Owner owner) const {
  return static_cast<int>(
      std::count_if(units.begin(), units.end(), [&](const UnitPlacement& u) { return u.owner == owner; }));
}

int Placement::count(ResidencyKind weights) const {
  return static_cast<int>(
      std::count_if(units.begin(), units.end(), [&](const UnitPlacement& u) { return u.weights == weights; }));
}

int Placement::streamed() const {
  return static_cast<int>(
      std::count_if(units.begin(), units.end(), [](const UnitPlacement& u) { return is_streamed(u.weights); }));
}

int Placement::gathered() const {
  return static_cast<int>(
      std::count_if(units.begin(), units.end(), [](const UnitPlacement& u) { return is_gathered(u.weights); }));
}

bool Placement::moves() const {
  return std::any_of(units.begin(), units.end(), [](const UnitPlacement& u) { return u.moved; });
}

bool Placement::makes_from_masters(Owner owner) const {
  return std::any_of(units.begin(), units.end(), [&](const UnitPlacement& u) {
    return u.owner == owner &&
           (u.weights == ResidencyKind::from_masters || u.weights == ResidencyKind::gathered_from_masters ||
            u.weights == ResidencyKind::streamed_from_masters);
  });
}

std::vector<bool> Placement::remade_inputs() const {
  std::vector<bool> remade;
  for (const UnitPlacement& u : units) remade.push_back(u.input == Input::remade);
  return remade;
}

bool Placement::cuts_within_units(const NumberFormats& formats) const {
  return (ranks > 1 && formats.gradients != formats.rank_sums) ||
         std::any_of(units.begin(), units.end(), [](const UnitPlacement& u) {
           return u.moved || u.sliced || (u.weights != ResidencyKind::resident && u.weights != ResidencyKind::callers);
         });
}

double host_share(const ParameterLayout& layout, int device_units) {
  SO_CHECK(device_units >= 0 && device_units <= layout.units(), "{} of {} units", device_units, layout.units());
  std::int64_t host = 0;
  for (int unit = device_units; unit < layout.units(); ++unit) host += layout.trained_elements(unit);
  return host == 0 ? 0 : static_cast<double>(host) / static_cast<double>(layout.trained_elements());
}

int device_units_for_ratio(const ParameterLayout& layout, double ratio) {
  SO_CHECK(ratio >= 0 && ratio <= 1, "ratio {}", ratio);
  int units = 0;
  while (units < layout.units() && host_share(layout, units) > ratio) ++units;
  return units;
}

Turns turns_of(const Placement& placement) {
  const auto among = [&](const auto& takes_turns) {
    std::vector<bool> units;
    for (const UnitPlacement& u : placement.units) units.push_back(takes_turns(u));
    return units;
  };
  Turns turns{std::vector<int>(placement.units.size(), -1), {}, {}, {}};
  // Each kind of weights has places of its own, behind those of the kinds before it.
  int first = 0;
  const auto weights = [&](int places, const auto& is_kind) {
    const std::vector<int> taken = in_turn(among([&](const UnitPlacement& u) { return is_kind(u.weights); }), places);
    for (std::size_t u = 0; u < taken.size(); ++u)
      if (taken[u] >= 0) turns.weights[u] = first + taken[u];
    first += places;
  };
  weights(stream_places, is_streamed);
  weights(1, [](ResidencyKind kind) { return kind == ResidencyKind::from_masters; });
  weights(gather_places, is_gathered);
  const std::vector<bool> moved = among([](const UnitPlacement& u) { return u.moved; });
  if (placement.ranks == 1) {
    turns.gradients = turns.moving = in_turn(moved, gradient_slots);
    turns.slices.assign(moved.size(), -1);
  } else {
    turns.gradients = in_turn(among([](const UnitPlacement& u) { return u.sliced; }), gradient_slots);
    turns.slices = turns.moving = in_turn(moved, slice_slots);
  }
  return turns;
}

}  // namespace so
