// A plan decides who owns what, how much layers keep, the type of gradients, and what is refused.
#include "plan/training_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "io/presets.h"
#include "model/parameters.h"
#include "offload/schedule/placement.h"
#include "options/train_options.h"
#include "plan/gpu_rates.h"
#include "plan/machine/hardware.h"
#include "plan/memory/activation_memory.h"
#include "plan/placement/unit_work.h"
#include "plan/plan_question.h"
#include "plan/preset_specs.h"
#include "plan/small_llama.h"
#include "support/errors.h"
#include "support/label.h"

namespace so::test {
namespace {

// A machine that is not there: sizes come from dry runs, rates are given.
struct FakeMachine {
  FakeMachine(const Backend& kind, double device_gb, double host_gb) : pool("host", {}, false) {
    machine.backend = &kind;
    machine.name = "Fake";
    if (kind.own_memory) machine.device_memory = static_cast<std::size_t>(device_gb * 1e9);
    machine.host = {static_cast<std::size_t>(host_gb * 1e9), "free memory"};
    machine.pool = &pool;
    machine.rates = [this] {
      EXPECT_TRUE(machine.backend->own_processors) << "nothing on the CPU device depends on rates";
      return gpu_rates(1.2e11);
    };
  }
  TrainingPlan plan(const DecoderSpec& spec, const TrainingShape& shape, const PlacementOptions& placement = {},
                    Toggle checkpointing = Toggle::automatic) {
    const ParameterLayout layout(make_parameters(spec));
    RunRequest request;
    static_cast<PlacementOptions&>(request) = placement;
    request.bucket_size = bucket_size;
    request.optimizer_state_dtype = state;
    request.activation_checkpointing = checkpointing;
    TrainingPlan result = plan_training(spec, layout, machine, shape, request, WeightOrigin::random);
    // The memory that the process holds already is there too, and is no part of the machine's free memory.
    const std::size_t host = result.memory.host_total(*machine.backend) - result.memory.entries.back().bytes;
    EXPECT_LE(host, machine.host.available);
    if (machine.device_memory) {
      EXPECT_LE(result.memory.total(MemoryKind::device), *machine.device_memory);
      std::size_t tables = 0;
      for (const MemoryPlan::Entry& entry : result.memory.entries)
        if (entry.name.starts_with("page tables")) tables += entry.bytes;
      const std::size_t pinned = result.memory.total(MemoryKind::pinned);
      EXPECT_GE(tables, pinned / 512) << "8 bytes of the GPU's memory for a page of 4 KiB";
      EXPECT_LE(tables, pinned / 512 + 2);
    }
    return result;
  }
  ThreadPool pool;
  PlanningMachine machine;
  StatePrecision state = StatePrecision::fp32;
  std::int64_t bucket_size = 64 << 20;
};

const TrainingShape four_rows{16384, 0, 4096, 1};
constexpr int units_14b = 42;

SO_LABEL(sweep, "PlanTraining.KeepsOnTheGpuWhatFitsThere");
TEST(PlanTraining, KeepsOnTheGpuWhatFitsThere) {
  FakeMachine small(cuda_backend(), 80, 200);
  const TrainingPlan all = small.plan(small_llama(), {300, 900, 512, 1});
  EXPECT_EQ(all.engine.placement.count(Owner::device), 7);
  EXPECT_EQ(all.engine.placement.spare_buckets, 0);
  ASSERT_TRUE(all.estimate);
  EXPECT_EQ(all.estimate->exposed, 0);

  // 178 GB of state: more than either memory has left.
  FakeMachine h200(cuda_backend(), 141, 150);
  const TrainingPlan split = h200.plan(qwen3_14b(), four_rows);
  EXPECT_GT(split.engine.placement.count(Owner::device), 0);
  EXPECT_LT(split.engine.placement.count(Owner::device), units_14b);
  EXPECT_EQ(split.engine.placement.schedule, Schedule::overlapped);

  // With a host that has room, as much on the GPU as leaves room for what recomputing would take longer to have.
  FakeMachine large(cuda_backend(), 141, 1000);
  const TrainingPlan chosen = large.plan(qwen3_14b(), four_rows);
  EXPECT_LE(chosen.engine.placement.count(Owner::device), split.engine.placement.count(Owner::device));
  const double best = chosen.estimate->seconds();
  for (const double ratio : {0.7, 0.8, 0.9, 1.0}) {
    const TrainingPlan asked = large.plan(qwen3_14b(), four_rows, {.offload_ratio = ratio});
    EXPECT_GE(asked.estimate->seconds(), 0.95 * best) << ratio << ": the plan is chosen for a slower host";
  }
  // And more on the GPU where the steps are so short that the host would be waited for.
  EXPECT_GE(large.plan(qwen3_14b(), {1024, 0, 1024, 1}).engine.placement.count(Owner::device),
            chosen.engine.placement.count(Owner::device));
}

SO_LABEL(no_asan, "PlanTraining.DoesAsItIsAsked");
TEST(PlanTraining, DoesAsItIsAsked) {
  FakeMachine large(cuda_backend(), 400, 1000);
  const ParameterLayout layout(make_parameters(qwen3_14b()));
  for (const double ratio : {0.0, 0.3, 0.9, 1.0}) {
    const TrainingPlan plan = large.plan(qwen3_14b(), four_rows, {.offload_ratio = ratio});
    const int units = plan.engine.placement.count(Owner::device);
    EXPECT_LE(host_share(layout, units), ratio);
    if (units > 0) {
      EXPECT_GT(host_share(layout, units - 1), ratio);
    }
  }
  EXPECT_EQ(large.plan(qwen3_14b(), four_rows, {.offload_optimizer = OptimizerDevice::none})
                .engine.placement.count(Owner::device),
            units_14b);
  const TrainingPlan zero =
      large.plan(qwen3_14b(), four_rows, {.offload_ratio = 0.8, .mode = OffloadMode::zerooffload});
  EXPECT_EQ(zero.engine.placement.schedule, Schedule::synchronous);
  EXPECT_EQ(zero.engine.placement.spare_buckets, 0);
  EXPECT_EQ(zero.estimate->speculated_elements, 0);
  EXPECT_GT(zero.estimate->seconds(), large.plan(qwen3_14b(), four_rows, {.offload_ratio = 0.8}).estimate->seconds());
  EXPECT_TRUE(all_recomputed(large.plan(qwen3_14b(), four_rows, {}, Toggle::on).decoder.keep));
  EXPECT_EQ(large.plan(qwen3_14b(), four_rows, {}, Toggle::off).decoder.keep, keep_choice(40, 0));
}

bool booked(const TrainingPlan& plan, MemoryKind kind, const std::string& name) {
  return std::any_of(plan.memory.entries.begin(), plan.memory.entries.end(),
                     [&](const auto& entry) { return entry.kind == kind && entry.name == name; });
}

// Where the step waits for the host the device updates too. Then all state is pinned, and a few buckets have room on
// the device.
TEST(PlanTraining, UpdatesOverTheLinkWhereThatIsQuicker) {
  FakeMachine machine(cuda_backend(), 300, 1000);
  const TrainingShape short_step{4096, 0, 4096, 1};
  const PlacementOptions all{.offload_ratio = 1};
  const TrainingPlan chosen = machine.plan(qwen3_14b(), short_step, all);
  EXPECT_TRUE(chosen.engine.placement.over_link);
  EXPECT_GT(chosen.estimate->over_link_elements, 0);
  EXPECT_TRUE(booked(chosen, MemoryKind::pinned, "master weights"));
  EXPECT_TRUE(booked(chosen, MemoryKind::device, "state on its way"));

  const TrainingPlan without =
      machine.plan(qwen3_14b(), short_step, {.offload_ratio = 1, .update_over_link = Toggle::off});
  EXPECT_FALSE(without.engine.placement.over_link);
  EXPECT_TRUE(booked(without, MemoryKind::pageable, "master weights"));
  EXPECT_FALSE(booked(without, MemoryKind::device, "state on its way"));
  EXPECT_LT(chosen.estimate->seconds(), 0.99 * without.estimate->seconds());

  // The synchronous schedule is left alone unless it is asked for there.
  const PlacementOptions synchronous{.offload_ratio = 1, .mode = OffloadMode::zerooffload};
  EXPECT_FALSE(machine.plan(qwen3_14b(), short_step, synchronous).engine.placement.over_link);
  // There is nothing to gain where the host owns nothing, nor where its work is hidden.
  EXPECT_FALSE(machine.plan(small_llama(), {300, 900, 512, 1}).engine.placement.over_link);
  EXPECT_FALSE(machine.plan(qwen3_14b(), four_rows, {.offload_ratio = 0.3}).engine.placement.over_link);
  // State that the device does not reach by itself travels slowly.
  machine.machine.pins_state = [] { return false; };
  EXPECT_FALSE(machine.plan(qwen3_14b(), short_step, all).engine.placement.over_link);
}

// 119 GB of state instead of 178.
TEST(PlanTraining, TakesLessWithMomentsInBf16) {
  for (const Backend* kind : {&cpu_backend(), &cuda_backend()}) {
    FakeMachine full(*kind, 100, 1000), half(*kind, 100, 1000);
    half.state = StatePrecision::bf16;
    const PlacementOptions synchronous{.offload_ratio = 1, .mode = OffloadMode::zerooffload};
    const TrainingPlan a = full.plan(qwen3_14b(), four_rows, synchronous),
                       b = half.plan(qwen3_14b(), four_rows, synchronous);
    const double saved =
        static_cast<double>(a.memory.host_total(*kind)) - static_cast<double>(b.memory.host_total(*kind));
    EXPECT_NEAR(saved, 4 * static_cast<double>(ParameterLayout(make_parameters(qwen3_14b())).elements()), 1e8);
    if (kind->own_memory) {
      EXPECT_LT(b.estimate->host, 0.8 * a.estimate->host) << "24 bytes an element instead of 32";
    }
  }
}

// A GPU that shares the CPU's memory: nothing is moved to where it would take the same room.
TEST(PlanTraining, OffloadsNothingWhereTheGpuSharesTheCpusMemory) {
  FakeMachine shared(shared_cuda_backend(), 0, 128);
  const std::size_t most = usable_host(shared.machine).available;
  EXPECT_LE(most, 122e9) << "a margin, since running out may hang the machine";
  const auto planned = [&](const DecoderSpec& spec, const TrainingShape& shape,
                           const PlacementOptions& placement = {}) {
    const TrainingPlan plan = shared.plan(spec, shape, placement);
    EXPECT_LE(plan.memory.host_total(shared_cuda_backend()), most) << "of both";
    EXPECT_GT(plan.memory.total(MemoryKind::device), plan.memory.total(MemoryKind::pinned));
    return plan;
  };
  const ParameterLayout layout(make_parameters(preset_spec("qwen3-4b")));
  for (const std::int64_t tokens : {4096, 65536}) {
    const TrainingPlan plan = planned(preset_spec("qwen3-4b"), {tokens, 0, 4096, 1});
    EXPECT_EQ(plan.engine.placement.count(Owner::device), layout.units());
    EXPECT_EQ(plan.engine.placement.count(ResidencyKind::streamed), 0);
    EXPECT_FALSE(plan.engine.placement.moves());
    EXPECT_EQ(plan.engine.placement.spare_buckets, 0);
    for (const Keep keep : plan.decoder.keep) EXPECT_NE(keep, Keep::host);
    ASSERT_TRUE(plan.estimate) << "a step is expected as on any GPU";
    EXPECT_EQ(plan.estimate->exposed, 0) << "nothing travels";
  }
  // What is asked for is done, though it saves nothing.
  const TrainingPlan asked = planned(preset_spec("qwen3-4b"), {4096, 0, 4096, 1}, {.offload_ratio = 1});
  EXPECT_EQ(asked.engine.placement.count(Owner::device), 0);
  const std::string refused = refusal([&] { shared.plan(qwen3_14b(), four_rows); });
  expect_in(refused, {"not enough memory: ", "short of", "--batch_size"});
  EXPECT_EQ(refused.find("host memory"), std::string::npos) << refused;
  EXPECT_EQ(refused.find("as asked"), std::string::npos) << refused;
  // Where the state alone is too much, too, what is short is short of the least that layers can keep.
  try {
    FakeMachine(shared_cuda_backend(), 0, 220).plan(qwen3_14b(), four_rows);
    ADD_FAILURE() << "209 GB of state in as many";
  } catch (const MemoryRefusal& refusal) {
    const auto gigabytes = [](const std::string& text) {
      return std::stod(text.substr(text.rfind(": ", text.find(" short")) + 2));
    };
    EXPECT_NEAR(gigabytes(refusal.brief()), gigabytes(refusal.short_of()), 0.15) << refusal.short_of();
  }
}

SO_LABEL(sweep, "PlanTraining.RefusesWhatCannotBe");
TEST(PlanTraining, RefusesWhatCannotBe) {
  const auto text = [](double device_gb, double host_gb, const PlacementOptions& request) {
    FakeMachine machine(cuda_backend(), device_gb, host_gb);
    return refusal([&] { machine.plan(qwen3_14b(), four_rows, request); });
  };
  // Weights stream, but activations do not.
  expect_in(text(8, 1000, {}), {"not enough memory on Fake", "short of 8.0 GB", "--batch_size"});
  expect_in(text(80, 100, {}), {"not enough memory", "the host is", "short of 97.0 GB"});
  expect_in(text(80, 1000, {.offload_ratio = 0.2}), {"not enough memory on Fake", "as asked", "--offload_ratio"});
  expect_in(text(80, 1000, {.offload_optimizer = OptimizerDevice::none}),
            {"not enough memory on Fake", "--offload_optimizer cpu"});
  expect_in(text(400, 100, {.offload_ratio = 1}), {"not enough host memory", "as asked"});
}

TEST(PlanTraining, OnTheCpuTheHostOwnsAllUnlessAsked) {
  FakeMachine cpu(cpu_backend(), 0, 64);
  const TrainingShape shape{300, 900, 512, 1};
  const ParameterLayout layout(make_parameters(small_llama()));
  const TrainingPlan plan = cpu.plan(small_llama(), shape);
  EXPECT_EQ(plan.engine.placement.count(Owner::device), 0);
  EXPECT_EQ(plan.engine.placement.spare_buckets,
            std::ssize(make_buckets(layout, plan.engine.placement.bucket_elements, plan.engine.placement.units)));
  EXPECT_FALSE(plan.estimate);
  EXPECT_EQ(cpu.plan(small_llama(), shape, {.mode = OffloadMode::zerooffload}).engine.placement.spare_buckets, 0);
  const TrainingPlan split = cpu.plan(small_llama(), shape, {.offload_ratio = 0.6});
  EXPECT_EQ(split.engine.placement.count(Owner::device), device_units_for_ratio(layout, 0.6));
  EXPECT_GT(split.engine.placement.spare_buckets, 0);
  EXPECT_LT(split.engine.placement.spare_buckets, plan.engine.placement.spare_buckets);
  const TrainingPlan none = cpu.plan(small_llama(), shape, {.offload_optimizer = OptimizerDevice::none});
  EXPECT_EQ(none.engine.placement.count(Owner::device), layout.units());
  EXPECT_EQ(none.engine.placement.spare_buckets, 0);
  FakeMachine poor(cpu_backend(), 0, 0.003);
  expect_in(refusal([&] { poor.plan(small_llama(), shape); }), {"not enough memory", "--batch_size"});
}

// Gradients are kept in a format that depends on the number of micro-batches, which request and shape both have.
TEST(PlanTraining, TakesTheShapeOfTheRequestAlone) {
  FakeMachine cpu(cpu_backend(), 0, 64);
  EXPECT_THROW(cpu.plan(small_llama(), {300, 900, 512, 2}), Bug);
}

void require_state(const DecoderSpec& spec, const PlanningMachine& machine, const RunRequest& request) {
  const ParameterLayout layout(make_parameters(spec));
  make_question({spec, layout, machine, WeightOrigin::files, {}}, request, train_option_table()).require_state();
}

TEST(StateMisfit, LooksAtTheConfigAlone) {
  RunRequest request;
  const auto check = [&](const Backend& kind, double device_gb, double host_gb, const PlacementOptions& placement) {
    FakeMachine machine(kind, device_gb, host_gb);
    static_cast<PlacementOptions&>(request) = placement;
    require_state(qwen3_14b(), machine.machine, request);
  };
  EXPECT_NO_THROW(check(cuda_backend(), 70, 170, {}));
  EXPECT_NO_THROW(check(cuda_backend(), 141, 100, {}));
  EXPECT_NO_THROW(check(cuda_backend(), 240, 1, {.offload_optimizer = OptimizerDevice::none}));
  EXPECT_NO_THROW(check(cpu_backend(), 0, 240, {}));
  // A GPU that shares the CPU's memory makes weights of the masters that it owns, 14 bytes a parameter instead of 16.
  EXPECT_NO_THROW(check(shared_cuda_backend(), 0, 240, {}));
  EXPECT_NO_THROW(FakeMachine(shared_cuda_backend(), 0, 240).plan(qwen3_14b(), {4096, 0, 4096, 1}));
  request.optimizer_state_dtype = StatePrecision::bf16;
  EXPECT_NO_THROW(check(cpu_backend(), 0, 184, {}));
  expect_in(refusal([&] { check(cpu_backend(), 0, 172, {}); }), {"not enough"});
  request.optimizer_state_dtype = StatePrecision::fp32;
  for (const auto& machine_and_request :
       {std::tuple(std::cref(cuda_backend()), 1.0, 190.0, PlacementOptions{}),
        {std::cref(cuda_backend()), 141.0, 60.0, PlacementOptions{}},
        {std::cref(cuda_backend()), 141.0, 1000.0, PlacementOptions{.offload_optimizer = OptimizerDevice::none}},
        {std::cref(cuda_backend()), 141.0, 1000.0, PlacementOptions{.offload_ratio = 0.3}},
        {std::cref(shared_cuda_backend()), 0.0, 240.0, PlacementOptions{.offload_ratio = 1}},
        {std::cref(cpu_backend()), 0.0, 230.0, PlacementOptions{}}})
    expect_in(refusal([&] { std::apply(check, machine_and_request); }), {"14.8 billion parameters", "not enough"});
}

// Inputs of all layers fit neither the device nor the host, so fewer are kept, on either of them. As memory shrinks,
// steps take longer, and layers keep nothing only where no plan fits in which all keep their inputs.
SO_LABEL(sweep, "PlanTraining.KeepsInputsOfSomeLayersWhereThoseOfAllDoNotFit");
TEST(PlanTraining, KeepsInputsOfSomeLayersWhereThoseOfAllDoNotFit) {
  const DecoderSpec spec = small_llama(24);
  const TrainingShape row{400'000, 0, 400'000, 1};
  for (const bool less_host : {true, false}) {
    double seconds = 0;
    std::vector<std::int64_t> keep_nothing;
    for (const double left : {1.5, 0.8, 0.4}) {
      FakeMachine machine(cuda_backend(), less_host ? 3.25 : 2.8 + left, less_host ? left : 0.55);
      const TrainingPlan plan = machine.plan(spec, row);
      const std::vector<Keep>& keep = plan.decoder.keep;
      keep_nothing.push_back(std::count(keep.begin(), keep.end(), Keep::nothing));
      EXPECT_GE(plan.estimate->seconds(), 0.999 * seconds);
      seconds = plan.estimate->seconds();
      std::vector<Input> inputs;
      for (const UnitPlacement& unit : plan.engine.placement.units) inputs.push_back(unit.input);
      EXPECT_EQ(inputs, unit_inputs(keep));
    }
    EXPECT_TRUE(std::is_sorted(keep_nothing.begin(), keep_nothing.end()));
    EXPECT_EQ(keep_nothing.front(), 0);
    EXPECT_GT(keep_nothing.back(), 0);
  }
}

// The published models on one H200 with 128 GiB beside it, 4 x 4096 tokens.
SO_LABEL(sweep, "PlanTraining.OnOneGpuWhatFitsIsPlannedAndTheRestRefused");
TEST(PlanTraining, OnOneGpuWhatFitsIsPlannedAndTheRestRefused) {
  FakeMachine h200(cuda_backend(), 149, 134);
  const auto spec = [](const char* preset) {
    const ModelConfig config = resolve_config(preset);
    return read_decoder_spec(config.text, config.origin);
  };
  struct Case {
    const char* preset;
    StatePrecision state;
    bool fits;
  };
  for (const Case& c :
       {Case{"llama-3.1-8b", StatePrecision::fp32, true}, Case{"qwen3-14b", StatePrecision::fp32, true},
        Case{"phi-4", StatePrecision::fp32, true}, Case{"gpt-oss-20b", StatePrecision::bf16, true},
        Case{"gpt-oss-20b", StatePrecision::fp32, false}, Case{"qwen3-30b-a3b", StatePrecision::bf16, false},
        Case{"seed-oss-36b", StatePrecision::bf16, false}, Case{"llama-3.3-70b", StatePrecision::bf16, false}}) {
    SCOPED_TRACE(c.preset);
    h200.state = c.state;
    const DecoderSpec s = spec(c.preset);
    if (c.fits) {
      const TrainingPlan plan = h200.plan(s, four_rows);
      EXPECT_EQ(static_cast<std::int64_t>(plan.decoder.keep.size()), s.layers);
    } else {
      RunRequest request;
      request.optimizer_state_dtype = c.state;
      expect_in(refusal([&] {
                  require_state(s, h200.machine, request);
                  h200.plan(s, four_rows);
                }),
                {"GB"});
    }
  }
}

}  // namespace
}  // namespace so::test
