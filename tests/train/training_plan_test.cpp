// What a plan decides: what layers keep, the type of gradients, chunks of the loss, and what is refused.
#include "train/training_plan.h"

#include <gtest/gtest.h>

#include <limits>

#include "model/parameters.h"
#include "support/errors.h"

namespace so::test {
namespace {

constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

DecoderSpec qwen3_14b() {
  DecoderSpec s;
  s.architecture = "Qwen3ForCausalLM";
  s.vocab = 151936;
  s.hidden = 5120;
  s.layers = 40;
  s.heads = 40;
  s.kv_heads = 8;
  s.head_dim = 128;
  s.intermediate = 17408;
  s.max_positions = 40960;
  s.qk_norm = true;
  s.rope.rotary_dim = 128;
  return s;
}

DecoderSpec small_llama() {
  DecoderSpec s;
  s.architecture = "LlamaForCausalLM";
  s.vocab = 1000;
  s.hidden = 64;
  s.layers = 5;
  s.heads = 4;
  s.kv_heads = 2;
  s.head_dim = 16;
  s.intermediate = 160;
  s.max_positions = 512;
  s.rope.rotary_dim = 16;
  return s;
}

struct Planner {
  Planner(DecoderSpec model, DeviceKind kind, const TrainingShape& shape)
      : spec(std::move(model)), layout(make_parameters(spec)), sizer(spec, layout, kind, shape) {
    settings.compute = DType::bf16;
    settings.loss_chunk_rows = choose_loss_chunk(kind, spec.vocab);
  }
  ActivationPlan choose(std::size_t budget) { return choose_activations(sizer, spec, settings, budget); }
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
    EXPECT_EQ(keep_choice(layers, keep_choices(layers) - 1), std::vector(n, Keep::input));
    for (std::int64_t choice = 1; choice < keep_choices(layers); ++choice) {
      const auto before = keep_choice(layers, choice - 1), now = keep_choice(layers, choice);
      int changed = 0;
      for (std::size_t i = 0; i < n; ++i) {
        if (now[i] == before[i]) continue;
        ++changed;
        EXPECT_EQ(static_cast<int>(now[i]), static_cast<int>(before[i]) + 1);
      }
      EXPECT_EQ(changed, 1);
      EXPECT_TRUE(std::is_sorted(now.rbegin(), now.rend())) << "the last layers keep most";
    }
  }
}

TEST(KeepChoices, AreDescribed) {
  EXPECT_EQ(describe({}), "all");
  EXPECT_EQ(describe(keep_choice(4, 0)), "all");
  EXPECT_EQ(describe(keep_choice(4, 12)), "input");
  EXPECT_EQ(describe(keep_choice(4, 1)), "1 layers keep light, 3 all");
  EXPECT_EQ(describe(keep_choice(4, 11)), "3 layers keep input, 1 no_gate_up");
}

TEST(ChooseActivations, FitsEveryBudgetThatCanBeMetAndKeepsMoreWithMore) {
  const TrainingShape shape{16384, 0, 4096, 1}, evaluated{300, 900, 512, 1}, single{1, 0, 1, 1};
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    for (const auto& [spec, s] :
         {std::pair{qwen3_14b(), shape}, std::pair{small_llama(), evaluated}, std::pair{small_llama(), single}}) {
      Planner planner(spec, kind, s);
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
  Planner planner(qwen3_14b(), DeviceKind::cuda, {16384, 0, 4096, 1});
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

TEST(ChooseGradientDtype, Bf16OnlyWithOneMicroBatch) {
  EXPECT_EQ(choose_gradient_dtype(DType::bf16, 1), DType::bf16);
  EXPECT_EQ(choose_gradient_dtype(DType::bf16, 2), DType::f32);
  EXPECT_EQ(choose_gradient_dtype(DType::f32, 1), DType::f32);
}

TEST(ChooseLossChunk, IsLargeOnAGpuAndBounded) {
  for (const std::int64_t vocab : {1, 1000, 32000, 151936, 1'000'000}) {
    const std::int64_t gpu = choose_loss_chunk(DeviceKind::cuda, vocab),
                       cpu = choose_loss_chunk(DeviceKind::cpu, vocab);
    EXPECT_LE(gpu, 4096);
    EXPECT_LE(gpu * vocab * 2, 1'250'000'000);
    EXPECT_EQ(gpu % 128, 0);
    EXPECT_GE(gpu, cpu);
    EXPECT_GE(cpu, 64);
  }
  EXPECT_EQ(choose_loss_chunk(DeviceKind::cuda, 151936), 4096);
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
  std::unique_ptr<Event> create_event(Timing) override { return nullptr; }

 protected:
  void* allocate_memory(MemoryKind, std::size_t) override { return this; }
  void free_memory(MemoryKind, void*, std::size_t) noexcept override {}

 private:
  std::size_t free_;
};

TEST(RequireFits, ChecksTheDevicesOwnMemoryAndTheHosts) {
  MemoryPlan plan;
  plan.add(MemoryKind::device, "weights", 700);
  plan.add(MemoryKind::device, "activations", 300);
  plan.add(MemoryKind::pinned, "ring", 10);
  FakeGpu enough(1000), short_of(999);
  EXPECT_NO_THROW(require_fits(plan, enough, "device", "host"));
  expect_in(refusal([&] { require_fits(plan, short_of, "buy another", "host"); }),
            {"Fake GPU", "1000 bytes needed", "weights, 700 bytes", "999 bytes available", "buy another"});
  // What is held already is in the plan, and does not count as missing.
  FakeGpu holding(999 - 64);
  const Buffer scratch = holding.allocate(MemoryKind::device, 65, "ops scratch");
  EXPECT_NO_THROW(require_fits(plan, holding, "device", "host"));
  plan.add(MemoryKind::pageable, "optimizer state", std::size_t{1} << 60);
  expect_in(refusal([&] { require_fits(plan, enough, "device", "use less"); }), {"optimizer state", "use less"});
}

}  // namespace
}  // namespace so::test
