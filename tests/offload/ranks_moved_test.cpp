// Gradients of several ranks that move to host memory: each rank's slices of the sums take turns in a few places of its
// device. The bytes are those of slices that stay there.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "offload/counted_settings.h"
#include "offload/engine_rig.h"
#include "offload/random_policy.h"
#include "offload/ranks_rig.h"
#include "offload/schedule/placement.h"
#include "support/jitter.h"
#include "support/label.h"
#include "support/on_gpu.h"
#include "support/sanitized.h"
#include "support/thread_ranks.h"

namespace so::test {
namespace {

// The values have many sizes, so a sum is rounded, and to other bits in another order.
Flat uneven(int step, int micro_batch, int rank) {
  std::mt19937 random(static_cast<unsigned>(1000 * step + 10 * micro_batch + rank + 1));
  Flat flat;
  for (const Parameter& p : layered().parameters()) {
    auto& values = flat.emplace_back(static_cast<std::size_t>(p.size()));
    for (float& x : values)
      x = std::ldexp(static_cast<float>(random()) - 0x1p31f, -34 - static_cast<int>(random() % 8));
  }
  return flat;
}

struct RunOfSums {
  CountedSettings settings;
  int ranks = 2, micro_batches = 1, steps = 3;
  int bad_rank = -1, bad_micro_batch = 0;  // has a NaN in the second step
};

struct Held {
  EngineBytes bytes;
  std::vector<double> norms;
  std::int64_t sums_brought = 0;  // of the first rank
};

Held hold(const RunOfSums& run) {
  Held held;
  std::mutex mutex;
  run_ranks(run.ranks, [&](Communicator& ranks) {
    EngineRig rig(layered(), run.settings, 1, std::make_unique<RandomPolicy>(static_cast<unsigned>(ranks.rank())), {},
                  &ranks);
    rig.load(synthetic_gradients(layered(), 1, 0.125f));
    std::vector<double> norms;
    std::int64_t updates = 0;
    for (int step = 0; step < run.steps; ++step) {
      for (int m = 0; m < run.micro_batches; ++m) {
        if (m + 1 == run.micro_batches) rig.engine().begin_last_micro_batch(1e-2, updates + 1);
        Flat gradient = uneven(step, m, ranks.rank());
        if (step == 1 && ranks.rank() == run.bad_rank && m == run.bad_micro_batch)
          gradient[7][3] = std::numeric_limits<float>::quiet_NaN();
        rig.micro_batch(gradient, m == 0);
      }
      const Verdict verdict = rig.engine().finish_step(rig.stream());
      EXPECT_EQ(verdict.finite, step != 1 || run.bad_rank < 0);
      if (verdict.finite) norms.push_back(verdict.norm);
      updates += verdict.finite ? 1 : 0;
    }
    rig.stream().synchronize();
    const EngineBytes bytes = bytes_of(rig, ranks);
    ranks.barrier();
    const std::lock_guard lock(mutex);
    if (ranks.rank() > 0) return;
    held = {bytes, norms, rig.engine().counters().sums_brought};
  });
  return held;
}

RunOfSums sums_of(int gathered, int device_units, bool moved) {
  RunOfSums run{.settings = gathered_settings(gathered, device_units)};
  run.settings.counts.move_gradients = moved;
  run.settings.max_grad_norm = 1;
  return run;
}

TEST(MovedOnRanks, SumsHaveTheBitsOfThoseThatStay) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other's streams");
  const Jitter jitter(31);
  for (const int size : sanitized ? std::vector{3} : std::vector{2, 3})
    for (const int micro_batches : sanitized ? std::vector{2} : std::vector{1, 3})
      for (const auto& [device_units, over_link] : {std::pair{0, false}, std::pair{0, true}, std::pair{2, true}}) {
        SCOPED_TRACE(testing::Message() << size << " ranks, " << micro_batches << " micro-batches, " << device_units
                                        << " units of the device, " << over_link);
        RunOfSums run = sums_of(5, device_units, true);
        run.ranks = size;
        run.micro_batches = micro_batches;
        run.settings.placement.over_link = over_link;
        const Held moved = hold(run);
        run.settings.counts.move_gradients = false;
        run.settings.placement.over_link = false;
        const Held stays = hold(run);
        EXPECT_TRUE(moved.bytes == stays.bytes);
        EXPECT_EQ(moved.norms, stays.norms);
        // Five layers in four places: the two that share one bring their sums in turn, and the others' stay.
        const bool shared = device_units == 0;
        EXPECT_EQ(moved.sums_brought, shared ? run.steps * 2 * (micro_batches - 1) : 0);
        EXPECT_EQ(stays.sums_brought, 0);
      }
}

// Weights that are whole on each rank need not be gathered for that, and gradients are reduced all the same.
TEST(MovedOnRanks, WholeWeightsToo) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other's streams");
  for (const DType dtype : sanitized ? std::vector{DType::bf16} : std::vector{DType::f32, DType::bf16})
    for (const int gathered : sanitized ? std::vector{2} : std::vector{0, 2}) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << ", " << gathered << " gathered");
      RunOfSums run = sums_of(gathered, 1, true);
      run.settings.formats = model_formats(dtype);
      run.settings.formats.gradients = dtype;
      // Sums of several in bf16 are rounded where gradients stay whole, and added in fp32 where they are in slices.
      run.micro_batches = 1;
      const Held moved = hold(run);
      run.settings.counts.move_gradients = false;
      EXPECT_TRUE(moved.bytes == hold(run).bytes);
      run.settings.counts.gathered_units = 5;
      EXPECT_TRUE(moved.bytes == hold(run).bytes);
      // All that is reduced micro-batch by micro-batch has the same sums, whoever keeps them.
      run.micro_batches = 3;
      run.settings.counts.device_units = 0;
      const Held all = hold(run);
      run.settings.counts.gathered_units = gathered;
      run.settings.counts.move_gradients = true;
      EXPECT_TRUE(hold(run).bytes == all.bytes);
    }
}

