// Engine settings as tests say them: by numbers of units, of which the rows of a placement are made.
#pragma once

#include <vector>

#include "offload/engine_settings.h"

namespace so::test {

inline std::vector<Input> inputs(const std::vector<bool>& remade) {
  std::vector<Input> all;
  for (const bool r : remade) all.push_back(r ? Input::remade : Input::kept);
  return all;
}

struct CountedSettings : EngineSettings {
  Counts counts;
  std::vector<bool> remade_inputs;  // by unit; empty: none is

  EngineSettings of(const ParameterLayout& layout, int ranks = 1) const {
    EngineSettings settings = *this;
    settings.placement.ranks = ranks;
    settings.placement.units = make_rows(trained_units(layout), ranks, counts, inputs(remade_inputs));
    return settings;
  }
};

// The rows of a layout of which the device owns the first units.
inline std::vector<UnitPlacement> owned_rows(const ParameterLayout& layout, int device_units) {
  return make_rows(trained_units(layout), 1, {.device_units = device_units});
}

}  // namespace so::test
