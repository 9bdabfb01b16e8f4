// The engine against a plain loop over elements, bit for bit, and steps that must leave everything untouched.
#include "offload/engine.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>
#include <tuple>

#include "offload/engine_scenario.h"
#include "support/label.h"
#include "support/sanitized.h"

namespace so::test::engine_run {
namespace {

enum class Clipping { never, sometimes, always };
std::int64_t clipped_steps(Clipping clipping) {
  return clipping == Clipping::never ? 0 : clipping == Clipping::always ? 5 : 3;
}

class EngineEquality : public testing::TestWithParam<std::tuple<DType, Owner, Clipping>> {};

TEST_P(EngineEquality, WithThePlainLoop) {
  const auto [compute, owner, clipping] = GetParam();
  const Scenario& run = the_run();
  // Never: a limit that is there, but above every norm.
  const double max_norm = clipping == Clipping::never       ? 4 * run.norms[0]
                          : clipping == Clipping::sometimes ? std::sqrt(run.norms[0] * run.norms[1])
                                                            : run.norms[1] / 3;
  const ParameterLayout& layout = run.layout;
  ReferenceLoop reference(layout, settings_of(compute, 64, max_norm), run.initial);
  for (std::size_t s = 0; s < kSteps; ++s) reference.step(run.sums[s], kLr[s], static_cast<std::int64_t>(s) + 1);

  for (const std::int64_t elements :
       {std::int64_t{512}, std::int64_t{6400}, std::int64_t{1} << 15, layout.elements()}) {
    for (int threads = sanitized ? 3 : 1; threads <= 3; ++threads) {
      SCOPED_TRACE("buckets of " + std::to_string(elements) + ", threads " + std::to_string(threads));
      EngineRig rig(layout, settings_of(compute, elements, max_norm, owner), threads);
      rig.load(run.initial);
      for (std::size_t s = 0; s < kSteps; ++s) {
        for (std::size_t i = 0; i < kMicroBatches; ++i) {
          if (i + 1 == kMicroBatches) rig.engine().begin_last_micro_batch(kLr[s], static_cast<std::int64_t>(s) + 1);
          rig.micro_batch(run.micro_batches[s][i], i == 0, &run.shared[s][i]);
        }
        const Verdict verdict = rig.engine().finish_step(rig.stream());
        ASSERT_TRUE(verdict.finite);
        ASSERT_EQ(verdict.norm, run.norms[s]) << "sums of these squares are exact in any order";
      }
      ASSERT_TRUE(rig.equals(reference));
      const EngineCounters counters = rig.engine().counters();
      const auto buckets = static_cast<std::int64_t>(rig.engine().buckets().size());
      EXPECT_EQ(buckets == 1, elements == layout.elements());
      EXPECT_EQ(counters.steps, static_cast<std::int64_t>(kSteps));
      EXPECT_EQ(counters.clipped_steps, clipped_steps(clipping));
      EXPECT_EQ(counters.committed_buckets, buckets * static_cast<std::int64_t>(kSteps));
      EXPECT_EQ(counters.device_updates, owner == Owner::device ? counters.committed_buckets : 0);
      EXPECT_EQ(counters.skipped_steps, 0);
      EXPECT_EQ(counters.discarded_buckets, 0);
    }
  }
}

std::string equality_name(const testing::TestParamInfo<std::tuple<DType, Owner, Clipping>>& info) {
  const char* names[] = {"never", "sometimes", "always"};
  const auto [compute, owner, clipping] = info.param;
  return std::string(name_of(compute)) + "_" + std::string(name_of(owner)) + "_clips_" +
         names[static_cast<int>(clipping)];
}
INSTANTIATE_TEST_SUITE_P(Engine, EngineEquality,
                         testing::Combine(testing::Values(DType::f32, DType::bf16),
                                          testing::Values(Owner::host, Owner::device),
                                          testing::Values(Clipping::never, Clipping::sometimes, Clipping::always)),
                         equality_name);

// Moments in 8 bits: the plain loop that rounds them, a block at a time from each parameter's beginning.
SO_LABEL(no_tsan, "Engine.MomentsIn8BitsAreTheRoundedOnes");
TEST(Engine, MomentsIn8BitsAreTheRoundedOnes) {
  const Scenario& run = the_run();
  const ParameterLayout& layout = run.layout;
  const double max_norm = std::sqrt(run.norms[0] * run.norms[1]);
  for (const Owner owner : {Owner::host, Owner::device})
    for (const std::int64_t elements : {std::int64_t{2048}, std::int64_t{6400}, layout.elements()}) {
      SCOPED_TRACE(testing::Message() << name_of(owner) << ", buckets of " << elements);
      CountedSettings settings = settings_of(DType::bf16, elements, max_norm, owner);
      settings.formats.moments = DType::u8;
      EngineRig rig(layout, settings, 3);
      ReferenceLoop reference(layout, settings, run.initial);
      rig.load(run.initial);
      for (std::size_t s = 0; s < kSteps; ++s) {
        reference.step(run.sums[s], kLr[s], static_cast<std::int64_t>(s) + 1);
        for (std::size_t i = 0; i < kMicroBatches; ++i) {
          if (i + 1 == kMicroBatches) rig.engine().begin_last_micro_batch(kLr[s], static_cast<std::int64_t>(s) + 1);
          rig.micro_batch(run.micro_batches[s][i], i == 0, &run.shared[s][i]);
        }
        rig.engine().finish_step(rig.stream());
      }
      ASSERT_TRUE(rig.equals(reference));
      // What was read and is written again is the same, for the whole and for parts of blocks.
      const EngineBytes bytes = rig.bytes();
      rig.load(bytes);
      ASSERT_TRUE(rig.bytes() == bytes);
      for (const Range part :
           {Range{0, 100}, Range{300, 301}, Range{layout.elements() / 2, layout.elements() / 2 + 700}})
        rig.engine().write_state(StateArray::second_moment, part, [&](std::int64_t begin, std::span<float> values) {
          std::copy_n(bytes.v.begin() + begin, values.size(), values.begin());
        });
      ASSERT_TRUE(rig.bytes() == bytes);
    }
}

// Gradients kept in bf16: the plain loop over the rounded ones, norm and clipping included.
TEST(Engine, Bf16GradientsAreTheRoundedOnes) {
  const Scenario& run = the_run();
  const ParameterLayout& layout = run.layout;
  const double max_norm = std::sqrt(run.norms[0] * run.norms[1]) / 2;
  for (const Owner owner : {Owner::host, Owner::device}) {
    SCOPED_TRACE(name_of(owner));
    CountedSettings settings = settings_of(DType::bf16, 6400, max_norm, owner);
    settings.formats.gradients = DType::bf16;
    EngineRig rig(layout, settings, 2);
    ReferenceLoop reference(layout, settings, run.initial);
    rig.load(run.initial);
    for (std::size_t s = 0; s < kSteps; ++s) {
      const Flat& exact = run.micro_batches[s][0];
      Flat rounded = exact;
      for (auto& values : rounded)
        for (float& g : values) g = static_cast<float>(bf16(g));
      EXPECT_FALSE(rounded == exact) << "else this shows nothing";
      const auto update = static_cast<std::int64_t>(s) + 1;
      EXPECT_EQ(rig.step(exact, kLr[s], update).clip, reference.step(rounded, kLr[s], update));
    }
    EXPECT_TRUE(rig.equals(reference));
    EXPECT_EQ(rig.engine().counters().clipped_steps, 3);
    Flat bad = run.micro_batches[0][0];
    bad[3][5] = std::numeric_limits<float>::infinity();
    EXPECT_EQ(rig.step(bad, 1e-2, 6).non_finite_parameter, 3);
    EXPECT_TRUE(rig.equals(reference));
  }
}

TEST(Engine, SmallestBucketsOfOneAlignmentUnit) {
  const ParameterLayout layout(
      {{"a", {5, 70}, true, 0, false}, {"b", {3}, false, 1, false}, {"c", {130}, false, 1, false}});
  const CountedSettings settings = settings_of(DType::bf16, ParameterLayout::alignment);
  EngineRig rig(layout, settings, 2);
  ASSERT_EQ(static_cast<std::int64_t>(rig.engine().buckets().size()), layout.elements() / ParameterLayout::alignment);
  const Flat initial = synthetic_gradients(layout, 1);
  ReferenceLoop reference(layout, settings, initial);
  rig.load(initial);
  for (unsigned s = 1; s <= 4; ++s) {
    const Flat gradient = synthetic_gradients(layout, s + 1);
    rig.step(gradient, 1e-2, s);
    reference.step(gradient, 1e-2, s);
    ASSERT_TRUE(rig.equals(reference)) << "step " << s;
  }
}

struct BadGradient {
  const char* name;
  int parameter;
  float value;
};

class EngineSkips : public testing::TestWithParam<std::tuple<DType, Owner, BadGradient>> {};

// A gradient that is not finite, somewhere in the first, a middle or the last bucket: that step leaves every byte as it
// was, and the steps around it are those of a run without it.
TEST_P(EngineSkips, AndChangesNothing) {
  const auto [compute, owner, bad] = GetParam();
  const ParameterLayout& layout = the_run().layout;
  for (const std::size_t bad_step : {std::size_t{0}, std::size_t{1}, std::size_t{3}}) {
    SCOPED_TRACE("bad step " + std::to_string(bad_step));
    const CountedSettings settings = settings_of(compute, 4096, 1.0, owner);
    EngineRig rig(layout, settings, 2);
    ReferenceLoop reference(layout, settings, the_run().initial);
    rig.load(the_run().initial);
    const auto buckets = static_cast<std::int64_t>(rig.engine().buckets().size());
    ASSERT_GT(buckets, 2);
    std::int64_t updates = 0;
    for (std::size_t s = 0; s < 4; ++s) {
      Flat gradient = the_run().micro_batches[s][0];
      if (s == bad_step) {
        auto& values = gradient[static_cast<std::size_t>(bad.parameter)];
        values[values.size() - 1] = bad.value;
        // An earlier parameter is broken too: backward meets the later one first, which is the one to name.
        if (bad.parameter > 0) gradient.front()[5] = std::numeric_limits<float>::quiet_NaN();
        const EngineBytes before = rig.bytes();
        const Verdict verdict = rig.step(gradient, 1e-2, updates + 1);
        EXPECT_FALSE(verdict.finite);
        EXPECT_TRUE(std::isnan(verdict.norm));
        ASSERT_EQ(verdict.non_finite_parameter, bad.parameter);
        ASSERT_TRUE(rig.bytes() == before) << "a skipped step changed something";
        EXPECT_EQ(rig.engine().counters().discarded_buckets, buckets);
        EXPECT_EQ(rig.engine().counters().skipped_steps, 1);
        continue;
      }
      ++updates;
      ASSERT_TRUE(rig.step(gradient, 1e-2, updates).finite);
      reference.step(gradient, 1e-2, updates);
      ASSERT_TRUE(rig.equals(reference)) << "step " << s;
    }
    const EngineCounters counters = rig.engine().counters();
    EXPECT_EQ(counters.steps, 4);
    EXPECT_EQ(counters.skipped_steps, 1);
    EXPECT_EQ(counters.clipped_steps, 3);
    EXPECT_EQ(counters.committed_buckets, 3 * buckets);
  }
}

SO_LABEL(no_tsan, "Engine/EngineSkips.*/bfloat16_host_*");
SO_LABEL(no_tsan, "Engine/EngineSkips.*/float32_device_*");
INSTANTIATE_TEST_SUITE_P(
    Engine, EngineSkips,
    testing::Combine(testing::Values(DType::f32, DType::bf16), testing::Values(Owner::host, Owner::device),
                     testing::Values(BadGradient{"nan_first", 0, std::numeric_limits<float>::quiet_NaN()},
                                     BadGradient{"inf_middle", 6, std::numeric_limits<float>::infinity()},
                                     BadGradient{"minus_inf_large", 8, -std::numeric_limits<float>::infinity()},
                                     BadGradient{"nan_last", 10, std::numeric_limits<float>::quiet_NaN()})),
    [](const auto& i) {
      return std::string(name_of(std::get<0>(i.param))) + "_" + std::string(name_of(std::get<1>(i.param))) + "_" +
             std::get<2>(i.param).name;
    });

TEST(Engine, NonFiniteInAnEarlierMicroBatchSkipsTheStep) {
  const ParameterLayout& layout = the_run().layout;
  EngineRig rig(layout, settings_of(DType::f32, 4096), 1);
  rig.load(the_run().initial);
  Flat bad = the_run().micro_batches[0][0];
  bad[2][17] = std::numeric_limits<float>::infinity();
  const EngineBytes before = rig.bytes();
  rig.micro_batch(bad, true);
  rig.engine().begin_last_micro_batch(1e-2, 1);
  rig.micro_batch(the_run().micro_batches[0][1], false);
  EXPECT_EQ(rig.engine().finish_step(rig.stream()).non_finite_parameter, 2);
  EXPECT_TRUE(rig.bytes() == before);
}

// Squares of these overflow fp32, and their number times them almost fp32 itself; the step is sound.
TEST(Engine, LargestFiniteGradientsAreNotSkipped) {
  const ParameterLayout& layout = the_run().layout;
  const CountedSettings settings = settings_of(DType::bf16, 4096, 1.0);
  EngineRig rig(layout, settings, 2);
  ReferenceLoop reference(layout, settings, the_run().initial);
  rig.load(the_run().initial);
  Flat gradient = the_run().micro_batches[0][0];
  for (auto& values : gradient)
    for (float& g : values) g = g < 0 ? -0x1p127f : 0x1p127f;  // a power of two: the sum of squares stays exact
  const Verdict verdict = rig.step(gradient, 1e-2, 1);
  EXPECT_TRUE(verdict.finite);
  EXPECT_EQ(verdict.clip, reference.step(gradient, 1e-2, 1));
  EXPECT_TRUE(rig.equals(reference));
  EXPECT_EQ(rig.engine().counters().skipped_steps, 0);
  EXPECT_EQ(rig.engine().counters().clipped_steps, 1);
}

TEST(Engine, UploadRoundsToNearestEven) {
  const ParameterLayout layout({{"a", {9}, true, 0, false}, {"b", {300}, true, 1, false}});
  // Exactly between two bf16, just beside, overflow to infinity, subnormals, signed zero.
  const std::vector<float> values = {0x1.01p0f, 0x1.03p0f, 0x1.010002p0f, 0x1.00fffep0f, -0x1.01p0f,
                                     FLT_MAX,   0x1p-140f, -0.0f,         0x1.8p-133f};
  const std::vector<std::uint16_t> expected = {0x3f80, 0x3f82, 0x3f81, 0x3f80, 0xbf80, 0x7f80, 0x0000, 0x8000, 0x0002};
  Flat master = synthetic_gradients(layout, 5, 0x1.234p0f);
  master[0] = values;
  EngineRig rig(layout, settings_of(DType::bf16, 64), 2);
  rig.load(master);
  const EngineBytes all = rig.bytes();
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, all.weights.data() + 2 * i, 2);
    EXPECT_EQ(bits, expected[i]) << values[i];
  }
  EXPECT_EQ(all.master[0], values[0]) << "the master is not rounded";
  const CountedSettings settings = settings_of(DType::bf16, 64);
  EXPECT_TRUE(rig.equals(ReferenceLoop(layout, settings, master)));
}

