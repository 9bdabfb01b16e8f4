// Weights that are gathered, in the plan of a rank: the memory that it says beside what ranks allocate, and when it
// chooses them.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "device/backend.h"
#include "io/presets.h"
#include "model/config.h"
#include "model/model_on_device.h"
#include "model/parameters.h"
#include "offload/counted_settings.h"
#include "offload/engine.h"
#include "options/train_options.h"
#include "plan/gpu_rates.h"
#include "plan/memory/state_memory.h"
#include "plan/plan_question.h"
#include "plan/small_llama.h"
#include "plan/training_plan.h"
#include "support/errors.h"
#include "support/label.h"
#include "support/on_gpu.h"
#include "support/thread_ranks.h"

namespace so::test {
namespace {

constexpr int layers_of_deep_llama = 9;
DecoderSpec deep_llama() { return small_llama(layers_of_deep_llama, 500); }

CountedSettings engine_of(int gathered, int device_units, const NumberFormats& formats, bool moves = false) {
  CountedSettings settings;
  settings.formats = formats;
  settings.counts.gathered_units = gathered;
  settings.counts.device_units = device_units;
  settings.placement.bucket_elements = 4096;
  settings.placement.spare_buckets = 5;
  settings.counts.move_gradients = moves;
  if (moves && gathered > 0) settings.counts.cast_weights = settings.counts.send_masters = true;
  return settings;
}

NumberFormats rank_formats(DType dtype, DType gradients = DType::f32, DType sums = DType::f32) {
  NumberFormats formats = model_formats(dtype);
  formats.gradients = gradients;
  formats.rank_sums = sums;
  return formats;
}

const ParameterRules some_frozen{{"model.layers.[1-4].*", "*norm.weight", "*.o_proj.weight"}};

TEST(GatheredPlan, ArithmeticIsThatOfADryRun) {
  const DecoderSpec spec = deep_llama();
  ThreadPool pool("host", {}, false);
  PlanningMachine machine;
  machine.pool = &pool;
  for (const ParameterLayout& layout :
       {ParameterLayout(make_parameters(spec)), ParameterLayout(make_parameters(spec, some_frozen))})
    for (const int ranks : {2, 3, 5})
      for (const NumberFormats& formats :
           {rank_formats(DType::f32), rank_formats(DType::bf16), rank_formats(DType::bf16, DType::bf16),
            rank_formats(DType::bf16, DType::bf16, DType::bf16)})
        for (const auto& [device_units, moves] :
             {std::pair{0, false}, std::pair{4, false}, std::pair{layout.units(), false}, std::pair{0, true},
              std::pair{4, true}}) {
          TrainingShape shape{300, 0, 300, 1};
          shape.ranks = ranks;
          const auto planned = [&, device_units = device_units, moves = moves](int gathered) {
            const EngineSettings settings = engine_of(gathered, device_units, formats, moves).of(layout, ranks);
            const MemoryPlan memory = plan_state(spec, layout, machine, shape, settings, WeightOrigin::random).memory;
            return std::pair(memory.total(MemoryKind::device), held_memory(layout, settings).device);
          };
          const auto [one, one_said] = planned(1);
          for (int gathered = 2; gathered <= layers_of_deep_llama; ++gathered) {
            const auto [bytes, said] = planned(gathered);
            EXPECT_EQ(static_cast<std::int64_t>(bytes - one), static_cast<std::int64_t>(said - one_said))
                << gathered << " units, " << ranks << " ranks, the device owns " << device_units;
          }
          EXPECT_LT(planned(layers_of_deep_llama).first, planned(0).first);
        }
}

TEST(StreamedPlan, ArithmeticIsThatOfADryRun) {
  const DecoderSpec spec = deep_llama();
  ThreadPool pool("host", {}, false);
  PlanningMachine machine;
  machine.pool = &pool;
  const ParameterLayout layout(make_parameters(spec));
  for (const bool sends_masters : {false, true})
    for (const int device_units : {0, 4}) {
      const auto planned = [&, sends_masters = sends_masters](int streamed) {
        CountedSettings settings = engine_of(0, device_units, rank_formats(DType::bf16, DType::bf16));
        settings.counts.streamed_units = streamed;
        settings.counts.send_masters = sends_masters;
        const EngineSettings engine = settings.of(layout, 1);
        const MemoryPlan memory =
            plan_state(spec, layout, machine, {300, 0, 300, 1}, engine, WeightOrigin::random).memory;
        const HeldMemory held = held_memory(layout, engine);
        return std::pair(static_cast<std::int64_t>(memory.total(MemoryKind::device) - held.device),
                         static_cast<std::int64_t>(memory.total(MemoryKind::pinned) - held.pinned));
      };
      const auto one = planned(1);
      for (int streamed = 2; streamed <= most_streamed_units(layout.units(), device_units); ++streamed)
        EXPECT_EQ(planned(streamed), one) << streamed << " units, the device owns " << device_units;
    }
}

// By name, to the byte on the first rank, which has the longest slices.
TEST(GatheredPlan, RanksAllocateWhatIsPlanned) {
  if (on_gpu()) GTEST_SKIP() << "ranks are those of the CPU device";
  const DecoderSpec spec = deep_llama();
  for (const ParameterLayout& layout :
       {ParameterLayout(make_parameters(spec)), ParameterLayout(make_parameters(spec, some_frozen))})
    for (const int size : {2, 4})
      for (const int gathered : {0, 1, 5, layers_of_deep_llama})
        for (const int device_units : {0, 5, layout.units()}) {
          SCOPED_TRACE(fmt::format("{} ranks, {} units gathered, the device owns {}", size, gathered, device_units));
          const DType narrow = size == 2 ? DType::bf16 : DType::f32;  // of the model and its gradients
          const bool moves = size == 4 || gathered == 5;
          const DType sums = gathered == 1 ? narrow : DType::f32;
          const EngineSettings settings =
              engine_of(gathered, device_units, rank_formats(narrow, narrow, sums), moves).of(layout, size);
          TrainingShape shape{300, 0, 300, 1};
          shape.ranks = size;
          run_ranks(size, [&](Communicator& ranks) {
            ThreadPool pool("host", {}, false);
            PlanningMachine machine;
            machine.pool = &pool;
            const MemoryPlan plan = plan_state(spec, layout, machine, shape, settings, WeightOrigin::random).memory;
            const auto device = make_cpu_device(pool);
            const auto ops = make_ops(*device);
            {
              const OffloadEngine engine(*device, pool, ranks, layout, settings);
              const auto stream = device->create_stream("compute");
              DecoderSettings decoder;
              decoder.formats = settings.formats;
              decoder.loss_chunk_rows = 1;
              const ModelOnDevice model(*device, *ops, *stream, spec, layout, decoder, model_shape(shape));
              for (const MemoryKind kind : {MemoryKind::device, MemoryKind::pinned, MemoryKind::pageable}) {
                std::map<std::string, std::size_t> planned;
                for (const MemoryPlan::Entry& entry : plan.entries)
                  if (entry.kind == kind && entry.allocated) planned[entry.name] += entry.bytes;
                const auto held = device->ledger().peaks(kind);
                if (ranks.rank() == 0) {
                  EXPECT_EQ(held, planned);
                }
                for (const auto& [name, bytes] : held) EXPECT_LE(bytes, planned[name]) << name;
              }
              ranks.barrier();
            }
          });
        }
}

// A machine that is not there.
struct RankPlanner {
  RankPlanner(const Backend& kind, double device_bytes, double host_bytes) : pool("host", {}, false) {
    machine.backend = &kind;
    machine.name = "Fake";
    if (kind.own_memory) machine.device_memory = static_cast<std::size_t>(device_bytes);
    machine.host = {static_cast<std::size_t>(host_bytes), "free memory"};
    machine.pool = &pool;
    machine.held = 0;
    machine.rates = [] {
      MachineRates rates = gpu_rates(1.2e11);
      rates.collectives = {.bytes = 3e11, .seconds = 1e-5};
      return rates;
    };
  }
  TrainingPlan plan(const DecoderSpec& spec, std::optional<int> gathered_layers, int ranks = 4) const {
    const ParameterLayout layout(make_parameters(spec));
    RunRequest request;
    request.gpus = ranks;
    request.gathered_layers = gathered_layers;
    TrainingShape shape{512, 0, 512, 1};
    shape.ranks = ranks;
    return plan_training(spec, layout, machine, shape, request, WeightOrigin::random);
  }
  ThreadPool pool;
  PlanningMachine machine;
};

DecoderSpec preset(const char* name) {
  const ModelConfig config = resolve_config(name);
  return read_decoder_spec(config.text, config.origin);
}

// What a rank needs at the least takes no more of the device than there is, and no more of the host than a plan does.
SO_LABEL(sweep, "GatheredPlan.TheLeastIsNoMoreThanAPlanTakes");
TEST(GatheredPlan, TheLeastIsNoMoreThanAPlanTakes) {
  const DecoderSpec spec = preset("llama-3.1-8b");
  const ParameterLayout layout(make_parameters(spec));
  for (const double device_bytes : {24e9, 40e9, 47.8e9, 60e9, 84e9, 115e9})
    for (const int gathered : {0, 4, 32}) {
      SCOPED_TRACE(testing::Message() << device_bytes << " bytes, " << gathered << " layers gathered");
      const RankPlanner planner(cuda_backend(), device_bytes, 200e9);
      RunRequest request;
      request.gpus = 2;
      const MemoryPlan least =
          least_memory(layout, planner.machine, number_formats(request), std::nullopt, 2, gathered);
      std::optional<MemoryPlan> plan;
      try {
        plan = planner.plan(spec, gathered, 2).memory;
      } catch (const MemoryRefusal&) {
        continue;
      }
      EXPECT_LE(least.total(MemoryKind::device), device_bytes);
      EXPECT_LE(least.host_total(cuda_backend()), plan->host_total(cuda_backend()));
    }
}

TEST(GatheredPlan, OnTheCpuWholeWeightsIfTheyFit) {
  const DecoderSpec spec = deep_llama();
  RankPlanner ample(cpu_backend(), 0, 1e12);
  EXPECT_EQ(ample.plan(spec, {}).engine.placement.gathered(), 0);
  EXPECT_EQ(ample.plan(spec, 3).engine.placement.gathered(), 3);
  EXPECT_EQ(ample.plan(spec, 1000).engine.placement.gathered(), layers_of_deep_llama);
  EXPECT_EQ(ample.plan(spec, {}, 1).engine.placement.gathered(), 0);
  const auto least = [&](int gathered) {
    double refused = 1e6, fits = 1e9;
    while (fits - refused > 1e3) {
      const double middle = (fits + refused) / 2;
      try {
        RankPlanner(cpu_backend(), 0, middle).plan(spec, gathered);
        fits = middle;
      } catch (const MemoryRefusal&) {
        refused = middle;
      }
    }
    return fits;
  };
  const double all_fit = least(layers_of_deep_llama), whole_fit = least(0);
  // Either plan has what the threads keep for products.
  const double kept = static_cast<double>(bf16_product_scratch) * ample.pool.size();
  ASSERT_LT(all_fit - kept, 0.95 * (whole_fit - kept));
  EXPECT_EQ(RankPlanner(cpu_backend(), 0, whole_fit).plan(spec, {}).engine.placement.gathered(), 0);
  EXPECT_EQ(RankPlanner(cpu_backend(), 0, all_fit).plan(spec, {}).engine.placement.gathered(), layers_of_deep_llama);
  RankPlanner between(cpu_backend(), 0, (all_fit + whole_fit) / 2);
  const TrainingPlan chosen = between.plan(spec, {});
  EXPECT_EQ(chosen.engine.placement.gathered(), layers_of_deep_llama);
  EXPECT_NE(std::find_if(chosen.reasons.begin(), chosen.reasons.end(),
                         [](const std::string& reason) {
                           return reason.find("gathered before each use, since whole ones do not fit") !=
                                  std::string::npos;
                         }),
            chosen.reasons.end());
  EXPECT_NE(refusal([&] { between.plan(spec, 0); }).find("not enough memory"), std::string::npos);
}

// 16 GB of weights and as much of gradients; ranks that gather have a fourth of it, and 8 GB for the sums have all.
SO_LABEL(sweep, "GatheredPlan.OnAGpuWholeWeightsIfTheyFitAndAreFaster");
TEST(GatheredPlan, OnAGpuWholeWeightsIfTheyFitAndAreFaster) {
  const DecoderSpec spec = preset("llama-3.1-8b");
  EXPECT_EQ(RankPlanner(cuda_backend(), 140e9, 200e9).plan(spec, {}).engine.placement.gathered(), 0);
  const TrainingPlan some = RankPlanner(cuda_backend(), 52e9, 200e9).plan(spec, {}),
                     most = RankPlanner(cuda_backend(), 30e9, 200e9).plan(spec, {});
  EXPECT_GT(some.engine.placement.gathered(), 0);
  EXPECT_GE(most.engine.placement.gathered(), some.engine.placement.gathered());
  EXPECT_LE(most.engine.placement.gathered(), 32);
  EXPECT_GT(most.estimate->collectives, some.estimate->collectives);
  for (const TrainingPlan* plan : {&some, &most}) {
    std::map<std::string, std::size_t> bytes;
    for (const MemoryPlan::Entry& entry : plan->memory.entries) bytes[entry.name] += entry.bytes;
    EXPECT_GT(bytes["weight slices"], 0u);
    const bool moves = plan->engine.placement.moves();
    EXPECT_GT(bytes["gradient slices"], moves ? 0 : 2 * bytes["weight slices"])
        << "fp32 beside bf16, and of all layers";
  }
  // Whole weights, and gradients of which none need stay.
  const TrainingPlan moves = RankPlanner(cuda_backend(), 30e9, 200e9).plan(spec, 0);
  EXPECT_EQ(moves.engine.placement.gathered(), 0);
  EXPECT_TRUE(moves.engine.placement.moves());
  expect_in(refusal([&] { RankPlanner(cuda_backend(), 16e9, 200e9).plan(spec, 0); }),
            {"not enough memory on Fake", "--gathered_layers 0, or a ZeRO stage below 3"});
  // Not even slices of weights.
  const TrainingPlan least = RankPlanner(cuda_backend(), 10e9, 200e9).plan(spec, {});
  EXPECT_TRUE(least.engine.placement.makes_from_masters(Owner::host));
  EXPECT_EQ(least.engine.placement.gathered(), 32);
  EXPECT_GT(least.estimate->seconds(), most.estimate->seconds());
  expect_in(refusal([&] { RankPlanner(cuda_backend(), 6e9, 200e9).plan(spec, {}); }), {"not enough memory on Fake"});
}

}  // namespace
}  // namespace so::test
