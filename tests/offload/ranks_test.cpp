// The engine on several ranks, which are threads: each has a device, an engine and gradients of its own. Gradients are
// multiples of 2^-8, so their sums over ranks are exact and the result must equal that of one plain loop bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "offload/counted_settings.h"
#include "offload/engine_rig.h"
#include "offload/idle_micro_batch.h"
#include "offload/ranks_rig.h"
#include "support/jitter.h"
#include "support/label.h"
#include "support/on_gpu.h"
#include "support/sanitized.h"
#include "support/thread_ranks.h"

namespace so {
namespace {

using test::CountedSettings;
using test::expect_weights;
using test::Flat;
using test::part_of;
using test::sum_of;
using test::whole;

CountedSettings settings_of(Schedule schedule, std::int64_t bucket_elements, double max_grad_norm,
                            int device_units = 0) {
  CountedSettings settings;
  settings.counts.device_units = device_units;
  settings.placement.schedule = schedule;
  settings.placement.bucket_elements = bucket_elements;
  settings.placement.spare_buckets = 3;
  settings.weight_decay = 0.1;
  settings.max_grad_norm = max_grad_norm;
  return settings;
}

constexpr int steps = 6;

// A step's gradient of a rank; the fourth is large, so that it is clipped where anything is.
Flat gradient_of(const ParameterLayout& layout, int step, int rank) {
  return test::synthetic_gradients(layout, static_cast<unsigned>(100 * step + rank), step == 3 ? 8.0f : 0.125f);
}

Flat rounded(Flat gradient) {
  for (auto& values : gradient)
    for (float& x : values) x = static_cast<float>(bf16(x));
  return gradient;
}

// Trains on `size` ranks and compares with the loop that sees the sum of their gradients.
void expect_equal(int size, const CountedSettings& settings, const ParameterLayout& layout = test::engine_layout()) {
  SCOPED_TRACE(
      testing::Message() << size << " ranks, buckets of " << settings.placement.bucket_elements << ", "
                         << settings.counts.device_units << " units of the device, "
                         << (settings.placement.schedule == Schedule::synchronous ? "synchronous" : "overlapped"));
  const Flat initial = test::synthetic_gradients(layout, 7);
  test::ReferenceLoop reference(layout, settings, initial);
  std::vector<float> clips;
  for (int step = 0; step < steps; ++step) {
    std::vector<Flat> gradients;
    for (int rank = 0; rank < size; ++rank) gradients.push_back(gradient_of(layout, step, rank));
    clips.push_back(reference.step(sum_of(gradients), 1e-2, step + 1));
  }
  test::run_ranks(size, [&](Communicator& ranks) {
    test::EngineRig rig(layout, settings, 1, nullptr, {}, &ranks);
    rig.load(initial);
    for (int step = 0; step < steps; ++step) {
      const Flat gradient = gradient_of(layout, step, ranks.rank());
      const Verdict verdict = rig.step(gradient, 1e-2, step + 1);
      EXPECT_EQ(verdict.clip, clips[static_cast<std::size_t>(step)]);
      rig.stream().synchronize();
    }
    // Before a rank's engine goes, the others' must have what they need of it.
    const test::EngineBytes found = bytes_of(rig, ranks);
    ranks.barrier();
    expect_reference(layout, found, reference, settings.formats.weights);
  });
}

// Three ranks place their own slices of the weights, from a file that has them in `stored`.
void expect_placed(const ParameterLayout& layout, const CountedSettings& settings, Flat masters, DType stored) {
  if (stored == DType::bf16)
    for (auto& values : masters)
      for (float& x : values) x = static_cast<float>(bf16(x));
  std::vector<float> wide(static_cast<std::size_t>(layout.elements()));
  for (int p = 0; p < layout.count(); ++p)
    std::copy(masters[static_cast<std::size_t>(p)].begin(), masters[static_cast<std::size_t>(p)].end(),
              wide.begin() + layout.range(p).begin);
  std::vector<bf16> narrow;
  for (const float x : wide) narrow.push_back(bf16(x));
  test::run_ranks(3, [&](Communicator& ranks) {
    test::EngineRig rig(layout, settings, 1, nullptr, {}, &ranks);
    const WeightForms forms = rig.engine().forms(stored);
    for (const Range& own : rig.engine().own_ranges()) {
      const auto begin = static_cast<std::size_t>(own.begin), count = static_cast<std::size_t>(own.size());
      WeightPiece piece{own.begin, {}, {}};
      if (forms.wide) piece.wide = std::span(wide).subspan(begin, count);
      if (forms.narrow) piece.narrow = std::span(narrow).subspan(begin, count);
      rig.engine().place_weights(rig.stream(), piece);
    }
    rig.stream().synchronize();
    rig.engine().gather_placed(rig.stream());
    const std::vector<float> found = whole(rig.engine(), ranks, StateArray::master);
    expect_weights(layout, rig.weights(), masters, settings.formats.weights);
    ranks.barrier();
    for (int p = 0; p < layout.count(); ++p)
      EXPECT_EQ(part_of(layout, p, found), masters[static_cast<std::size_t>(p)]) << layout.parameter(p).name;
  });
}

TEST(EngineOnRanks, EqualsOneLoopBitForBit) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other\'s streams");
  for (const int size : test::sanitized ? std::vector{3} : std::vector{1, 2, 3, 4})
    for (const std::int64_t bucket : test::sanitized ? std::vector{64, 1 << 20} : std::vector{64, 4096, 1 << 20})
      for (const Schedule schedule : {Schedule::synchronous, Schedule::overlapped})
        expect_equal(size, settings_of(schedule, bucket == 64 ? 1024 : bucket, 0));
}

TEST(EngineOnRanks, ClippedStepsToo) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other\'s streams");
  const ParameterLayout layout = test::engine_layout();
  const CountedSettings settings = settings_of(Schedule::overlapped, 4096, 3000);
  for (const int size : {2, 4}) expect_equal(size, settings);
  // Some steps were, and some were not.
  test::ReferenceLoop reference(layout, settings, test::synthetic_gradients(layout, 7));
  const auto clip_of = [&](int step) {
    return reference.step(sum_of({gradient_of(layout, step, 0), gradient_of(layout, step, 1)}), 1e-2, step + 1);
  };
  EXPECT_EQ(clip_of(0), 1.0f);
  EXPECT_LT(clip_of(3), 1.0f);
}