// State larger than a piece of the pinned staging memory travels in several.
TEST(Engine, DeviceStateTravelsInPieces) {
  const ParameterLayout layout({{"a", {4500, 1000}, true, 0, false}, {"b", {4500, 1000}, true, 1, false}});
  CountedSettings settings = settings_of(DType::bf16, layout.elements());
  settings.counts.device_units = layout.units();
  EngineRig rig(layout, settings, 2);
  ASSERT_EQ(rig.engine().buckets().size(), 1u);
  int pieces = 0;
  std::int64_t next = 0;
  const auto value_at = [](std::int64_t i) { return static_cast<float>(i & 0xffffff); };
  rig.engine().write_state(StateArray::master, {64, layout.elements()}, [&](std::int64_t begin, std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = value_at(begin + static_cast<std::int64_t>(i));
    ++pieces;
  });
  EXPECT_EQ(pieces, 2);
  rig.engine().read_state(StateArray::master, {0, layout.elements()},
                          [&](std::int64_t begin, std::span<const float> values) {
                            ASSERT_EQ(begin, next);
                            next += static_cast<std::int64_t>(values.size());
                            for (std::size_t i = 0; i < values.size(); ++i) {
                              const std::int64_t at = begin + static_cast<std::int64_t>(i);
                              ASSERT_EQ(values[i], at < 64 ? 0 : value_at(at)) << at;
                            }
                          });
  EXPECT_EQ(next, layout.elements());
}

