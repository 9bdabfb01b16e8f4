// Sums of gradients in host memory: a unit's sum comes back to the device for each further micro-batch. The bits are
// those of sums that stay there, and both are those of a loop.
#include "offload/moved_gradients.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "offload/copy_hook.h"
#include "offload/engine_rig.h"
#include "offload/random_policy.h"
#include "ranks/communicator.h"

namespace so::test {
namespace {

// Of many sizes, so that a sum is rounded, and to other bits in another order.
Flat uneven_gradients(const ParameterLayout& layout, unsigned seed) {
  std::mt19937 random(seed);
  Flat flat;
  for (const Parameter& p : layout.parameters()) {
    auto& values = flat.emplace_back(static_cast<std::size_t>(p.size()));
    for (float& x : values)
      x = std::ldexp(static_cast<float>(random()) - 0x1p31f, -34 - static_cast<int>(random() % 8));
  }
  return flat;
}

CountedSettings sum_settings(bool moved, DType gradients = DType::f32, int device_units = 0) {
  CountedSettings settings;
  settings.formats = model_formats(DType::bf16);
  settings.formats.gradients = gradients;
  settings.placement.bucket_elements = 1024;
  settings.counts.device_units = device_units;
  settings.placement.spare_buckets = 3;
  settings.counts.move_gradients = moved;
  settings.weight_decay = 0.1;
  settings.max_grad_norm = 1;
  return settings;
}

std::unique_ptr<EngineRig> sum_rig(const CountedSettings& settings, unsigned seed = 1) {
  auto rig = std::make_unique<EngineRig>(layered(), settings, 2, std::make_unique<RandomPolicy>(seed));
  rig->load(synthetic_gradients(layered(), 1, 0.125f));
  return rig;
}

// A step of these micro-batches.
Verdict sum_step(EngineRig& rig, const std::vector<Flat>& gradients, std::int64_t update) {
  for (std::size_t m = 0; m < gradients.size(); ++m) {
    if (m + 1 == gradients.size()) rig.engine().begin_last_micro_batch(1e-2, update);
    rig.micro_batch(gradients[m], m == 0);
  }
  return rig.engine().finish_step(rig.stream());
}

TEST(MovedGradients, SumsHaveTheBitsOfALoop) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int micro_batches : {2, 3, 8}) {
      SCOPED_TRACE(std::string(name_of(dtype)) + ", micro-batches " + std::to_string(micro_batches));
      const CountedSettings settings = sum_settings(true, dtype);
      const auto rig = sum_rig(settings), stays = sum_rig(sum_settings(false, dtype), 2);
      ReferenceLoop reference(layered(), settings, synthetic_gradients(layered(), 1, 0.125f));
      const auto rounded = [&](float x) { return dtype == DType::bf16 ? static_cast<float>(bf16(x)) : x; };
      bool order_counts = false;
      for (int step = 0; step < 4; ++step) {
        std::vector<Flat> gradients;
        for (int m = 0; m < micro_batches; ++m)
          gradients.push_back(uneven_gradients(layered(), static_cast<unsigned>(100 * step + m)));
        Flat sum = gradients.front(), reversed = gradients.back();
        for (std::size_t p = 0; p < sum.size(); ++p)
          for (std::size_t i = 0; i < sum[p].size(); ++i) {
            sum[p][i] = rounded(sum[p][i]);
            reversed[p][i] = rounded(reversed[p][i]);
            for (std::size_t m = 1; m < gradients.size(); ++m) {
              sum[p][i] = rounded(sum[p][i] + gradients[m][p][i]);
              reversed[p][i] = rounded(reversed[p][i] + gradients[gradients.size() - 1 - m][p][i]);
            }
            order_counts = order_counts || reversed[p][i] != sum[p][i];
          }
        const Verdict verdict = sum_step(*rig, gradients, step + 1), same = sum_step(*stays, gradients, step + 1);
        EXPECT_EQ(verdict.norm, same.norm);
        EXPECT_LT(verdict.clip, 1);
        // The loop adds squares in another order, so it is told the norm.
        reference.step_clipped(sum, 1e-2, step + 1, verdict.clip);
      }
      EXPECT_EQ(order_counts, micro_batches > 2 || dtype == DType::bf16);
      EXPECT_TRUE(rig->equals(reference));
      EXPECT_TRUE(rig->bytes() == stays->bytes());
      EXPECT_EQ(rig->engine().counters().sums_brought, 4 * 5 * (micro_batches - 1));
      EXPECT_EQ(stays->engine().counters().sums_brought, 0);
    }
}

TEST(MovedGradients, WhatIsNotFiniteInAnyMicroBatchSkipsTheStepAlone) {
  for (int bad = 0; bad < 3; ++bad) {
    const auto rig = sum_rig(sum_settings(true)), stays = sum_rig(sum_settings(false), 2);
    for (int step = 0; step < 3; ++step) {
      std::vector<Flat> gradients;
      for (int m = 0; m < 3; ++m)
        gradients.push_back(uneven_gradients(layered(), static_cast<unsigned>(10 * step + m)));
      const auto m = static_cast<std::size_t>(bad);
      // A layer's, which moves.
      if (step == 1) gradients[m][6][5] = std::numeric_limits<float>::quiet_NaN();
      const Verdict moved = sum_step(*rig, gradients, step + 1), same = sum_step(*stays, gradients, step + 1);
      EXPECT_EQ(moved.finite, step != 1);
      EXPECT_EQ(same.finite, step != 1);
    }
    EXPECT_TRUE(rig->bytes() == stays->bytes());
  }
}

