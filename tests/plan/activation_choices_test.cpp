// A plan says what layers keep for backward, what that takes and costs, and how long the chunks of the loss are.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "model/parameters.h"
#include "plan/gpu_rates.h"
#include "plan/memory/activation_memory.h"
#include "plan/placement/unit_work.h"
#include "plan/preset_specs.h"
#include "plan/small_llama.h"
#include "plan/training_plan.h"
#include "support/errors.h"
#include "support/label.h"

namespace so::test {
namespace {

constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

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
    return choose_activations(sizer, settings, {budget, unlimited}, choices);
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

// What attention's gradient could use is not always less for a smaller batch: documents beyond a length go in tiles,
// and take less than shorter ones; in any order as many heads at a time as fit are done, and more fit of fewer rows.
SO_LABEL(no_asan, "ActivationSizer.NoSmallerBatchTakesMore");
TEST(ActivationSizer, NoSmallerBatchTakesMore) {
  for (const auto& [tokens, longest] : {std::pair<std::int64_t, std::int64_t>{65'536, 60'000},
                                        {50'000, 50'000},
                                        {131'072, 131'072},
                                        {65'536, 4'096},
                                        {8'192, 8'192}})
    for (const bool any_order : {false, true})
      for (const bool roomy : {false, true}) {
        Planner planner(preset_spec("llama-3.1-8b"), cuda_backend(),
                        {.micro_batch_tokens = tokens, .longest_document = longest});
        planner.settings.keep = keep_choice(planner.spec.layers, keep_choices_on_device(planner.spec.layers) - 1);
        planner.settings.tile_rows = 4096;  // so that attention takes most
        planner.settings.any_order = any_order;
        planner.settings.roomy_attention = roomy;
        const std::size_t planned = planner.sizer.bytes(planner.settings);
        EXPECT_EQ(planned, planner.sizer.bytes_of_batch(planner.settings, tokens, longest));
        for (const double part : {0.999, 0.996, 0.9, 0.76, 0.74, 0.5, 0.1})
          for (const double of_them : {1.0, 0.999, 0.82, 0.75, 0.5, 0.1}) {
            const auto fewer = static_cast<std::int64_t>(static_cast<double>(tokens) * part),
                       shorter = std::min(fewer, static_cast<std::int64_t>(static_cast<double>(longest) * of_them));
            EXPECT_LE(planner.sizer.bytes_of_batch(planner.settings, fewer, shorter), planned)
                << fewer << " of " << tokens << " tokens, " << shorter << " of " << longest << " in the longest";
          }
      }
}

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

TEST(KeepChoices, OfEverySoManyLayersKeepNothingOfTheOthers) {
  using K = Keep;
  EXPECT_EQ(keep_every(5, 2, 0), (std::vector{K::input, K::nothing, K::input, K::nothing, K::input}));
  EXPECT_EQ(keep_every(5, 2, 2), (std::vector{K::host, K::nothing, K::host, K::nothing, K::input}));
  EXPECT_EQ(keep_every(5, 4, 2), (std::vector{K::host, K::nothing, K::nothing, K::nothing, K::host}));
  EXPECT_EQ(keep_every(2, 8, 0), (std::vector{K::input, K::nothing}));
}

TEST(KeepChoices, AreDescribed) {
  EXPECT_EQ(describe(std::vector<Keep>{}), "all");
  EXPECT_EQ(describe(keep_choice(4, 0)), "all");
  EXPECT_EQ(describe(keep_choice(4, 12)), "layer inputs only");
  EXPECT_EQ(describe(keep_choice(4, 1)), "1 layer: all but norms and activation functions; 3 layers: all");
  EXPECT_EQ(describe(keep_choice(4, 11)),
            "3 layers: layer inputs only; 1 layer: all but norms, activation functions and gate/up projections");
  EXPECT_EQ(
      describe(keep_every(6, 4, 1), 16384),
      "4 layers: nothing (run again from the last layer below that kept its input); 1 layer: layer inputs only, in "
      "host memory; 1 layer: layer inputs only, in tiles of 16384 tokens");
}

// Few tokens: as there are no tiles. Many: no layer gives up gate and up without tiles, attention's output goes after
// them, and inputs leave for the host after it. At last every second layer, or one of four, keeps its input.
TEST(ActivationChoices, GoToTilesWhereThereAreManyTokens) {
  constexpr std::int64_t layers = 3, many = 2 * plan_tile_rows;
  const auto of = [&](const Backend& backend, Toggle toggle, std::int64_t tokens) {
    return activation_choices(layers, backend, toggle, tokens);
  };
  const auto every = [&](Keep keep) { return std::vector<Keep>(layers, keep); };
  const auto spaced = [&](const Backend& backend, std::int64_t tile_rows) {
    std::vector<ActivationChoice> choices;
    for (const auto& [spacing, inputs] : {std::pair{2, 2}, std::pair{4, 1}})
      for (int on_host = 0; on_host <= (backend.own_memory ? inputs : 0); ++on_host)
        choices.push_back({keep_every(layers, spacing, on_host), tile_rows});
    return choices;
  };
  // The choices before these, which have to be there.
  const auto without = [&](std::vector<ActivationChoice> choices, const std::vector<ActivationChoice>& last) {
    EXPECT_GT(choices.size(), last.size());
    const auto at = choices.end() - std::ssize(last);
    EXPECT_TRUE(std::equal(at, choices.end(), last.begin()));
    choices.erase(at, choices.end());
    return choices;
  };
  const std::vector<ActivationChoice> few =
      without(of(cuda_backend(), Toggle::automatic, many - 1), spaced(cuda_backend(), 0));
  ASSERT_EQ(std::ssize(few), keep_choices(layers));
  for (std::int64_t i = 0; i < std::ssize(few); ++i)
    EXPECT_EQ(few[static_cast<std::size_t>(i)], (ActivationChoice{keep_choice(layers, i), 0}));

  const std::vector<ActivationChoice> in_tiles = spaced(cuda_backend(), plan_tile_rows),
                                      all = without(of(cuda_backend(), Toggle::automatic, many), in_tiles);
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
  const std::vector<ActivationChoice> least = without(of(cuda_backend(), Toggle::on, many), in_tiles);
  ASSERT_EQ(std::ssize(least), 2 + layers);
  EXPECT_EQ(least[0], (ActivationChoice{every(Keep::input), 0}));
  EXPECT_EQ(least[1], (ActivationChoice{every(Keep::input), plan_tile_rows}));
  EXPECT_EQ(least.back(), (ActivationChoice{every(Keep::host), plan_tile_rows}));
  for (const Toggle toggle : {Toggle::automatic, Toggle::on})
    EXPECT_EQ(without(of(cpu_backend(), toggle, many), spaced(cpu_backend(), plan_tile_rows)).back(),
              (ActivationChoice{every(Keep::input), plan_tile_rows}));
  EXPECT_EQ(activation_choices(1, cuda_backend(), Toggle::on, 100).size(), 2u) << "one layer has no others between";
}

// With inputs on the host, what grows with the length is the stream and its gradient (3 hidden vectors a token), two
// inputs on their way, and attention's q, k, v with their gradients, the rest of which lies in the stream's places: 8
// for heads that are as wide as the stream, with the log-sum-exp, and the sums of a key head's gradients. Nothing of
// the MLP or the logits does.
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
  EXPECT_LT(a_token, 8.3 * hidden);
  EXPECT_LT(bytes(1 << 19) - a_token * (1 << 19), 6e9) << "a tile, sums of gradients, attention's scratch";
}

SO_LABEL(sweep, "ChooseActivations.FitsEveryBudgetThatCanBeMetAndKeepsMoreWithMore");
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

// The host has room for some inputs, or for none: then fewer are kept.
TEST(ChooseActivations, FitsTheHostToo) {
  const TrainingShape shape{40000, 0, 4096, 1};
  Planner planner(small_llama(16), cuda_backend(), shape);
  const std::vector<ActivationChoice> choices = activation_choices(16, cuda_backend(), Toggle::automatic, 40000);
  const auto bytes = [&](const ActivationChoice& choice) {
    planner.settings.keep = choice.keep;
    planner.settings.tile_rows = choice.tile_rows;
    return planner.sizer.bytes(planner.settings) + planner.sizer.page_tables(planner.settings);
  };
  const std::size_t budget = bytes({keep_every(16, 2, 0), plan_tile_rows}), item = 40000 * 64 * 2;
  const auto choose = [&](std::size_t host) {
    return choose_activations(planner.sizer, planner.settings, {budget, host}, choices).keep;
  };
  // So much of the device has room for nine inputs, or for six, two on their way, and page tables of eight elsewhere.
  EXPECT_EQ(choose(unlimited), keep_choice(16, keep_choices_on_device(16) - 1 + 10));
  EXPECT_EQ(choose(8 * item), keep_choice(16, keep_choices_on_device(16) - 1 + 10));
  EXPECT_EQ(choose(8 * item - 1), keep_every(16, 2, 0));
  EXPECT_EQ(choose(0), keep_every(16, 2, 0));
}

// Qwen3-14B, four documents of 4096 tokens: what each choice is for.
TEST(ChooseActivations, TheLevelsAreWorthTheirNames) {
  Planner planner(qwen3_14b(), cuda_backend(), {16384, 0, 4096, 1});
  const auto per_layer = [&](std::int64_t from, std::int64_t to) {
    // Whole levels: what a single layer's worth of scratch adds is not counted.
    return static_cast<double>(planner.bytes(40 * from) - planner.bytes(40 * to)) / 40 / 16384 / 2;
  };
  const DecoderSpec s = qwen3_14b();
  const AttentionShape a = s.shape(0);
  const auto width = [](std::int64_t elements) { return static_cast<double>(elements); };
  // In elements a token. The difference a layer's scratch makes is spread over 40 layers.
  EXPECT_NEAR(per_layer(0, 1), width(2 * s.hidden + a.q_width() + a.kv_width() + s.intermediate), 0.04 * 34000);
  EXPECT_NEAR(per_layer(1, 2), width(2 * s.intermediate), 0.04 * 34000);
  EXPECT_NEAR(per_layer(2, 3), width(s.hidden + a.qkv_width() + a.q_width()), 0.06 * 17400);
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
  // Inputs that are made again take whole forward passes beside the rest.
  const Recomputation spaced = recomputation(s, keep_every(5, 2, 1), documents, DType::bf16, h200_efficiencies());
  constexpr Input kept = Input::kept, on_host = Input::on_host, remade = Input::remade;
  EXPECT_EQ(spaced.inputs, (std::vector{kept, on_host, remade, kept, remade, kept, kept}));
  for (const std::size_t unit : {1, 2, 3, 4, 5}) EXPECT_EQ(spaced.flops[unit], work[unit].forward_flops - product);
  EXPECT_EQ(again.inputs, std::vector(7, kept));
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

}  // namespace
}  // namespace so::test