// What ranks have added up in fp32 is rounded once for each micro-batch, as one rank finds that is given these sums.
SO_LABEL(no_tsan, "MovedOnRanks.SumsInBf16AreRoundedOncePerMicroBatch");
TEST(MovedOnRanks, SumsInBf16AreRoundedOncePerMicroBatch) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other's streams");
  const auto rounded = [](float x) { return static_cast<float>(bf16(x)); };
  for (const int micro_batches : {1, 3}) {
    RunOfSums run = sums_of(5, 1, true);
    run.ranks = 3;
    run.micro_batches = micro_batches;
    run.settings.max_grad_norm = 0;
    run.settings.formats = model_formats(DType::bf16);
    run.settings.formats.gradients = run.settings.formats.rank_sums = DType::bf16;
    const Held moved = hold(run);
    run.settings.counts.move_gradients = false;
    EXPECT_TRUE(moved.bytes == hold(run).bytes);

    run.settings.counts.gathered_units = 0;
    EngineRig alone(layered(), run.settings, 1);
    alone.load(synthetic_gradients(layered(), 1, 0.125f));
    for (int step = 0; step < run.steps; ++step) {
      Flat sum;
      for (int m = 0; m < micro_batches; ++m) {
        std::vector<Flat> each;
        for (int rank = 0; rank < run.ranks; ++rank) {
          each.push_back(uneven(step, m, rank));
          for (auto& values : each.back()) std::transform(values.begin(), values.end(), values.begin(), rounded);
        }
        const Flat of_ranks = sum_of(each);
        if (m == 0) sum = Flat(of_ranks.size());
        for (std::size_t p = 0; p < of_ranks.size(); ++p) {
          sum[p].resize(of_ranks[p].size());
          for (std::size_t i = 0; i < sum[p].size(); ++i) sum[p][i] = rounded(sum[p][i] + of_ranks[p][i]);
        }
      }
      alone.step(sum, 1e-2, step + 1);
    }
    // Units that are whole, the first and the last, add up a rank's micro-batches before the ranks'.
    const EngineBytes bytes = alone.bytes();
    for (int p = 0; p < layered().count(); ++p) {
      const int unit = layered().parameter(p).unit;
      if (micro_batches > 1 && layered().stays(unit)) continue;
      EXPECT_EQ(part_of(layered(), p, moved.bytes.master), part_of(layered(), p, bytes.master)) << unit;
      EXPECT_EQ(part_of(layered(), p, moved.bytes.v), part_of(layered(), p, bytes.v)) << unit;
    }
  }
}