// The sum that the next step's first micro-batch would have found in its slot is forgotten too.
TEST(MovedGradients, SumsThatAreDroppedLeaveNothing) {
  const auto rig = sum_rig(sum_settings(true)), stays = sum_rig(sum_settings(false), 2);
  for (int step = 0; step < 6; ++step) {
    std::vector<Flat> gradients;
    for (int m = 0; m < 2; ++m) gradients.push_back(uneven_gradients(layered(), static_cast<unsigned>(10 * step + m)));
    for (int dropped = 0; dropped < step % 3; ++dropped)
      rig->micro_batch(uneven_gradients(layered(), static_cast<unsigned>(1000 + dropped)), dropped == 0);
    rig->engine().drop_gradients();
    const Verdict moved = sum_step(*rig, gradients, step + 1), same = sum_step(*stays, gradients, step + 1);
    EXPECT_EQ(moved.norm, same.norm);
  }
  EXPECT_TRUE(rig->bytes() == stays->bytes());
}

// Backward passes that go through the units as they like find their sums too, only later.
TEST(MovedGradients, AnyOrderOfUnitsHasTheSameBits) {
  std::mt19937 random(5);
  CountedSettings settings = sum_settings(true);
  settings.caller.any_order = true;
  const auto rig = sum_rig(settings);
  settings.counts.move_gradients = false;
  const auto stays = sum_rig(settings, 2);
  std::vector<int> order(static_cast<std::size_t>(layered().units()));
  std::iota(order.begin(), order.end(), 0);
  for (int step = 0; step < 12; ++step)
    for (int m = 0; m < 3; ++m) {
      const Flat gradient = uneven_gradients(layered(), static_cast<unsigned>(10 * step + m));
      std::shuffle(order.begin(), order.end(), random);
      for (EngineRig* one : {rig.get(), stays.get()}) {
        if (m == 2) one->engine().begin_last_micro_batch(1e-2, step + 1);
        one->micro_batch(gradient, m == 0, nullptr, {}, order);
        if (m == 2) {
          EXPECT_TRUE(one->engine().finish_step(one->stream()).finite);
        }
      }
    }
  EXPECT_TRUE(rig->bytes() == stays->bytes());
  EXPECT_GT(rig->engine().counters().sums_brought, 0);
}

// A frozen layer between two whose gradients would share a slot with its own.
TEST(MovedGradients, FrozenLayersTakeNoTurn) {
  std::vector<Parameter> parameters(layered().parameters().begin(), layered().parameters().end());
  for (Parameter& p : parameters) p.trained = p.unit != 3;
  const ParameterLayout layout(std::move(parameters));
  CountedSettings settings = sum_settings(true);
  const auto make = [&](unsigned seed) {
    auto rig = std::make_unique<EngineRig>(layout, settings, 2, std::make_unique<RandomPolicy>(seed));
    rig->load(synthetic_gradients(layout, 1, 0.125f));
    return rig;
  };
  const auto moved = make(1);
  settings.counts.move_gradients = false;
  const auto stays = make(2);
  for (int step = 0; step < 4; ++step) {
    std::vector<Flat> gradients;
    for (int m = 0; m < 3; ++m) gradients.push_back(uneven_gradients(layout, static_cast<unsigned>(10 * step + m)));
    EXPECT_EQ(sum_step(*moved, gradients, step + 1).norm, sum_step(*stays, gradients, step + 1).norm);
  }
  EXPECT_TRUE(moved->bytes() == stays->bytes());
  EXPECT_EQ(moved->engine().counters().sums_brought, 4 * 2 * 4) << "of four layers, for two more micro-batches";
}

// Two slots on the device, and a place for every gradient in the host's memory.
TEST(MovedGradients, TakeTwoSlotsOfDeviceMemory) {
  const auto bytes_of = [](bool moved, MemoryKind kind) {
    const auto device = make_dry_device(DeviceKind::cpu);
    ThreadPool pool("test", {0}, false);
    const auto ranks = make_dry_communicator(1);
    const OffloadEngine engine(*device, pool, *ranks, layered(), sum_settings(moved, DType::f32, 1).of(layered()));
    const auto peaks = device->ledger().peaks(kind);
    const auto found = peaks.find("gradients");
    return found == peaks.end() ? std::size_t{0} : found->second;
  };
  const auto elements = [](int unit) { return static_cast<std::size_t>(layered().unit_range(unit).size()); };
  std::size_t all = 0, host = 0;
  for (int unit = 0; unit < layered().units(); ++unit) {
    all += 4 * elements(unit);
    if (unit > 0) host += 4 * elements(unit);
  }
  EXPECT_EQ(bytes_of(false, MemoryKind::device), all);
  EXPECT_EQ(bytes_of(false, MemoryKind::pinned), 0u);
  EXPECT_EQ(bytes_of(true, MemoryKind::pinned), host);
  // The ends stay, and the largest of the others are the last two.
  EXPECT_EQ(bytes_of(true, MemoryKind::device), 4 * (elements(0) + elements(4) + elements(5) + elements(6)));
}

