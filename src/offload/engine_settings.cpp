#include "offload/engine_settings.h"

#include <algorithm>

#include "base/error.h"

namespace so {
namespace {

void check_weight_places(const EngineSettings& settings, const ParameterLayout& layout, const Communicator& ranks) {
  if (settings.weight_places.empty()) return;
  SO_CHECK(static_cast<int>(settings.weight_places.size()) == layout.count(), "places for {} of {} weights",
           settings.weight_places.size(), layout.count());
  SO_CHECK(ranks.size() == 1 && settings.streamed_units == 0 && !layout.has_frozen(),
           "the caller's weights where the engine must have its own");
}

void check_ranks(const EngineSettings& settings, const Communicator& ranks) {
  if (ranks.size() == 1) {
    SO_CHECK(settings.gathered == 0 && settings.host_weights == ResidencyKind::resident,
             "{} units gathered from one rank", settings.gathered);
    return;
  }
  SO_CHECK(settings.streamed_units == 0, "{} ranks with {} streamed units", ranks.size(), settings.streamed_units);
  SO_CHECK(settings.device_weights == ResidencyKind::resident || settings.gathered > 0,
           "{} ranks with weights made of masters, of which none are gathered", ranks.size());
}

}  // namespace

std::vector<ResidencyKind> residencies_of_units(const ParameterLayout& layout, const EngineSettings& settings) {
  if (!settings.weight_places.empty()) {  // the device writes new ones where they are
    std::vector kinds(static_cast<std::size_t>(layout.units()), ResidencyKind::callers);
    std::fill_n(kinds.begin(), settings.device_units, ResidencyKind::resident);
    return kinds;
  }
  return residency_kinds(layout, settings.device_units, settings.device_weights, settings.streamed_units,
                         settings.gathered, settings.host_weights);
}

bool cuts_within_units(const EngineSettings& settings, const Communicator& ranks) {
  return (ranks.size() > 1 && settings.formats.gradients != settings.formats.rank_sums) ||
         settings.device_weights != ResidencyKind::resident || settings.host_gradients == GradientResidency::moved ||
         settings.streamed_units > 0 || settings.gathered > 0 || settings.units_in_any_order;
}

GradientPlaces gradient_places(const ParameterLayout& layout, const EngineSettings& settings, int ranks) {
  std::vector<bool> trained;
  for (int unit = 0; unit < layout.units(); ++unit) trained.push_back(layout.trained_elements(unit) > 0);
  return gradient_places(trained, settings.device_units, settings.host_gradients == GradientResidency::moved,
                         settings.gathered, ranks > 1);
}

void check_engine_settings(const EngineSettings& settings, const ParameterLayout& layout, const Communicator& ranks) {
  check_ranks(settings, ranks);
  check_weight_places(settings, layout, ranks);
  check_formats(settings.formats);
}

}  // namespace so
