// A plan decides who owns what, what layers keep, the type of gradients, chunks of the loss, and what is refused.
#include "plan/training_plan.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "io/presets.h"
#include "model/config.h"
#include "model/parameters.h"
#include "offload/schedule/owner_split.h"
#include "options/train_options.h"
#include "plan/gpu_rates.h"
#include "plan/machine/measure.h"
#include "plan/memory/memory_room.h"
#include "plan/placement/unit_work.h"
#include "plan/plan_question.h"
#include "plan/small_llama.h"
#include "support/errors.h"

namespace so::test {
namespace {

constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

DecoderSpec qwen3_14b() {
  const ModelConfig config = resolve_config("qwen3-14b");
  return read_decoder_spec(config.text, config.origin);
}

struct Planner {
  Planner(DecoderSpec model, const Backend& kind, const TrainingShape& shape)
      : spec(std::move(model)), layout(make_parameters(spec)), sizer(spec, layout, kind, shape) {
    settings.formats = model_formats(DType::bf16);
    settings.loss_chunk_rows = choose_loss_chunk(kind, spec.vocab);
  }
  ActivationPlan choose(std::size_t budget) {
    std::vector<ActivationChoice> choices;
    for (std::int64_t keep = 0; keep < keep_choices(spec.layers); ++keep)
      choices.push_back({keep_choice(spec.layers, keep)});
    return choose_activations(sizer, settings, budget, choices);
  }
  std::size_t bytes(std::int64_t choice) {
    settings.keep = keep_choice(spec.layers, choice);
    return sizer.bytes(settings);
  }
  std::int64_t number(const std::vector<Keep>& keep) const {
    for (std::int64_t choice = 0; choice < keep_choices(spec.layers); ++choice)
      if (keep_choice(spec.layers, choice) == keep) return choice;
    return -1;
  }

  DecoderSpec spec;
  ParameterLayout layout;
  ActivationSizer sizer;
  DecoderSettings settings;
};

TEST(KeepChoices, GoFromEverythingToInputsALayerAtATime) {
  for (const std::int64_t layers : {1, 2, 7}) {
    const auto n = static_cast<std::size_t>(layers);
    EXPECT_EQ(keep_choice(layers, 0), std::vector(n, Keep::all));
    EXPECT_EQ(keep_choice(layers, layers), std::vector(n, Keep::light));
    EXPECT_EQ(keep_choice(layers, 2 * layers), std::vector(n, Keep::no_gate_up));
    EXPECT_EQ(keep_choice(layers, keep_choices_on_device(layers) - 1), std::vector(n, Keep::input));
    EXPECT_EQ(keep_choice(layers, keep_choices(layers) - 1), std::vector(n, Keep::host));
    for (std::int64_t choice = 1; choice < keep_choices(layers); ++choice) {
      const auto before = keep_choice(layers, choice - 1), now = keep_choice(layers, choice);
      int changed = 0;
      for (std::size_t i = 0; i < n; ++i) {
        if (now[i] == before[i]) continue;
        ++changed;
        // Attention's output by itself is kept in tiles alone.
        const Keep next =
            before[i] == Keep::no_gate_up ? Keep::input : static_cast<Keep>(static_cast<int>(before[i]) + 1);
        EXPECT_EQ(now[i], next);
      }
      EXPECT_EQ(changed, 1);
      EXPECT_TRUE(std::is_sorted(now.rbegin(), now.rend())) << "the last layers keep most";
    }
  }
}

TEST(KeepChoices, AreDescribed) {
  EXPECT_EQ(describe(std::vector<Keep>{}), "all");
  EXPECT_EQ(describe(keep_choice(4, 0)), "all");
  EXPECT_EQ(describe(keep_choice(4, 12)), "layer inputs only");
  EXPECT_EQ(describe(keep_choice(4, 1)), "1 layer: all but norms and activation functions; 3 layers: all");
  EXPECT_EQ(describe(keep_choice(4, 11)),
            "3 layers: layer inputs only; 1 layer: all but norms, activation functions and gate/up projections");
}

// Few tokens: as there are no tiles. Many: no layer gives up gate and up without tiles, attention's output goes after
// them, and inputs leave for the host last.
TEST(ActivationChoices, GoToTilesWhereThereAreManyTokens) {
  constexpr std::int64_t layers = 3, many = 2 * plan_tile_rows;
  const auto of = [&](const Backend& backend, Toggle toggle, std::int64_t tokens) {
    return activation_choices(layers, backend, toggle, tokens);
  };
  const auto every = [&](Keep keep) { return std::vector<Keep>(layers, keep); };
  const std::vector<ActivationChoice> few = of(cuda_backend(), Toggle::automatic, many - 1);
  ASSERT_EQ(std::ssize(few), keep_choices(layers));
  for (std::int64_t i = 0; i < std::ssize(few); ++i)
    EXPECT_EQ(few[static_cast<std::size_t>(i)], (ActivationChoice{keep_choice(layers, i), 0}));

  const std::vector<ActivationChoice> all = of(cuda_backend(), Toggle::automatic, many);
  ASSERT_EQ(std::ssize(all), 1 + 5 * layers);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool tiled =
        std::any_of(all[i].keep.begin(), all[i].keep.end(), [](Keep k) { return k >= Keep::no_gate_up; });
    EXPECT_EQ(all[i].tile_rows, tiled ? plan_tile_rows : 0) << i;
    for (std::size_t layer = 0; i > 0 && layer < layers; ++layer) EXPECT_GE(all[i].keep[layer], all[i - 1].keep[layer]);
  }
  constexpr Keep levels[] = {Keep::all, Keep::light, Keep::no_gate_up, Keep::attention, Keep::input, Keep::host};
  for (std::size_t level = 0; level < std::size(levels); ++level)
    EXPECT_EQ(all[level * layers].keep, every(levels[level]));

