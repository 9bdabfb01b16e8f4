// What a plan counts for a model's units is corrected by what they are measured to take.
#include "plan/measure_units.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/parameters.h"
#include "options/run_request.h"
#include "plan/gpu_rates.h"
#include "plan/small_llama.h"
#include "plan/training_plan.h"
#include "ranks/communicator.h"
#include "support/thread_ranks.h"

namespace so::test {
namespace {

const TrainingShape four_documents{512, 0, 128, 1};

// The CPU device in place of a GPU with memory of its own.
PlanningMachine gpu_of(Runtime& runtime) {
  PlanningMachine machine;
  machine.backend = &cuda_backend();
  machine.device_memory = std::size_t{8} << 30;
  machine.host = {std::size_t{8} << 30, "free memory"};
  machine.pool = &runtime.host_pool();
  machine.rates = [] { return gpu_rates(); };
  return machine;
}

DecoderSpec windows_in_every_other_layer() {
  DecoderSpec spec = small_llama();
  spec.layer_specs.resize(static_cast<std::size_t>(spec.layers));
  for (std::size_t layer = 0; layer < spec.layer_specs.size(); layer += 2) spec.layer_specs[layer].window = 32;
  return spec;
}

TEST(MeasureUnits, LayersOfAKindShareWhatOneOfThemTakes) {
  Runtime runtime(DeviceChoice::cpu, 1);
  const PlanningMachine machine = gpu_of(runtime);
  const auto alone = make_single_communicator();
  const DecoderSpec spec = windows_in_every_other_layer();
  const std::vector<UnitFactor> factors =
      measure_units(machine, runtime, spec, model_formats(DType::f32), four_documents, false, *alone);
  ASSERT_EQ(factors.size(), static_cast<std::size_t>(spec.layers) + 2);
  EXPECT_EQ(factors.front().forward, 1) << "the embedding, for which a plan counts next to nothing";
  for (std::size_t unit = 1; unit < factors.size(); ++unit) {
    // A thread takes much longer than such a GPU would.
    EXPECT_GT(factors[unit].forward, 10) << unit;
    EXPECT_GT(factors[unit].backward, 10) << unit;
    EXPECT_TRUE(std::isfinite(factors[unit].forward) && std::isfinite(factors[unit].backward)) << unit;
    if (unit < 3 || unit + 1 == factors.size()) continue;
    EXPECT_EQ(factors[unit].forward, factors[unit - 2].forward) << unit;
    EXPECT_EQ(factors[unit].backward, factors[unit - 2].backward) << unit;
  }
  EXPECT_NE(factors[1].forward, factors[2].forward);
  EXPECT_EQ(runtime.device().ledger().held(MemoryKind::device), 0u);
}

TEST(MeasureUnits, LayersThatTakeKeysFindThemInTheSample) {
  Runtime runtime(DeviceChoice::cpu, 1);
  DecoderSpec spec = windows_in_every_other_layer();
  spec.architecture = "Qwen3ForCausalLM";
  spec.qk_norm = true;
  ASSERT_GE(spec.layers, 4);
  const auto last = static_cast<std::size_t>(spec.layers) - 1;
  spec.layer_specs[last - 1].keys_of = spec.layers - 4, spec.layer_specs[last].keys_of = spec.layers - 3;
  const std::vector<UnitFactor> factors = measure_units(gpu_of(runtime), runtime, spec, model_formats(DType::f32),
                                                        four_documents, false, *make_single_communicator());
  ASSERT_EQ(factors.size(), static_cast<std::size_t>(spec.layers) + 2);
  EXPECT_EQ(factors[1].forward, factors[static_cast<std::size_t>(layer_unit(spec.layers - 3))].forward);
  EXPECT_NE(factors[1].forward, factors[static_cast<std::size_t>(layer_unit(spec.layers - 1))].forward);
}

TEST(MeasureUnits, DeltaLayersAreAKindOfTheirOwn) {
  Runtime runtime(DeviceChoice::cpu, 1);
  DecoderSpec spec = small_llama();
  spec.architecture = "Qwen3_5ForCausalLM";
  spec.qk_norm = spec.output_gate = true;
  spec.delta = {.k_heads = 2, .v_heads = 4, .k_dim = 16, .v_dim = 16, .convolution = 4};
  spec.layer_specs.assign(static_cast<std::size_t>(spec.layers),
                          {.rotation = LayerRotation::none, .mixer = TokenMixer::gated_delta});
  spec.layer_specs.back() = {};
  const std::vector<UnitFactor> factors = measure_units(gpu_of(runtime), runtime, spec, model_formats(DType::f32),
                                                        four_documents, false, *make_single_communicator());
  ASSERT_EQ(factors.size(), static_cast<std::size_t>(spec.layers) + 2);
  const auto last = static_cast<std::size_t>(spec.layers);
  for (std::size_t unit = 1; unit < last; ++unit) {
    EXPECT_GT(factors[unit].forward, 0) << unit;
    EXPECT_EQ(factors[unit].forward, factors[1].forward) << unit;
    EXPECT_EQ(factors[unit].backward, factors[1].backward) << unit;
  }
  EXPECT_NE(factors[last].forward, factors[1].forward);
}

TEST(MeasureUnits, NothingIsMeasuredWhereItWouldNotFitOrNotCount) {
  Runtime runtime(DeviceChoice::cpu, 1);
  const auto alone = make_single_communicator();
  const auto factors = [&](const PlanningMachine& machine, const TrainingShape& shape) {
    return measure_units(machine, runtime, small_llama(), model_formats(DType::f32), shape, false, *alone);
  };
  PlanningMachine machine = gpu_of(runtime);
  TrainingShape split = four_documents;
  split.ranks = split.sequence = 2;
  EXPECT_TRUE(factors(machine, split).empty());
  machine.device_memory = std::size_t{1} << 30;
  EXPECT_TRUE(factors(machine, four_documents).empty());
  machine.backend = &cpu_backend();
  machine.device_memory.reset();
  EXPECT_TRUE(factors(machine, four_documents).empty());
}

TEST(MeasureUnits, TheSlowestRankCountsForAll) {
  std::vector<std::vector<UnitFactor>> factors(2);
  run_ranks(2, [&](Communicator& ranks) {
    Runtime runtime(DeviceChoice::cpu, 1);
    factors[static_cast<std::size_t>(ranks.rank())] =
        measure_units(gpu_of(runtime), runtime, small_llama(), model_formats(DType::f32), four_documents, false, ranks);
  });
  ASSERT_EQ(factors[0].size(), 7u);
  for (std::size_t unit = 0; unit < 7; ++unit) {
    EXPECT_EQ(factors[0][unit].forward, factors[1][unit].forward) << unit;
    EXPECT_EQ(factors[0][unit].backward, factors[1][unit].backward) << unit;
  }
}

TEST(MeasureUnits, APlanCountsWithThem) {
  Runtime runtime(DeviceChoice::cpu, 1);
  PlanningMachine machine = gpu_of(runtime);
  const DecoderSpec spec = small_llama();
  const ParameterLayout layout(make_parameters(spec));
  const auto planned = [&] {
    return plan_training(spec, layout, machine, four_documents, {}, WeightOrigin::random).estimate->gpu;
  };
  const double plain = planned();
  machine.unit_factors.assign(static_cast<std::size_t>(spec.layers) + 2, {1, 1});
  EXPECT_EQ(planned(), plain);
  machine.unit_factors.assign(static_cast<std::size_t>(spec.layers) + 2, {3, 3});
  // But for what belongs to no unit's products: the gradients' norm and the update.
  EXPECT_GT(planned(), 2 * plain);
  EXPECT_LE(planned(), 3 * plain);
}

}  // namespace
}  // namespace so::test
