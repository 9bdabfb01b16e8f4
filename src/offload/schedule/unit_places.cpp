#include "offload/schedule/unit_places.h"

#include <algorithm>
#include <cstddef>

#include "base/error.h"

namespace so {

std::vector<int> in_turn(const std::vector<bool>& units, int places) {
  std::vector<int> taken;
  int turn = 0;
  for (const bool takes_turns : units) taken.push_back(takes_turns ? turn++ % places : -1);
  return taken;
}

UnitPlaces lay_out(std::span<const std::int64_t> sizes, std::span<const int> places) {
  SO_CHECK(places.empty() || places.size() == sizes.size(), "places of {} of {} units", places.size(), sizes.size());
  const auto place = [&](std::size_t unit) { return places.empty() ? -1 : places[unit]; };
  UnitPlaces all{std::vector<std::int64_t>(sizes.size()), 0};
  std::vector<std::int64_t> shared;  // their sizes, then where they begin
  for (std::size_t unit = 0; unit < sizes.size(); ++unit) {
    if (place(unit) < 0) {
      all.starts[unit] = all.size;
      all.size += sizes[unit];
      continue;
    }
    const auto p = static_cast<std::size_t>(place(unit));
    shared.resize(std::max(shared.size(), p + 1));
    shared[p] = std::max(shared[p], sizes[unit]);
  }
  for (std::int64_t& start : shared) {
    const std::int64_t size = start;
    start = all.size;
    all.size += size;
  }
  for (std::size_t unit = 0; unit < sizes.size(); ++unit)
    if (place(unit) >= 0) all.starts[unit] = shared[static_cast<std::size_t>(place(unit))];
  return all;
}

}  // namespace so