  EXPECT_EQ(of(cuda_backend(), Toggle::off, many), (std::vector<ActivationChoice>{{every(Keep::all), 0}}));
  const std::vector<ActivationChoice> least = of(cuda_backend(), Toggle::on, many);
  ASSERT_EQ(std::ssize(least), 2 + layers);
  EXPECT_EQ(least[0], (ActivationChoice{every(Keep::input), 0}));
  EXPECT_EQ(least[1], (ActivationChoice{every(Keep::input), plan_tile_rows}));
  EXPECT_EQ(least.back(), (ActivationChoice{every(Keep::host), plan_tile_rows}));
  EXPECT_EQ(of(cpu_backend(), Toggle::automatic, many).back(), (ActivationChoice{every(Keep::input), plan_tile_rows}));
  EXPECT_EQ(of(cpu_backend(), Toggle::on, many).back(), (ActivationChoice{every(Keep::input), plan_tile_rows}));
}

// With inputs on the host, what grows with the length is the stream and its gradient (3 hidden vectors a token), two
// inputs on their way, and attention's q, k, v with their gradients, the rest of which lies in the stream's places: 8
// for heads that are as wide as the stream, with the log-sum-exp. Nothing of the MLP or the logits does.
TEST(ActivationChoices, TilesLeaveTheStreamAndAttentionToGrow) {
  const ModelConfig config = resolve_config("llama-3.1-8b");
  const DecoderSpec spec = read_decoder_spec(config.text, config.origin);
  const auto bytes = [&](std::int64_t tokens) {
    Planner planner(spec, cuda_backend(), {tokens, 0, tokens, 1});
    planner.settings.tile_rows = plan_tile_rows;
    return static_cast<double>(planner.bytes(keep_choices(spec.layers) - 1));
  };
  constexpr double hidden = 2 * 4096;  // bytes
  const double a_token = (bytes(1 << 20) - bytes(1 << 19)) / (1 << 19);
  EXPECT_GT(a_token, 7.9 * hidden);
  EXPECT_LT(a_token, 8.2 * hidden);
  EXPECT_LT(bytes(1 << 19) - a_token * (1 << 19), 6e9) << "a tile, sums of gradients, attention's scratch";
}

TEST(ChooseActivations, FitsEveryBudgetThatCanBeMetAndKeepsMoreWithMore) {
  const TrainingShape shape{16384, 0, 4096, 1}, evaluated{300, 900, 512, 1}, single{1, 0, 1, 1};
  for (const Backend* kind : {&cpu_backend(), &cuda_backend()}) {
    for (const auto& [spec, s] :
         {std::pair{qwen3_14b(), shape}, std::pair{small_llama(), evaluated}, std::pair{small_llama(), single}}) {
      Planner planner(spec, *kind, s);
      const std::size_t everything = planner.bytes(0);
      std::size_t least = everything;
      for (std::int64_t choice = 0; choice < keep_choices(spec.layers); ++choice)
        least = std::min(least, planner.bytes(choice));
      EXPECT_EQ(planner.choose(unlimited).keep, keep_choice(spec.layers, 0));
      EXPECT_EQ(planner.choose(everything).keep, keep_choice(spec.layers, 0));
      EXPECT_EQ(planner.choose(least).bytes, least);
      EXPECT_EQ(planner.choose(least - 1).bytes, least) << "what cannot be met gets the least there is";
      EXPECT_EQ(planner.choose(0).bytes, least);

      std::int64_t previous = keep_choices(spec.layers);
      std::size_t distinct = 0;
      for (int i = 0; i <= 40; ++i) {
        const std::size_t budget = least + (everything - least) / 40 * static_cast<std::size_t>(i);
        const ActivationPlan plan = planner.choose(budget);
        const std::int64_t choice = planner.number(plan.keep);
        ASSERT_GE(choice, 0);
        EXPECT_LE(plan.bytes, budget);
        EXPECT_EQ(plan.bytes, planner.bytes(choice));
        EXPECT_LE(choice, previous) << "a larger budget keeps at least as much";
        if (choice > 0) {
          EXPECT_GT(planner.bytes(choice - 1), budget) << "the cheaper one would have fitted too";
        }
        distinct += choice != previous;
        previous = choice;
      }
      if (spec.layers == 40) {
        EXPECT_GT(distinct, 30u) << "budgets in between get choices in between";
      }
    }
  }
}

// Qwen3-14B, four documents of 4096 tokens: what each choice is for.
TEST(ChooseActivations, TheLevelsAreWorthTheirNames) {
  Planner planner(qwen3_14b(), cuda_backend(), {16384, 0, 4096, 1});
  const auto per_layer = [&](std::int64_t from, std::int64_t to) {
    // Whole levels: what a single layer's worth of scratch adds is not counted.
    return static_cast<double>(planner.bytes(40 * from) - planner.bytes(40 * to)) / 40 / 16384 / 2;
  };
  const DecoderSpec s = qwen3_14b();
  const auto width = [](std::int64_t elements) { return static_cast<double>(elements); };
  // In elements a token. The difference a layer's scratch makes is spread over 40 layers.
  EXPECT_NEAR(per_layer(0, 1), width(2 * s.hidden + s.q_width() + s.kv_width() + s.intermediate), 0.04 * 34000);
  EXPECT_NEAR(per_layer(1, 2), width(2 * s.intermediate), 0.04 * 34000);
  EXPECT_NEAR(per_layer(2, 3), width(s.hidden + s.qkv_width() + s.q_width()), 0.06 * 17400);
}

TEST(ChooseLossChunk, IsLargeOnAGpuAndBounded) {
  for (const std::int64_t vocab : {1, 1000, 32000, 151936, 1'000'000}) {
    const std::int64_t gpu = choose_loss_chunk(cuda_backend(), vocab), cpu = choose_loss_chunk(cpu_backend(), vocab);
    EXPECT_LE(gpu, 4096);
    EXPECT_LE(gpu * vocab * 2, 1'250'000'000);
    EXPECT_EQ(gpu % 128, 0);
    EXPECT_GE(gpu, cpu);
    EXPECT_GE(cpu, 64);
  }
  EXPECT_EQ(choose_loss_chunk(cuda_backend(), 151936), 4096);
}

// A machine that is not there: sizes come from dry runs, rates are given.
struct FakeMachine {
  FakeMachine(const Backend& kind, double device_gb, double host_gb) : pool("host", {}, false) {
    machine.backend = &kind;
    machine.name = "Fake";
    if (kind.own_memory) machine.device_memory = static_cast<std::size_t>(device_gb * 1e9);
    machine.host = {static_cast<std::size_t>(host_gb * 1e9), "free memory"};
    machine.pool = &pool;
    machine.rates = [this] {
      EXPECT_EQ(machine.backend, &cuda_backend()) << "nothing on the CPU device depends on rates";
      return gpu_rates(1.2e11);
    };
  }
  TrainingPlan plan(const DecoderSpec& spec, const TrainingShape& shape, const PlacementOptions& placement = {},
                    Toggle checkpointing = Toggle::automatic) {
    const ParameterLayout layout(make_parameters(spec));
    RunRequest request;
    static_cast<PlacementOptions&>(request) = placement;
    request.bucket_size = 64 << 20;
    request.optimizer_state_dtype = state;
    request.activation_checkpointing = checkpointing;
    TrainingPlan result = plan_training(spec, layout, machine, shape, request, WeightOrigin::random);
    // The memory that the process holds already is there too, and is no part of the machine's free memory.
    const std::size_t host = result.memory.host_total(*machine.backend) - result.memory.entries.back().bytes;
    EXPECT_LE(host, machine.host.available);
    if (machine.device_memory) {
      EXPECT_LE(result.memory.total(MemoryKind::device), *machine.device_memory);
    }
    return result;
  }
  ThreadPool pool;
  PlanningMachine machine;
  StatePrecision state = StatePrecision::fp32;
};

const TrainingShape four_rows{16384, 0, 4096, 1};
constexpr int units_14b = 42;

TEST(PlanTraining, KeepsOnTheGpuWhatFitsThere) {
  FakeMachine small(cuda_backend(), 80, 200);
  const TrainingPlan all = small.plan(small_llama(), {300, 900, 512, 1});
  EXPECT_EQ(all.engine.device_units, 7);
  EXPECT_EQ(all.engine.undo_buckets, 0);
  ASSERT_TRUE(all.estimate);
  EXPECT_EQ(all.estimate->exposed, 0);

  // 178 GB of state: more than either memory has left.
  FakeMachine h200(cuda_backend(), 141, 150);
  const TrainingPlan split = h200.plan(qwen3_14b(), four_rows);
  EXPECT_GT(split.engine.device_units, 0);
  EXPECT_LT(split.engine.device_units, units_14b);
  EXPECT_EQ(split.engine.schedule, Schedule::overlapped);

  // With a host that has room, as much on the GPU as leaves room for what recomputing would take longer to have.
  FakeMachine large(cuda_backend(), 141, 1000);
  const TrainingPlan chosen = large.plan(qwen3_14b(), four_rows);
  EXPECT_LE(chosen.engine.device_units, split.engine.device_units);
  const double best = chosen.estimate->seconds();
  for (const double ratio : {0.7, 0.8, 0.9, 1.0}) {
    const TrainingPlan asked = large.plan(qwen3_14b(), four_rows, {.offload_ratio = ratio});
    EXPECT_GE(asked.estimate->seconds(), 0.95 * best) << ratio << ": the plan is chosen for a slower host";
  }
  // And more on the GPU where the steps are so short that the host would be waited for.
  EXPECT_GE(large.plan(qwen3_14b(), {1024, 0, 1024, 1}).engine.device_units, chosen.engine.device_units);
}

TEST(PlanTraining, DoesAsItIsAsked) {
  FakeMachine large(cuda_backend(), 400, 1000);
  const ParameterLayout layout(make_parameters(qwen3_14b()));
  for (const double ratio : {0.0, 0.3, 0.9, 1.0}) {
    const TrainingPlan plan = large.plan(qwen3_14b(), four_rows, {.offload_ratio = ratio});
    const int units = plan.engine.device_units;
    EXPECT_LE(host_share(layout, units), ratio);
    if (units > 0) {
      EXPECT_GT(host_share(layout, units - 1), ratio);
    }
  }
  EXPECT_EQ(large.plan(qwen3_14b(), four_rows, {.offload_optimizer = OptimizerDevice::none}).engine.device_units,
            units_14b);
  const TrainingPlan zero =
      large.plan(qwen3_14b(), four_rows, {.offload_ratio = 0.8, .mode = OffloadMode::zerooffload});
  EXPECT_EQ(zero.engine.schedule, Schedule::synchronous);
  EXPECT_EQ(zero.engine.undo_buckets, 0);
  EXPECT_EQ(zero.estimate->speculated_elements, 0);
  EXPECT_GT(zero.estimate->seconds(), large.plan(qwen3_14b(), four_rows, {.offload_ratio = 0.8}).estimate->seconds());
  EXPECT_TRUE(all_recomputed(large.plan(qwen3_14b(), four_rows, {}, Toggle::on).decoder.keep));
  EXPECT_EQ(large.plan(qwen3_14b(), four_rows, {}, Toggle::off).decoder.keep, keep_choice(40, 0));
}

// Where the step waits for the host the device updates too. Then all state is pinned, and a few buckets have room on
// the device.
TEST(PlanTraining, UpdatesOverTheLinkWhereThatIsQuicker) {
  const auto booked = [](const TrainingPlan& plan, MemoryKind kind, const std::string& name) {
    return std::any_of(plan.memory.entries.begin(), plan.memory.entries.end(),
                       [&](const auto& entry) { return entry.kind == kind && entry.name == name; });
  };
  FakeMachine machine(cuda_backend(), 300, 1000);
  const TrainingShape short_step{4096, 0, 4096, 1};
  const PlacementOptions all{.offload_ratio = 1};
  const TrainingPlan chosen = machine.plan(qwen3_14b(), short_step, all);
  EXPECT_TRUE(chosen.engine.update_over_link);
  EXPECT_GT(chosen.estimate->over_link_elements, 0);
  EXPECT_TRUE(booked(chosen, MemoryKind::pinned, "master weights"));
  EXPECT_TRUE(booked(chosen, MemoryKind::device, "state on its way"));

  const TrainingPlan without =
      machine.plan(qwen3_14b(), short_step, {.offload_ratio = 1, .update_over_link = Toggle::off});
  EXPECT_FALSE(without.engine.update_over_link);
  EXPECT_TRUE(booked(without, MemoryKind::pageable, "master weights"));
  EXPECT_FALSE(booked(without, MemoryKind::device, "state on its way"));
  EXPECT_LT(chosen.estimate->seconds(), 0.99 * without.estimate->seconds());

  // The synchronous schedule is left alone unless it is asked for there.
  const PlacementOptions synchronous{.offload_ratio = 1, .mode = OffloadMode::zerooffload};
  EXPECT_FALSE(machine.plan(qwen3_14b(), short_step, synchronous).engine.update_over_link);
  // There is nothing to gain where the host owns nothing, nor where its work is hidden.
  EXPECT_FALSE(machine.plan(small_llama(), {300, 900, 512, 1}).engine.update_over_link);
  EXPECT_FALSE(machine.plan(qwen3_14b(), four_rows, {.offload_ratio = 0.3}).engine.update_over_link);
  // A machine that counts what is pinned has no room for all state to be.
  machine.machine.lockable = std::size_t{40} << 30;
  EXPECT_FALSE(machine.plan(qwen3_14b(), short_step, all).engine.update_over_link);
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
  EXPECT_EQ(plan.engine.device_units, 0);
  EXPECT_EQ(plan.engine.undo_buckets, std::ssize(make_buckets(layout, plan.engine.bucket_elements, 0)));
  EXPECT_FALSE(plan.estimate);
  EXPECT_EQ(cpu.plan(small_llama(), shape, {.mode = OffloadMode::zerooffload}).engine.undo_buckets, 0);
  const TrainingPlan split = cpu.plan(small_llama(), shape, {.offload_ratio = 0.6});
  EXPECT_EQ(split.engine.device_units, device_units_for_ratio(layout, 0.6));
  EXPECT_GT(split.engine.undo_buckets, 0);
  EXPECT_LT(split.engine.undo_buckets, plan.engine.undo_buckets);
  const TrainingPlan none = cpu.plan(small_llama(), shape, {.offload_optimizer = OptimizerDevice::none});
  EXPECT_EQ(none.engine.device_units, layout.units());
  EXPECT_EQ(none.engine.undo_buckets, 0);
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
  request.optimizer_state_dtype = StatePrecision::bf16;
  EXPECT_NO_THROW(check(cpu_backend(), 0, 184, {}));
  expect_in(refusal([&] { check(cpu_backend(), 0, 172, {}); }), {"not enough"});
  request.optimizer_state_dtype = StatePrecision::fp32;
  for (const auto& machine_and_request :
       {std::tuple(std::cref(cuda_backend()), 1.0, 190.0, PlacementOptions{}),
        {std::cref(cuda_backend()), 141.0, 60.0, PlacementOptions{}},
        {std::cref(cuda_backend()), 141.0, 1000.0, PlacementOptions{.offload_optimizer = OptimizerDevice::none}},
        {std::cref(cuda_backend()), 141.0, 1000.0, PlacementOptions{.offload_ratio = 0.3}},
        {std::cref(cpu_backend()), 0.0, 230.0, PlacementOptions{}}})
    expect_in(refusal([&] { std::apply(check, machine_and_request); }), {"14.8 billion parameters", "not enough"});
}

TEST(Recompute, CostsWhatIsRunAgain) {
  const DecoderSpec s = small_llama();
  const std::vector<std::int32_t> documents = usual_documents({100, 0, 40, 1});
  EXPECT_EQ(documents, (std::vector<std::int32_t>{0, 40, 80, 100}));
  EXPECT_EQ(usual_documents({100, 0, 40, 1, 50.7}), (std::vector<std::int32_t>{0, 40, 50}));
  const std::vector<UnitWork> work = unit_work(s, documents, DType::bf16, h200_efficiencies());
  const std::vector<Keep> keep{Keep::all, Keep::light, Keep::no_gate_up, Keep::input, Keep::all};
  const Recomputation again = recomputation(s, keep, documents, DType::bf16, h200_efficiencies());
  const double product = 2.0 * 100 * 64 * 160 / mlp_share(s, 0, 100, h200_efficiencies());
  EXPECT_EQ(again.flops, (std::vector<double>{0, 0, 0, 2 * product, work[4].forward_flops - product, 0, 0}));
  EXPECT_EQ(again.device_bytes[1], 0);
  for (const std::size_t unit : {2, 3, 4}) EXPECT_EQ(again.device_bytes[unit], again.device_bytes[2]);
  EXPECT_GT(again.device_bytes[2], 0);
  // From each choice to the next no less, so that they are in the order of their cost.
  double before = 0;
  for (std::int64_t choice = 0; choice < keep_choices(s.layers); ++choice) {
    const Recomputation r =
        recomputation(s, keep_choice(s.layers, choice), documents, DType::bf16, h200_efficiencies());
    double cost = 0;
    for (std::size_t unit = 0; unit < r.flops.size(); ++unit) cost += r.flops[unit] + r.device_bytes[unit];
    EXPECT_GE(cost, before);
    before = cost;
  }
}

// The published models on one H200 with 128 GiB beside it, 4 x 4096 tokens.
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

TEST(MeasureRates, AreQuickOnTheCpuDeviceAndGiveMemoryBack) {
  Runtime runtime(DeviceChoice::cpu, 1);
  Device& device = runtime.device();
  const auto stream = device.create_stream("measure");
  for (const DType moments : {DType::f32, DType::bf16}) {
    const MachineRates rates =
        measure_rates(device, runtime.ops(), *stream, runtime.host_pool(), {.moments = moments}, 1 << 20);
    for (const double rate : {rates.gemm_flops, rates.device_memory, rates.link_to_host, rates.link_to_device,
                              rates.host_adamw, rates.host_memory}) {
      EXPECT_GT(rate, 1e6);
      EXPECT_LT(rate, 1e15);
    }
  }
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::pinned, MemoryKind::pageable}) {
    std::size_t peak = 0;
    for (const auto& [name, bytes] : device.ledger().peaks(kind)) peak += bytes;
    EXPECT_LT(peak, std::size_t{16} << 20) << name_of(kind);
  }
  for (const MemoryKind kind : {MemoryKind::pinned, MemoryKind::pageable}) EXPECT_EQ(device.ledger().held(kind), 0u);
}