TEST(MovedOnRanks, ANaNOfOneMicroBatchSkipsTheStepOnAll) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other's streams");
  for (const int bad : sanitized ? std::vector{1} : std::vector{0, 1, 2}) {
    RunOfSums run = sums_of(5, 0, true);
    run.micro_batches = 3;
    run.bad_rank = 1;
    run.bad_micro_batch = bad;
    const Held moved = hold(run);
    run.settings.counts.move_gradients = false;
    EXPECT_TRUE(moved.bytes == hold(run).bytes);
  }
}

TEST(MovedOnRanks, AFailureOfOneRankEndsTheStepsOfAll) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other's streams");
  expect_a_failure_ends_all([](Communicator& ranks) {
    const RunOfSums run = sums_of(5, 0, true);
    auto rig = std::make_shared<EngineRig>(layered(), run.settings, 1, nullptr, EngineRig::MakeDevice{}, &ranks);
    rig->load(synthetic_gradients(layered(), 1));
    rig->step(uneven(0, 0, ranks.rank()), 1e-2, 1);
    rig->stream().synchronize();
    return [rig, gradient = uneven(1, 0, ranks.rank())] { rig->step(gradient, 1e-2, 2); };
  });
}

// A rank's device has the slices of what it owns, and places for those that move; asked as a plan asks.
TEST(MovedOnRanks, SlicesTakeTurnsInFourPlaces) {
  ThreadPool pool("test", {0}, false);
  for (const int device_units : {0, 1, 2}) {
    const auto bytes_of_one = [&](bool moved, MemoryKind kind, const char* name) {
      const auto device = make_dry_device(DeviceKind::cuda);
      const auto ranks = make_dry_communicator(2);
      CountedSettings settings = sums_of(5, device_units, moved).settings;
      const OffloadEngine engine(*device, pool, *ranks, layered(), settings.of(layered(), 2));
      const auto peaks = device->ledger().peaks(kind);
      const auto found = peaks.find(name);
      return found == peaks.end() ? std::int64_t{0} : static_cast<std::int64_t>(found->second);
    };
    const Placement placement = sums_of(5, device_units, true).settings.of(layered(), 2).placement;
    std::vector<std::int64_t> largest(slice_slots);
    std::int64_t own = 0, all = 0, host = 0;
    for (int unit = 0; unit < layered().units(); ++unit) {
      const std::int64_t bytes = 2 * layered().unit_range(unit).size();  // half of them in fp32
      if (unit >= device_units) host += bytes;
      if (!placement.unit(unit).sliced) continue;
      all += bytes;
      const int slot = turns_of(placement).moving[static_cast<std::size_t>(unit)];
      if (slot < 0)
        own += bytes;
      else
        largest[static_cast<std::size_t>(slot)] = std::max(largest[static_cast<std::size_t>(slot)], bytes);
    }
    for (const std::int64_t place : largest) own += place;
    const auto expect_near = [](std::int64_t found, std::int64_t elements) {
      EXPECT_GE(found, elements);
      EXPECT_LT(found, elements + 4 * 7 * 3 * 64);  // a slice is longer than its share by less than an alignment
    };
    expect_near(bytes_of_one(true, MemoryKind::device, "gradient slices"), own);
    expect_near(bytes_of_one(false, MemoryKind::device, "gradient slices"), all);
    expect_near(bytes_of_one(true, MemoryKind::pinned, "gradients"), host);
    EXPECT_EQ(bytes_of_one(false, MemoryKind::pinned, "gradients"), 0);
  }
}

}  // namespace
}  // namespace so::test