// Rows of blocks, of which one is most of a bucket, so that a rank has nothing of some buckets and most of others.
SO_LABEL(no_tsan, "EngineOnRanks.BlocksThatAreNotCutChangeNoBit");
TEST(EngineOnRanks, BlocksThatAreNotCutChangeNoBit) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other\'s streams");
  const ParameterLayout plain = test::engine_layout();
  std::vector<Parameter> parameters(plain.parameters().begin(), plain.parameters().end());
  for (Parameter& p : parameters)
    if (!p.joined) p.cut = p.shape.size() == 1 ? 256 : (p.name == "2.up" ? 128 : 64) * p.shape[1];
  const ParameterLayout layout(parameters);
  for (const std::int64_t bucket : {128 * 200, 1 << 20})
    for (const int size : {1, 3}) {
      expect_equal(size, settings_of(Schedule::overlapped, bucket, 3000), layout);
      CountedSettings gathered = settings_of(Schedule::overlapped, bucket, 3000, 1);
      gathered.counts.gathered_units = size == 1 ? 0 : 2;
      expect_equal(size, gathered, layout);
    }
}

TEST(EngineOnRanks, WithWeightsInBf16) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other\'s streams");
  for (const CastSide cast : {CastSide::host, CastSide::device}) {
    CountedSettings settings = settings_of(Schedule::overlapped, 4096, 3000);
    settings.formats = model_formats(DType::bf16);
    settings.formats.moments = cast == CastSide::host ? DType::f32 : DType::u8;
    settings.placement.cast = cast;
    expect_equal(3, settings);
  }
}

// Each rank's gradient is bf16, and their sum is not: it must equal one of the rounded values in fp32.
SO_LABEL(no_tsan, "EngineOnRanks.WithGradientsInBf16");
TEST(EngineOnRanks, WithGradientsInBf16) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other\'s streams");
  const ParameterLayout layout = test::engine_layout();
  for (const auto& [device_units, over_link, cast] :
       {std::tuple{0, false, CastSide::host}, std::tuple{2, false, CastSide::device},
        std::tuple{1, true, CastSide::host}}) {
    CountedSettings settings = settings_of(Schedule::overlapped, 4096, 3000, device_units);
    settings.formats = model_formats(DType::bf16);
    settings.formats.gradients = DType::bf16;
    settings.placement.cast = cast;
    settings.placement.over_link = over_link;
    const Flat initial = test::synthetic_gradients(layout, 7);
    test::ReferenceLoop reference(layout, settings, initial);
    for (int step = 0; step < steps; ++step) {
      std::vector<Flat> gradients;
      for (int rank = 0; rank < 3; ++rank) gradients.push_back(rounded(gradient_of(layout, step, rank)));
      reference.step(sum_of(gradients), 1e-2, step + 1);
    }
    test::run_ranks(3, [&](Communicator& ranks) {
      test::EngineRig rig(layout, settings, 1, nullptr, {}, &ranks);
      rig.load(initial);
      for (int step = 0; step < steps; ++step) rig.step(gradient_of(layout, step, ranks.rank()), 1e-2, step + 1);
      rig.stream().synchronize();
      const test::EngineBytes found = bytes_of(rig, ranks);
      ranks.barrier();
      expect_reference(layout, found, reference, DType::bf16);
    });
  }
}

