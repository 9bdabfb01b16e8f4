// Tests choose placements from these inputs: a model of equal layers, on a GPU of known rates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "plan/gpu_rates.h"
#include "plan/placement/placement.h"

namespace so::test {

inline constexpr std::int64_t bucket_size = 16'000'000;

// Of units that all keep their weights and gradients.
inline Choice choice_of(int device_units, std::int64_t keep, std::int64_t spare_buckets = 0) {
  Choice choice{.keep = keep, .spare_buckets = spare_buckets};
  choice.device_units = device_units;
  return choice;
}

// A model of equal layers on one GPU: embedding, layers, head. Keeping less frees activations a layer at a time.
struct LayeredMachine {
  PlacementInputs in;
  std::size_t per_layer_activations = 1'000'000'000, fixed_activations = 500'000'000;

  LayeredMachine(int layers, std::int64_t layer_elements, double tokens) {
    in.rates = gpu_rates();
    in.bucket_elements = bucket_size;
    in.spare_place_bytes = 12 * bucket_size;
    in.device_name = "GPU";
    in.device_advice = "buy a larger GPU";
    in.host_advice = "buy memory";
    const auto unit = [&](std::int64_t elements, double matrices) {
      const double forward = 2 * matrices * tokens;
      in.units.push_back({elements, forward, 2 * forward});
    };
    const std::int64_t vocabulary = layer_elements / 2;
    unit(vocabulary, 0);
    for (int i = 0; i < layers; ++i) unit(layer_elements, static_cast<double>(layer_elements));
    unit(vocabulary, static_cast<double>(vocabulary));
    for (int dropped = 0; dropped <= layers; ++dropped) {
      Recomputation again;
      again.flops.assign(in.units.size(), 0);
      again.device_bytes.assign(in.units.size(), 0);
      for (int i = 1; i <= dropped; ++i)
        again.flops[static_cast<std::size_t>(i)] = in.units[static_cast<std::size_t>(i)].forward_flops;
      in.keeps.push_back(std::move(again));
    }
    in.activation_bytes = [this, layers](std::int64_t keep) {
      return fixed_activations + per_layer_activations * static_cast<std::size_t>(layers - keep);
    };
    in.memory = [this](const Choice& choice) {
      std::size_t device = 0, host = 0;
      for (std::size_t u = 0; u < in.units.size(); ++u) {
        const auto n = static_cast<std::size_t>(in.units[u].elements);
        const bool inner = u > 0 && u + 1 < in.units.size(), on_device = static_cast<int>(u) < choice.device_units;
        device += 4 * n;
        (on_device ? device : host) += 12 * n;
        if (inner && on_device && choice.cast_weights) device -= 2 * n;
        if (inner && !on_device && choice.move_gradients) device -= 2 * n;
        if (!on_device && choice.move_gradients) host += 2 * n;
      }
      return StateMemory{device, host};
    };
    budgets(1e15, 1e15);
  }
  LayeredMachine(const LayeredMachine&) = delete;

  void budgets(double device, double host) {
    in.device_budget = static_cast<std::size_t>(device);
    in.host_budget = in.spare_budget = static_cast<std::size_t>(host);
  }
  int units() const { return static_cast<int>(in.units.size()); }
  double elements() const {
    double n = 0;
    for (const UnitWork& unit : in.units) n += static_cast<double>(unit.elements);
    return n;
  }
  // Forward and backward alone.
  double pass() const {
    double flops = 0;
    for (const UnitWork& unit : in.units) flops += unit.forward_flops + unit.backward_flops;
    return flops / in.rates.gemm_flops;
  }
  bool fits(int device_units, std::int64_t keep, std::int64_t spare) const {
    const StateMemory m = in.memory(choice_of(device_units, 0));
    return m.device_bytes + in.activation_bytes(keep) <= in.device_budget && m.host_bytes <= in.host_budget &&
           (spare == 0 || m.host_bytes + static_cast<std::size_t>(spare) * in.spare_place_bytes <= in.spare_budget);
  }
};

}  // namespace so::test
