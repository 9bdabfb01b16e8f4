#include "commands/bench/random_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/thread_pool.h"
#include "data/example.h"
#include "model/parameters.h"
#include "model/random_weights.h"
#include "offload/counted_settings.h"
#include "ranks/communicator.h"

namespace so {
namespace {

DecoderSpec small() {
  DecoderSpec s;
  s.architecture = "Qwen3ForCausalLM";
  s.vocab = 300, s.hidden = 64, s.layers = 2, s.heads = 4, s.kv_heads = 2, s.head_dim = 16, s.intermediate = 96;
  s.qk_norm = true;
  s.rope.rotary_dim = 16;
  return s;
}

TEST(RandomModel, TokensOfDocumentsPredictTheNext) {
  const DecoderSpec spec = small();
  const MicroBatch batch = random_batch(spec, 3, 50, 7);
  ASSERT_EQ(batch.ids.size(), 150u);
  EXPECT_EQ(batch.cu_seqlens, (std::vector<std::int32_t>{0, 50, 100, 150}));
  EXPECT_EQ(batch.trained_tokens, 147);
  std::set<std::int32_t> seen;
  for (std::size_t i = 0; i < 150; ++i) {
    EXPECT_EQ(batch.positions[i], static_cast<std::int32_t>(i % 50));
    EXPECT_EQ(batch.targets[i], i % 50 == 49 ? kIgnored : batch.ids[i + 1]);
    EXPECT_TRUE(batch.ids[i] >= 0 && batch.ids[i] < spec.vocab);
    seen.insert(batch.ids[i]);
  }
  // 150 draws from 300: 118 different ones are expected, with a deviation of about 5.
  EXPECT_GT(seen.size(), 90u);
  EXPECT_NE(random_batch(spec, 3, 50, 8).ids, batch.ids);
}

class RandomWeights : public ::testing::Test {
 protected:
  // Means of so many draws: within 5 standard errors, and no two neighbours alike.
  void expect_random(std::span<const float> values, double deviation) {
    double sum = 0, squares = 0;
    for (const float x : values) sum += x, squares += static_cast<double>(x) * x;
    const auto n = static_cast<double>(values.size());
    EXPECT_NEAR(sum / n, 0, 5 * deviation / std::sqrt(n));
    EXPECT_NEAR(std::sqrt(squares / n), deviation, 5 * deviation / std::sqrt(2 * n));
  }
  ThreadPool pool{"test", {0, 1}, false};
  std::unique_ptr<Device> device = make_cpu_device(pool);
  std::unique_ptr<Ops> ops = make_ops(*device);
  std::unique_ptr<Stream> stream = device->create_stream("compute");
  const DecoderSpec spec = small();
  const ParameterLayout layout{make_parameters(spec)};
};

TEST_F(RandomWeights, OnTheDevice) {
  DeviceWeights weights(*device, layout, DType::f32);
  randomize(weights, spec, layout, *ops, *stream);
  for (int p = 0; p < layout.count(); ++p) {
    SCOPED_TRACE(layout.parameter(p).name);
    const Tensor tensor = weights.weight(p);
    const std::span<const float> values(static_cast<const float*>(tensor.data()),
                                        static_cast<std::size_t>(tensor.size()));
    if (layout.parameter(p).shape.size() == 2) {
      expect_random(values, spec.initializer_range);
    } else {
      for (const float x : values) ASSERT_EQ(x, 1);
    }
  }
  // Parameters of one shape differ.
  const int gate = layout.find("model.layers.0.mlp.gate_proj.weight"),
            up = layout.find("model.layers.0.mlp.up_proj.weight");
  EXPECT_NE(*static_cast<const float*>(weights.weight(gate).data()),
            *static_cast<const float*>(weights.weight(up).data()));
}

class RandomMasters : public RandomWeights, public ::testing::WithParamInterface<Owner> {};

TEST_P(RandomMasters, AreWhatTheWeightsAreRoundedFrom) {
  const auto ranks = make_single_communicator();
  test::CountedSettings settings;
  settings.formats = model_formats(DType::bf16);
  settings.placement.bucket_elements = 4096;
  settings.counts.device_units = GetParam() == Owner::device ? layout.units() : 0;
  OffloadEngine engine(*device, pool, *ranks, layout, settings.of(layout));
  randomize(engine, spec, pool, *stream);
  for (int p = 0; p < layout.count(); ++p) {
    const Range range = layout.range(p);
    std::vector<float> master;
    engine.read_state(StateArray::master, range, [&](std::int64_t, std::span<const float> values) {
      master.insert(master.end(), values.begin(), values.end());
    });
    if (layout.parameter(p).shape.size() == 2) expect_random(master, spec.initializer_range);
    const auto* weight = static_cast<const bf16*>(engine.weight(p).data());
    for (std::size_t i = 0; i < master.size(); ++i)
      ASSERT_EQ(static_cast<float>(weight[i]), static_cast<float>(bf16(master[i])));
  }
}

INSTANTIATE_TEST_SUITE_P(Owners, RandomMasters, ::testing::Values(Owner::host, Owner::device),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace so