SO_LABEL(slow, "EngineOnRanks.DelaysChangeNothing");
TEST(EngineOnRanks, DelaysChangeNothing) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other\'s streams");
  const test::Jitter jitter(11);
  for (int i = 0; i < 3; ++i) expect_equal(3, settings_of(Schedule::overlapped, 2048, 3000));
}

TEST(EngineOnRanks, WithUpdatesOverTheLink) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other\'s streams");
  const test::Jitter jitter(13);
  for (const int size : test::sanitized ? std::vector{3} : std::vector{2, 3})
    for (const DType weights : {DType::f32, DType::bf16})
      for (const int device_units : test::sanitized ? std::vector{2} : std::vector{0, 2}) {
        CountedSettings settings = settings_of(Schedule::overlapped, 2048, 3000, device_units);
        settings.formats = model_formats(weights);
        settings.formats.moments = weights == DType::f32 ? DType::f32 : DType::u8;
        settings.placement.over_link = true;
        expect_equal(size, settings);
      }
}

SO_LABEL(slow, "EngineOnRanks.WithUnitsThatTheDeviceOwns");
TEST(EngineOnRanks, WithUnitsThatTheDeviceOwns) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other\'s streams");
  for (const int size : test::sanitized ? std::vector{3} : std::vector{1, 2, 3})
    for (const int device_units : test::sanitized ? std::vector{2} : std::vector{1, 2, 4})
      for (const Schedule schedule : {Schedule::synchronous, Schedule::overlapped})
        for (const std::int64_t bucket : test::sanitized ? std::vector{6400} : std::vector{1024, 6400})
          expect_equal(size, settings_of(schedule, bucket, bucket == 1024 ? 3000 : 0, device_units));
  for (const CastSide cast : {CastSide::host, CastSide::device}) {
    CountedSettings settings = settings_of(Schedule::overlapped, 4096, 3000, 2);
    settings.formats = model_formats(DType::bf16);
    settings.placement.cast = cast;
    expect_equal(2, settings);
  }
  const test::Jitter jitter(12);
  expect_equal(3, settings_of(Schedule::overlapped, 2048, 3000, 2));
}

// Steps on three ranks, then on two and on one, with another number of units of the device each time.
void expect_to_go_on(DType moments) {
  const auto settings_with = [&](int device_units) {
    CountedSettings settings = settings_of(Schedule::overlapped, 4096, 3000, device_units);
    settings.formats.moments = moments;
    return settings;
  };
  const ParameterLayout layout = test::engine_layout();
  const Flat initial = test::synthetic_gradients(layout, 7);
  test::ReferenceLoop reference(layout, settings_with(0), initial);
  test::EngineBytes saved;
  int step = 0;
  for (const auto& [size, device_units] : {std::pair{3, 2}, std::pair{2, 1}, std::pair{1, 3}}) {
    const int first = step;
    step += 2;
    for (int i = first; i < step; ++i) {
      std::vector<Flat> gradients;
      for (int rank = 0; rank < size; ++rank) gradients.push_back(gradient_of(layout, i, rank));
      reference.step(sum_of(gradients), 1e-2, i + 1);
    }
    const CountedSettings settings = settings_with(device_units);
    test::EngineBytes left;  // by rank 0
    test::run_ranks(size, [&](Communicator& ranks) {
      test::EngineRig rig(layout, settings, 1, nullptr, {}, &ranks);
      if (first == 0)
        rig.load(initial);
      else
        rig.load(saved);
      for (int i = first; i < step; ++i) rig.step(gradient_of(layout, i, ranks.rank()), 1e-2, i + 1);
      const test::EngineBytes found = bytes_of(rig, ranks);
      ranks.barrier();
      expect_reference(layout, found, reference, DType::f32);
      if (ranks.rank() == 0) left = found;
    });
    saved = left;
  }
}

TEST(EngineOnRanks, AnyNumberOfRanksGoesOnWithTheState) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other\'s streams");
  for (const DType moments : {DType::f32, DType::u8}) expect_to_go_on(moments);
}