TEST(MovedGradients, ACopyThatFailsFailsTheStep) {
  if (on_gpu()) GTEST_SKIP() << "the faulty streams are those of the CPU device";
  for (const char* const stream : {"to host", "gradient sums"})
    for (const int good : {0, 3, 17}) {
      SCOPED_TRACE(std::string(stream) + " after " + std::to_string(good));
      int copies = 0;
      EngineRig rig(layered(), sum_settings(true), 2, std::make_unique<RandomPolicy>(1), [&](Device& device) {
        return std::make_unique<HookedDevice>(device, stream, [&](Stream& failing) {
          if (copies++ >= good) failing.host("fault", [] { throw Error("a copy failed"); });
          return true;
        });
      });
      rig.load(synthetic_gradients(layered(), 1, 0.125f));
      const Flat gradient = uneven_gradients(layered(), 3);
      EXPECT_THROW(sum_step(rig, {gradient, gradient, gradient}, 1), Error);
      EXPECT_THROW(sum_step(rig, {gradient, gradient, gradient}, 2), Error);
    }
}

// Leaves each other bucket until after the verdict.
class HalfLeft final : public UpdatePolicy {
 public:
  UpdateChoice choose(const UpdateFacts& facts) override {
    const std::size_t n = facts.elements.size();
    UpdateChoice choice{std::vector(n, Ahead::leave), std::vector(n, After::in_place), std::vector(n, After::in_place)};
    for (std::size_t i = 0; i < n; i += 2) choice.ahead[i] = Ahead::speculate;
    return choice;
  }
};

// The first gradient that is left waits on its way to the host until all others of its unit have been updated, which
// must therefore be there.
TEST(MovedGradients, WhatIsLeftComesBehindTheRest) {
  if (on_gpu()) GTEST_SKIP() << "the stream that waits is one of the CPU device";
  CountedSettings settings = sum_settings(true);
  settings.placement.spare_buckets = 1000;
  int ahead = 0, left = 0;  // of the last unit
  for (const Bucket& bucket :
       make_buckets(layered(), settings.placement.bucket_elements, owned_rows(layered(), 0), true))
    if (layered().unit_of(bucket.range().begin) == layered().units() - 1) ++(bucket.index() % 2 == 0 ? ahead : left);
  ASSERT_GT(ahead, 1);
  ASSERT_GT(left, 1);
  std::atomic<int> updated = 0;
  int copies = 0;
  bool came = false;
  std::unique_ptr<Device> counting;
  EngineRig rig(layered(), settings, 2, std::make_unique<HalfLeft>(), [&](Device& device) {
    counting = std::make_unique<HookedDevice>(device, "to device", [&](Stream&) { return ++updated > 0; });
    return std::make_unique<HookedDevice>(*counting, "to host", [&](Stream& stream) {
      if (copies++ != ahead) return true;
      stream.host("wait", [&] {
        for (int tries = 0; tries < 5000 && !came; ++tries) {
          came = updated >= ahead;
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      });
      return true;
    });
  });
  rig.load(synthetic_gradients(layered(), 1, 0.125f));
  rig.stream().synchronize();
  copies = updated = 0;
  sum_step(rig, {uneven_gradients(layered(), 3)}, 1);
  EXPECT_TRUE(came);
}

// How long the device waited for its sums is told apart, and is part of no time that the policy goes by.
TEST(MovedGradients, WaitsForThemAreCounted) {
  if (on_gpu()) GTEST_SKIP() << "the slow stream is one of the CPU device";
  constexpr auto each = std::chrono::milliseconds(1);
  CountedSettings settings = sum_settings(true);
  settings.placement.bucket_elements = 1 << 20;
  EngineRig rig(layered(), settings, 2, nullptr, [&](Device& device) {
    return std::make_unique<HookedDevice>(device, "gradient sums", [&](Stream& slow) {
      slow.host("slow", [&] { std::this_thread::sleep_for(each); });
      return true;
    });
  });
  rig.load(synthetic_gradients(layered(), 1, 0.125f));
  const Flat gradient = uneven_gradients(layered(), 3);
  for (int step = 0; step < 3; ++step) sum_step(rig, {gradient, gradient, gradient, gradient}, step + 1);
  const EngineCounters counters = rig.engine().counters();
  EXPECT_EQ(counters.sums_brought, 3 * 3 * 5);
  // Two of five may come while others are worked with.
  const double waited = counters.device_waits[static_cast<std::size_t>(WaitReason::moving)];
  EXPECT_GT(waited, 1e-3 * 3 * 3);
  EXPECT_GE(rig.engine().measured_times().backward_seconds, 1e-3);
}

}  // namespace
}  // namespace so::test