// A device that says what memory it has.
class FakeGpu final : public Device {
 public:
  explicit FakeGpu(std::size_t free) : free_(free) {}
  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string name() const override { return "Fake GPU"; }
  bool backed() const override { return false; }
  std::optional<OwnMemory> own_memory() const override { return OwnMemory{free_ + 5, free_}; }
  std::unique_ptr<Stream> create_stream(std::string) override { return nullptr; }
  std::unique_ptr<Event> create_event(Timing, Waiting) override { return nullptr; }

 protected:
  void* allocate_memory(MemoryKind, std::size_t, const Touch&) override { return this; }
  void free_memory(MemoryKind, void*, std::size_t) noexcept override {}

 private:
  std::size_t free_;
};

TEST(MemoryRoom, IsTheDevicesOwnMemoryAndTheHosts) {
  MemoryPlan plan;
  plan.add(MemoryKind::device, "weights", 700);
  plan.add(MemoryKind::device, "activations", 300);
  plan.add(MemoryKind::pinned, "ring", 10);
  FakeGpu enough(1000), short_of(999);
  EXPECT_FALSE(room_of(enough).misfit(plan).has_value());
  expect_in(std::string(room_of(short_of).misfit(plan, {"buy another", "host"}).value().what()),
            {"Fake GPU", "1000 bytes needed", "weights, 700 bytes", "999 bytes available", "buy another"});
  // Memory held already is in the plan, and does not count as missing.
  FakeGpu holding(999 - 64);
  const Buffer scratch = holding.allocate(MemoryKind::device, 65, "ops scratch");
  EXPECT_FALSE(room_of(holding).misfit(plan).has_value());
  plan.add(MemoryKind::pageable, "optimizer state", std::size_t{1} << 60);
  expect_in(std::string(room_of(enough).misfit(plan, {"device", "use less"}).value().what()),
            {"optimizer state", "use less"});
}

}  // namespace
}  // namespace so::test
