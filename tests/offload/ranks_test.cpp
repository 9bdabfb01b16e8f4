// The engine on several ranks, which are threads: each has a device, an engine and gradients of its own. Gradients are
// multiples of 2^-8, so their sums over ranks are exact and the result must equal that of one plain loop bit for bit.
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include "offload/engine_rig.h"
#include "offload/idle_micro_batch.h"
#include "support/jitter.h"
#include "support/on_gpu.h"
#include "support/thread_ranks.h"

namespace so {
namespace {

using test::Flat;

EngineSettings settings_of(Schedule schedule, std::int64_t bucket_elements, double max_grad_norm) {
  EngineSettings settings;
  settings.schedule = schedule;
  settings.bucket_elements = bucket_elements;
  settings.undo_buckets = 3;
  settings.weight_decay = 0.1;
  settings.max_grad_norm = max_grad_norm;
  return settings;
}

Flat sum_of(const std::vector<Flat>& gradients) {
  Flat sum = gradients[0];
  for (std::size_t g = 1; g < gradients.size(); ++g)
    for (std::size_t p = 0; p < sum.size(); ++p)
      for (std::size_t i = 0; i < sum[p].size(); ++i) sum[p][i] += gradients[g][p][i];
  return sum;
}

constexpr int steps = 6;

// A step's gradient of a rank; the fourth is large, so that it is clipped where anything is.
Flat gradient_of(const ParameterLayout& layout, int step, int rank) {
  return test::synthetic_gradients(layout, static_cast<unsigned>(100 * step + rank), step == 3 ? 8.0f : 0.125f);
}

// All of the flat range: every rank's slices put together. Nothing overlaps and nothing is missing.
std::vector<float> whole(OffloadEngine& engine, Communicator& ranks, StateArray array) {
  std::vector<double> values(static_cast<std::size_t>(engine.layout().elements())), times(values.size());
  engine.read_state(array, {0, engine.layout().elements()}, [&](std::int64_t begin, std::span<const float> part) {
    for (std::size_t i = 0; i < part.size(); ++i) {
      values[static_cast<std::size_t>(begin) + i] = part[i];
      times[static_cast<std::size_t>(begin) + i] = 1;
    }
  });
  ranks.all_reduce_sum(values);
  ranks.all_reduce_sum(times);
  EXPECT_EQ(times, std::vector<double>(times.size(), 1.0)) << "each element has one owner";
  return {values.begin(), values.end()};
}

// Trains on `size` ranks and compares with the loop that sees the sum of their gradients.
void expect_equal(int size, const EngineSettings& settings) {
  SCOPED_TRACE(testing::Message() << size << " ranks, buckets of " << settings.bucket_elements << ", "
                                  << (settings.schedule == Schedule::synchronous ? "synchronous" : "overlapped"));
  const ParameterLayout layout = test::engine_layout();
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
    const std::vector<float> master = whole(rig.engine(), ranks, StateArray::master),
                             m = whole(rig.engine(), ranks, StateArray::first_moment),
                             v = whole(rig.engine(), ranks, StateArray::second_moment);
    // Before a rank's engine goes, the others' must have what they need of it.
    const std::vector<std::byte> weights = rig.weights();
    ranks.barrier();
    for (int p = 0; p < layout.count(); ++p) {
      const auto at = static_cast<std::size_t>(p);
      const Range range = layout.range(p);
      const auto part = [&](const std::vector<float>& all) {
        return std::vector<float>(all.begin() + range.begin, all.begin() + range.end);
      };
      EXPECT_EQ(part(master), reference.master[at]) << layout.parameter(p).name;
      EXPECT_EQ(part(m), reference.m[at]) << layout.parameter(p).name;
      EXPECT_EQ(part(v), reference.v[at]) << layout.parameter(p).name;
      const auto begin = static_cast<std::size_t>(range.begin);
      const auto expect_weights = [&]<class T>(const T* found) {
        std::vector<float> rounded;
        for (const float x : reference.master[at]) rounded.push_back(static_cast<float>(T(x)));
        EXPECT_EQ(std::vector<float>(found + begin, found + range.end), rounded)
            << "every rank has all weights: " << layout.parameter(p).name;
      };
      if (settings.formats.weights == DType::bf16)
        expect_weights(reinterpret_cast<const bf16*>(weights.data()));
      else
        expect_weights(reinterpret_cast<const float*>(weights.data()));
    }
  });
}

TEST(EngineOnRanks, EqualsOneLoopBitForBit) {
  SO_CPU_ONLY("collectives of ranks reach its memory alone");
  for (const int size : {1, 2, 3, 4})
    for (const std::int64_t bucket : {64, 4096, 1 << 20})
      for (const Schedule schedule : {Schedule::synchronous, Schedule::overlapped})
        expect_equal(size, settings_of(schedule, bucket == 64 ? 1024 : bucket, 0));
}

