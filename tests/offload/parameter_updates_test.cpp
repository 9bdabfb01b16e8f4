// Updates by parameter, and steps that are reopened: whoever updates a bucket, and whenever, it is the plain loop's
// update.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "offload/counted_settings.h"
#include "offload/engine_rig.h"
#include "offload/random_policy.h"

namespace so::test {
namespace {

// The optimizer as a loop over elements, in which each parameter has an update of its own or none.
class OwnUpdates {
 public:
  explicit OwnUpdates(const Flat& initial) {
    for (const auto& values : initial) {
      state_.emplace_back();
      for (const float x : values) state_.back().push_back({x, 0, 0});
    }
  }

  void step(const ParameterLayout& layout, const Flat& gradient, const std::vector<ParameterUpdate>& updates,
            float clip) {
    for (std::size_t p = 0; p < state_.size(); ++p) {
      const ParameterUpdate& own = updates[p];
      if (own.update_number == 0) continue;
      const AdamWStep step = make_adamw_step(own.adamw, own.lr, own.weight_decay, own.update_number, clip);
      for (std::size_t i = 0; i < state_[p].size(); ++i)
        state_[p][i] = adamw_twin(step, layout.parameter(static_cast<int>(p)).decay, gradient[p][i], state_[p][i]);
    }
  }

  testing::AssertionResult is_held_by(const ParameterLayout& layout, const EngineBytes& bytes) const {
    for (int p = 0; p < layout.count(); ++p)
      for (std::int64_t i = 0; i < layout.range(p).size(); ++i) {
        const TwinElement& e = state_[static_cast<std::size_t>(p)][static_cast<std::size_t>(i)];
        const auto at = static_cast<std::size_t>(layout.range(p).begin + i);
        float weight = 0;
        std::memcpy(&weight, bytes.weights.data() + at * sizeof(float), sizeof(float));
        if (!so::same_bits(bytes.master[at], e.p) || !so::same_bits(bytes.m[at], e.m) ||
            !so::same_bits(bytes.v[at], e.v) || !so::same_bits(weight, e.p))
          return testing::AssertionFailure() << "element " << i << " of " << layout.parameter(p).name;
      }
    return testing::AssertionSuccess();
  }

 private:
  std::vector<std::vector<TwinElement>> state_;
};

struct UpdateManner {
  int device_units = 0, streamed_units = 0;
  bool send_masters = false, over_link = false;
  std::int64_t bucket_elements = 8192, spare_buckets = 3;
  Schedule schedule = Schedule::overlapped;
};

void expect_own_updates(const UpdateManner& manner, unsigned seed) {
  const ParameterLayout& layout = layered();
  CountedSettings settings;
  settings.formats = model_formats(DType::f32);
  settings.counts.device_units = manner.device_units;
  settings.counts.streamed_units = manner.streamed_units;
  settings.counts.send_masters = manner.send_masters;
  settings.placement.over_link = manner.over_link;
  settings.placement.bucket_elements = manner.bucket_elements;
  settings.placement.spare_buckets = manner.spare_buckets;
  settings.placement.schedule = manner.schedule;
  settings.max_grad_norm = 400;
  EngineRig rig(layout, settings, 2, std::make_unique<RandomPolicy>(seed));
  const Flat initial = synthetic_gradients(layout, seed, 0x1p-4f);
  rig.load(initial);
  OwnUpdates reference(initial);
  std::mt19937 random(seed);
  std::vector<ParameterUpdate> updates(static_cast<std::size_t>(layout.count()));
  std::vector<std::int64_t> made(updates.size(), 0);
  int clipped = 0;
  for (int step = 0; step < 8; ++step) {
    const auto draw_updates = [&] {
      for (std::size_t p = 0; p < updates.size(); ++p)
        updates[p] = {.adamw = random() % 2 == 0 ? AdamWHyper{} : AdamWHyper{0.8, 0.95, 1e-6},
                      .lr = 1e-3 * static_cast<double>(1 + random() % 4),
                      .weight_decay = 0.1 * static_cast<double>(random() % 2),
                      .update_number = random() % 3 == 0 ? 0 : made[p] + 1};
    };
    Flat gradient = synthetic_gradients(layout, 100 * seed + static_cast<unsigned>(step), step % 2 == 0 ? 1 : 0x1p-6f);
    draw_updates();
    rig.engine().begin_last_micro_batch(updates);
    rig.micro_batch(gradient, true);
    const bool reopened = random() % 2 == 0;
    if (reopened) {
      rig.engine().reopen_step();
      draw_updates();
      const Flat more = synthetic_gradients(layout, 1000 * seed + static_cast<unsigned>(step), 0x1p-6f);
      rig.engine().begin_last_micro_batch(updates);
      rig.micro_batch(more, false);
      for (std::size_t p = 0; p < gradient.size(); ++p)
        for (std::size_t i = 0; i < gradient[p].size(); ++i) gradient[p][i] += more[p][i];
    }
    const Verdict verdict = rig.engine().finish_step(rig.stream());
    ASSERT_TRUE(verdict.finite);
    clipped += verdict.clip < 1 ? 1 : 0;
    // A parameter without an update has no part in the norm.
    double squares = 0;
    for (std::size_t p = 0; p < gradient.size(); ++p)
      for (const float g : gradient[p]) squares += updates[p].update_number > 0 ? static_cast<double>(g) * g : 0;
    EXPECT_EQ(verdict.norm, std::sqrt(squares));
    reference.step(layout, gradient, updates, verdict.clip);
    for (std::size_t p = 0; p < made.size(); ++p) made[p] += updates[p].update_number > 0 ? 1 : 0;
    if (step % 3 == 0) {
      ASSERT_TRUE(reference.is_held_by(layout, rig.bytes())) << "after step " << step;
    }
  }
  EXPECT_TRUE(reference.is_held_by(layout, rig.bytes()));
  EXPECT_GT(clipped, 0);
}

TEST(ParameterUpdates, EveryScheduleIsThePlainLoop) {
  unsigned seed = 0;
  for (const UpdateManner& manner :
       {UpdateManner{.schedule = Schedule::synchronous}, UpdateManner{}, UpdateManner{.bucket_elements = 1024},
        UpdateManner{.device_units = 3}, UpdateManner{.device_units = 7}, UpdateManner{.streamed_units = 3},
        UpdateManner{.streamed_units = 3, .send_masters = true}, UpdateManner{.streamed_units = 3, .over_link = true},
        UpdateManner{.device_units = 2, .over_link = true}})
    for (int repeat = 0; repeat < 3; ++repeat) {
      SCOPED_TRACE(testing::Message() << "device units " << manner.device_units << ", streamed "
                                      << manner.streamed_units << ", seed " << seed + 1);
      expect_own_updates(manner, ++seed);
    }
}

}  // namespace
}  // namespace so::test
