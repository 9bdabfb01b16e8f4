// Learning rates by parameter: whoever updates a bucket, and whenever, it is the plain loop's update.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "offload/counted_settings.h"
#include "offload/plain_loop.h"
#include "offload/range_update.h"
#include "offload/ranks_rig.h"
#include "support/label.h"
#include "support/on_gpu.h"
#include "support/sanitized.h"
#include "support/thread_ranks.h"

namespace so::test {
namespace {

// Powers of two, by which a learning rate is multiplied exactly, so that the plain loop can do it in its own way. Of
// joined matrices both, one and none of them, which meet between cache lines; and frozen ones beside.
const ParameterLayout& multiplied() {
  static const ParameterLayout layout = [] {
    const std::map<std::string, double> multipliers = {{"embed", 0.125}, {"1.q", 4},   {"2.k", 0.5},
                                                       {"3.q", 2},       {"3.k", 2},   {"3.bias", 8},
                                                       {"5.norm", 0.25}, {"head", 0.5}};
    std::vector<Parameter> parameters(layered().parameters().begin(), layered().parameters().end());
    for (Parameter& p : parameters) {
      if (const auto own = multipliers.find(p.name); own != multipliers.end()) p.lr_multiplier = own->second;
      p.trained = p.name.substr(0, 1) != "4";
    }
    return ParameterLayout(std::move(parameters));
  }();
  return layout;
}

SO_LABEL(no_tsan, "LrMultiplier.EveryScheduleIsThePlainLoop");
TEST(LrMultiplier, EveryScheduleIsThePlainLoop) {
  unsigned seed = 50;
  for (const DType compute : sanitized ? std::vector{DType::bf16} : std::vector{DType::f32, DType::bf16})
    for (const PlainManner& manner :
         {PlainManner{.bucket_elements = 64000, .schedule = Schedule::synchronous}, PlainManner{},
          PlainManner{.bucket_elements = 1024, .device_units = 3}, PlainManner{.device_units = 7},
          PlainManner{.device_units = 3, .transient_weights = true, .transient_gradients = true},
          PlainManner{.streamed_units = 5, .resume_at = 5}, PlainManner{.streamed_units = 3, .over_link = true},
          PlainManner{.device_units = 4, .over_link = true, .resume_at = 7},
          PlainManner{.device_units = 4, .resume_at = 5, .moments = DType::u8}}) {
      SCOPED_TRACE(testing::Message() << name_of(compute) << ", device units " << manner.device_units << ", streamed "
                                      << manner.streamed_units << ", buckets of " << manner.bucket_elements);
      expect_plain_loop(multiplied(), compute, manner, ++seed);
    }
}

// Ranks update slices, which begin and end anywhere in a parameter.
TEST(LrMultiplier, Ranks) {
  if (on_gpu()) GTEST_SKIP() << "ranks are those of the CPU device";
  for (const int size : {2, 3})
    for (const int device_units : {0, 4}) {
      SCOPED_TRACE(testing::Message() << size << " ranks, device units " << device_units);
      const CountedSettings settings = gathered_settings(2, device_units);
      ReferenceLoop reference(multiplied(), settings, plain_initial(DType::f32));
      for (int step = 0; step < 4; ++step) {
        std::vector<Flat> gradients;
        for (int rank = 0; rank < size; ++rank)
          gradients.push_back(synthetic_gradients(multiplied(), static_cast<unsigned>(100 * step + rank)));
        reference.step(sum_of(gradients), 1e-2, step + 1);
      }
      run_ranks(size, [&](Communicator& ranks) {
        EngineRig rig(multiplied(), settings, 1, nullptr, {}, &ranks);
        rig.load(plain_initial(DType::f32));
        for (int step = 0; step < 4; ++step) {
          const auto seed = static_cast<unsigned>(100 * step + ranks.rank());
          EXPECT_TRUE(rig.step(synthetic_gradients(multiplied(), seed), 1e-2, step + 1).finite);
          rig.stream().synchronize();
        }
        const std::vector<std::byte> weights = rig.weights();
        ranks.barrier();
        expect_weights(multiplied(), weights, reference.master, DType::f32);
      });
    }
}

// The device is given all elements of one learning rate at once, wherever they lie in the range.
TEST(LrMultiplier, OneUpdateForEachLearningRate) {
  struct Recorder final : DeviceAdamW {
    void update(Stream&, const AdamWStep& step, std::span<const AdamWRun> runs, Tensor, AdamWState, Tensor) override {
      for (const AdamWRun& run : runs) seen[step.step_size].emplace_back(run.begin, run.end);
      ++updates;
    }
    std::map<float, std::vector<std::pair<std::int64_t, std::int64_t>>> seen;
    int updates = 0;
  };
  std::vector<Parameter> parameters = {{"q", {2, 64}, true, 0, false},
                                       {"k", {1, 64}, true, 0, true},
                                       {"v", {1, 64}, true, 0, true},
                                       {"norm", {5}, false, 0, false},
                                       {"o", {1, 64}, true, 0, false}};
  const auto update = [&](Range range) {
    const ParameterLayout layout(parameters);
    DeviceRig rig;
    Recorder recorder;
    update_range(recorder, rig.stream(), AdamWSteps(layout, make_adamw_step({}, 1, 0, 1)), layout, range, Tensor(),
                 AdamWState(), Tensor());
    return recorder;
  };
  const float step_size = make_adamw_step({}, 1, 0, 1).step_size;
  using Parts = std::vector<std::pair<std::int64_t, std::int64_t>>;
  Recorder one = update({0, 384});
  EXPECT_EQ(one.updates, 1);
  EXPECT_EQ(one.seen[step_size], (Parts{{0, 128}, {128, 192}, {192, 256}, {256, 261}, {320, 384}}))
      << "runs go on in the next parameter where a block of moments ends with this one";
  parameters[1].lr_multiplier = parameters[4].lr_multiplier = 2;
  Recorder two = update({64, 384});
  EXPECT_EQ(two.updates, 2);
  EXPECT_EQ(two.seen[step_size], (Parts{{0, 64}, {128, 192}, {192, 197}}));
  EXPECT_EQ(two.seen[2 * step_size], (Parts{{64, 128}, {256, 320}}));
  EXPECT_EQ(update({261, 320}).updates, 0) << "padding";
  EXPECT_EQ(update({64, 64}).updates, 0);
}

}  // namespace
}  // namespace so::test
