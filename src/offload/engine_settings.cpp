#include "offload/engine_settings.h"

#include "base/error.h"

namespace so {

const EngineSettings& check_settings(const EngineSettings& settings, const ParameterLayout& layout,
                                     const Communicator& ranks) {
  const Placement& placement = settings.placement;
  SO_CHECK(placement.ranks == ranks.size() && static_cast<int>(placement.units.size()) == layout.units(),
           "a placement of {} units on {} ranks, for {} on {}", placement.units.size(), placement.ranks, layout.units(),
           ranks.size());
  SO_CHECK(settings.caller.weights.empty() ||
               (static_cast<int>(settings.caller.weights.size()) == layout.count() && !layout.has_frozen()),
           "places for {} of {} weights, or frozen ones", settings.caller.weights.size(), layout.count());
  SO_CHECK(
      placement.count(ResidencyKind::callers) == (settings.caller.weights.empty() ? 0 : placement.count(Owner::host)),
      "{} units in memory of a caller's, which gives {} places", placement.count(ResidencyKind::callers),
      settings.caller.weights.size());
  check_formats(settings.formats);
  return settings;
}

}  // namespace so
