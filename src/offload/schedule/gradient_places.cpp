#include "offload/schedule/gradient_places.h"

#include <cstddef>
#include <utility>

#include "offload/schedule/gathered_units.h"
#include "offload/schedule/parameter_layout.h"
#include "offload/schedule/unit_places.h"

namespace so {

GradientPlaces gradient_places(const std::vector<bool>& trained, int device_units, bool move, int gathered,
                               bool several_ranks) {
  const int units = static_cast<int>(trained.size());
  std::vector<bool> moves(trained.size(), false);
  for (int unit = device_units; unit < units && move; ++unit)
    moves[static_cast<std::size_t>(unit)] = trained[static_cast<std::size_t>(unit)] && !unit_stays(unit, units);
  if (!several_ranks) {
    const std::vector<int> slots = in_turn(moves, gradient_slots);
    return {slots, std::vector(moves.size(), false), std::vector(moves.size(), -1), slots};
  }
  std::vector<bool> sliced = gathered_units(units, gathered);
  for (std::size_t unit = 0; unit < sliced.size(); ++unit) sliced[unit] = sliced[unit] || moves[unit];
  std::vector<int> slots = in_turn(sliced, gradient_slots), slices = in_turn(moves, slice_slots);
  return {std::move(slots), std::move(sliced), slices, slices};
}

}  // namespace so