// Each rank places its own slices, in the forms that the engine asks for, and finds all weights.
TEST(EngineOnRanks, WeightsThatEachRankPlacesComeToAll) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other\'s streams");
  const ParameterLayout layout = test::engine_layout();
  const Flat initial = test::synthetic_gradients(layout, 7, 0.125f);
  for (const DType weights : {DType::f32, DType::bf16})
    for (const DType stored : {DType::f32, DType::bf16})
      for (const int device_units : {0, 2, 4}) {
        SCOPED_TRACE(testing::Message() << name_of(weights) << " from " << name_of(stored) << ", " << device_units
                                        << " units of the device");
        CountedSettings settings = settings_of(Schedule::overlapped, 4096, 0, device_units);
        settings.formats = model_formats(weights);
        expect_placed(layout, settings, initial, stored);
      }
}

// A NaN on one rank skips the step on all, and every rank's weights and state stay as they were.
TEST(EngineOnRanks, ANaNOnOneRankSkipsTheStepOnAll) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other\'s streams");
  const ParameterLayout layout = test::engine_layout();
  const Flat initial = test::synthetic_gradients(layout, 7);
  for (const int device_units : {0, 2, 4}) {
    const CountedSettings settings = settings_of(Schedule::overlapped, 4096, 0, device_units);
    test::run_ranks(3, [&](Communicator& ranks) {
      test::EngineRig rig(layout, settings, 1, nullptr, {}, &ranks);
      rig.load(initial);
      rig.step(gradient_of(layout, 0, ranks.rank()), 1e-2, 1);
      rig.stream().synchronize();
      const test::EngineBytes before = bytes_of(rig, ranks);
      Flat gradient = gradient_of(layout, 1, ranks.rank());
      if (ranks.rank() == 1) gradient[4][17] = std::numeric_limits<float>::quiet_NaN();
      const Verdict verdict = rig.step(gradient, 1e-2, 2);
      EXPECT_FALSE(verdict.finite);
      EXPECT_EQ(verdict.non_finite_parameter, 4) << "on rank " << ranks.rank();
      rig.stream().synchronize();
      EXPECT_TRUE(bytes_of(rig, ranks) == before) << device_units << " units of the device";
      ranks.barrier();
    });
  }
}

// Ranks 1 and 2 have no micro-batch in the second step; rank 1's gradient of the third is of two, its second empty.
TEST(EngineOnRanks, ARankWithoutAMicroBatchAddsNothing) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other\'s streams");
  const ParameterLayout layout = test::engine_layout();
  const CountedSettings settings = settings_of(Schedule::overlapped, 4096, 0);
  const Flat initial = test::synthetic_gradients(layout, 7);
  test::ReferenceLoop reference(layout, settings, initial);
  for (int step = 0; step < 3; ++step) {
    std::vector<Flat> gradients;
    for (int rank = 0; rank < (step == 1 ? 1 : 3); ++rank) gradients.push_back(gradient_of(layout, step, rank));
    reference.step(sum_of(gradients), 1e-2, step + 1);
  }
  test::run_ranks(3, [&](Communicator& ranks) {
    test::EngineRig rig(layout, settings, 1, nullptr, {}, &ranks);
    OffloadEngine& engine = rig.engine();
    rig.load(initial);
    std::vector<Flat> gradients;
    for (int step = 0; step < 3; ++step) gradients.push_back(gradient_of(layout, step, ranks.rank()));
    for (int step = 0; step < 3; ++step) {
      const bool idle = step == 1 && ranks.rank() > 0, half = step == 2 && ranks.rank() == 1;
      if (half) rig.micro_batch(gradients[2], true);
      engine.begin_last_micro_batch(1e-2, step + 1);
      if (idle || half)
        run_idle_micro_batch(layout, {}, engine, engine, rig.stream());
      else
        rig.micro_batch(gradients[static_cast<std::size_t>(step)], true);
      engine.finish_step(rig.stream());
    }
    rig.stream().synchronize();
    const std::vector<float> master = whole(engine, ranks, StateArray::master);
    for (int p = 0; p < layout.count(); ++p)
      EXPECT_EQ(part_of(layout, p, master), reference.master[static_cast<std::size_t>(p)]) << layout.parameter(p).name;
    ranks.barrier();
  });
}

// A rank that fails in its step frees the others, which wait for its gradients.
TEST(EngineOnRanks, AFailureOfOneRankEndsTheStepOfAll) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other\'s streams");
  const ParameterLayout layout = test::engine_layout();
  const Flat initial = test::synthetic_gradients(layout, 7);
  test::expect_a_failure_ends_all([&](Communicator& ranks) {
    auto rig = std::make_shared<test::EngineRig>(layout, settings_of(Schedule::overlapped, 4096, 0), 1, nullptr,
                                                 test::EngineRig::MakeDevice{}, &ranks);
    rig->load(initial);
    return [rig, gradient = gradient_of(layout, 0, ranks.rank())] { rig->step(gradient, 1e-2, 1); };
  });
}

}  // namespace
}  // namespace so