TEST(Engine, RefusesFormatsThatDoNotGoTogether) {
  CountedSettings settings = settings_of(DType::bf16, 4096);
  settings.formats.activations = DType::f32;
  EXPECT_THROW(EngineRig(the_layout(), settings, 1), Bug);
}

TEST(Engine, RefusesAnIncompleteStep) {
  const ParameterLayout& layout = the_run().layout;
  {
    EngineRig rig(layout, settings_of(DType::f32, 4096), 1);
    rig.load(the_run().initial);
    rig.micro_batch(the_run().micro_batches[0][0], true);
    EXPECT_THROW(rig.engine().finish_step(rig.stream()), Bug) << "the last micro-batch was not announced";
  }
  EngineRig rig(layout, settings_of(DType::f32, 4096), 1);
  rig.load(the_run().initial);
  rig.step(the_run().micro_batches[0][0], 1e-2, 1);
  // Now all but one parameter: what lies there is the last step's gradient.
  rig.engine().begin_last_micro_batch(1e-2, 2);
  for (int unit = 0; unit < layout.units(); ++unit) rig.engine().require_gradients(unit, rig.stream());
  for (int p = 0; p < layout.count(); ++p)
    if (layout.parameter(p).name != "2.norm") rig.engine().gradient(p);
  try {
    rig.engine().finish_step(rig.stream());
    ADD_FAILURE() << "updated with an earlier step's gradient";
  } catch (const Bug& bug) {
    EXPECT_NE(std::string(bug.what()).find("2.norm"), std::string::npos) << bug.what();
  }
}

}  // namespace
}  // namespace so::test::engine_run
