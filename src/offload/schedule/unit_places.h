// Memory in which most units have a place of their own and some take turns in one: the values of one unit last until
// the next one comes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace so {

// The place of each unit: those of `units` take `places` in turn; the others have places of their own, -1.
std::vector<int> in_turn(const std::vector<bool>& units, int places);

struct UnitPlaces {
  std::vector<std::int64_t> starts;  // by unit
  std::int64_t size = 0;             // of all places
};

// Where each unit's place begins if they are of `sizes` and `places` says which are shared (empty: none). Units with
// places of their own lie side by side; behind them the shared ones, each as large as the largest that takes it.
UnitPlaces lay_out(std::span<const std::int64_t> sizes, std::span<const int> places);

}  // namespace so
