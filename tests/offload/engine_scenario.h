// What tests of the engine train: five steps of three micro-batches of a small layout.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "offload/engine_rig.h"

namespace so::test::engine_run {

inline constexpr double kLr[] = {1e-2, 3e-3, 0, 1e-3, 2e-2};
inline constexpr std::size_t kSteps = std::size(kLr);
inline constexpr std::size_t kMicroBatches = 3;

inline const ParameterLayout& the_layout() {
  static const ParameterLayout layout = engine_layout();
  return layout;
}

inline CountedSettings settings_of(DType compute, std::int64_t bucket_elements, double max_grad_norm = 0,
                                   Owner owner = Owner::host) {
  CountedSettings settings;
  settings.counts.device_units = owner == Owner::device ? the_layout().units() : 0;
  settings.formats = model_formats(compute);
  settings.placement.bucket_elements = bucket_elements;
  settings.weight_decay = 0.1;
  settings.max_grad_norm = max_grad_norm;
  return settings;
}

// The gradients of five steps of three micro-batches, what they add up to in the order they are written, and the
// initial weights. Made once.
struct Scenario {
  ParameterLayout layout = engine_layout();
  Flat initial = synthetic_gradients(layout, 1, 0.125f);
  std::vector<std::vector<Flat>> micro_batches;
  std::vector<std::vector<std::vector<float>>> shared;  // [step][micro-batch]: second uses of parameter 0
  std::vector<Flat> sums;
  std::vector<double> norms;

  Scenario() {
    unsigned seed = 2;
    for (std::size_t s = 0; s < kSteps; ++s) {
      const float scale = s % 2 == 0 ? 1.0f : 0x1p-6f;  // so that a limit between them clips every other step
      micro_batches.emplace_back();
      shared.emplace_back();
      for (std::size_t i = 0; i < kMicroBatches; ++i) {
        micro_batches[s].push_back(synthetic_gradients(layout, seed++, scale));
        shared[s].push_back(synthetic_gradients(layout, seed++, scale)[0]);
        if (i == 0) sums.push_back(micro_batches[s][0]);
        for (std::size_t p = 0; p < sums[s].size(); ++p)
          for (std::size_t e = 0; e < sums[s][p].size(); ++e) {
            if (i > 0) sums[s][p][e] += micro_batches[s][i][p][e];
            if (p == 0) sums[s][p][e] += shared[s][i][e];
          }
      }
      double squares = 0;
      for (const auto& values : sums[s])
        for (const float g : values) squares += static_cast<double>(g) * g;
      norms.push_back(std::sqrt(squares));
    }
  }
};
inline const Scenario& the_run() {
  static const Scenario run;
  return run;
}

}  // namespace so::test::engine_run