TEST(EngineOnRanks, ClippedStepsToo) {
  SO_CPU_ONLY("collectives of ranks reach its memory alone");
  const ParameterLayout layout = test::engine_layout();
  const EngineSettings settings = settings_of(Schedule::overlapped, 4096, 3000);
  for (const int size : {2, 4}) expect_equal(size, settings);
  // Some steps were, and some were not.
  test::ReferenceLoop reference(layout, settings, test::synthetic_gradients(layout, 7));
  const auto clip_of = [&](int step) {
    return reference.step(sum_of({gradient_of(layout, step, 0), gradient_of(layout, step, 1)}), 1e-2, step + 1);
  };
  EXPECT_EQ(clip_of(0), 1.0f);
  EXPECT_LT(clip_of(3), 1.0f);
}

TEST(EngineOnRanks, WithWeightsInBf16) {
  SO_CPU_ONLY("collectives of ranks reach its memory alone");
  for (const CastSide cast : {CastSide::host, CastSide::device}) {
    EngineSettings settings = settings_of(Schedule::overlapped, 4096, 3000);
    settings.formats = model_formats(DType::bf16);
    settings.cast = cast;
    expect_equal(3, settings);
  }
}

TEST(EngineOnRanks, DelaysChangeNothing) {
  SO_CPU_ONLY("collectives of ranks reach its memory alone");
  const test::Jitter jitter(11);
  for (int i = 0; i < 3; ++i) expect_equal(3, settings_of(Schedule::overlapped, 2048, 3000));
}

// A NaN on one rank skips the step on all, and every rank's weights and state stay as they were.
TEST(EngineOnRanks, ANaNOnOneRankSkipsTheStepOnAll) {
  SO_CPU_ONLY("collectives of ranks reach its memory alone");
  const ParameterLayout layout = test::engine_layout();
  const EngineSettings settings = settings_of(Schedule::overlapped, 4096, 0);
  const Flat initial = test::synthetic_gradients(layout, 7);
  test::run_ranks(3, [&](Communicator& ranks) {
    test::EngineRig rig(layout, settings, 1, nullptr, {}, &ranks);
    rig.load(initial);
    rig.step(gradient_of(layout, 0, ranks.rank()), 1e-2, 1);
    rig.stream().synchronize();
    const test::EngineBytes before{whole(rig.engine(), ranks, StateArray::master),
                                   whole(rig.engine(), ranks, StateArray::first_moment),
                                   whole(rig.engine(), ranks, StateArray::second_moment), rig.weights()};
    Flat gradient = gradient_of(layout, 1, ranks.rank());
    if (ranks.rank() == 1) gradient[4][17] = std::numeric_limits<float>::quiet_NaN();
    const Verdict verdict = rig.step(gradient, 1e-2, 2);
    EXPECT_FALSE(verdict.finite);
    EXPECT_EQ(verdict.non_finite_parameter, 4) << "on rank " << ranks.rank();
    rig.stream().synchronize();
    const test::EngineBytes after{whole(rig.engine(), ranks, StateArray::master),
                                  whole(rig.engine(), ranks, StateArray::first_moment),
                                  whole(rig.engine(), ranks, StateArray::second_moment), rig.weights()};
    EXPECT_TRUE(after == before);
    ranks.barrier();
  });
}

// Ranks 1 and 2 have no micro-batch in the second step; rank 1's gradient of the third is of two, its second empty.
TEST(EngineOnRanks, ARankWithoutAMicroBatchAddsNothing) {
  SO_CPU_ONLY("collectives of ranks reach its memory alone");
  const ParameterLayout layout = test::engine_layout();
  const EngineSettings settings = settings_of(Schedule::overlapped, 4096, 0);
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
        run_idle_micro_batch(layout, engine, engine, rig.stream());
      else
        rig.micro_batch(gradients[static_cast<std::size_t>(step)], true);
      engine.finish_step(rig.stream());
    }
    rig.stream().synchronize();
    const std::vector<float> master = whole(engine, ranks, StateArray::master);
    for (int p = 0; p < layout.count(); ++p)
      EXPECT_EQ(std::vector<float>(master.begin() + layout.range(p).begin, master.begin() + layout.range(p).end),
                reference.master[static_cast<std::size_t>(p)])
          << layout.parameter(p).name;
    ranks.barrier();
  });
}

// A rank that fails in its step frees the others, which wait for its gradients.
TEST(EngineOnRanks, AFailureOfOneRankEndsTheStepOfAll) {
  SO_CPU_ONLY("collectives of ranks reach its memory alone");
  const ParameterLayout layout = test::engine_layout();
  const Flat initial = test::synthetic_gradients(layout, 7);
  std::mutex mutex;
  std::vector<std::string> errors;
  std::atomic<int> loaded{0};
  test::run_ranks(3, [&](Communicator& ranks) {
    test::EngineRig rig(layout, settings_of(Schedule::overlapped, 4096, 0), 1, nullptr, {}, &ranks);
    rig.load(initial);
    ++loaded;
    const Flat gradient = gradient_of(layout, 0, ranks.rank());
    if (ranks.rank() == 2) {
      while (loaded < 3) std::this_thread::yield();  // loading is a collective, too
      ranks.abort("a device error");
      return;
    }
    try {
      rig.step(gradient, 1e-2, 1);
      ADD_FAILURE() << "a step without rank 2";
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex);
      errors.emplace_back(error.what());
    }
  });
  EXPECT_EQ(errors, std::vector<std::string>(2, "rank 2 gave up: a device error"));
}

}  // namespace
}  // namespace so
