// A shared expert with and without a gate.
#include <gtest/gtest.h>

#include <algorithm>
#include <span>

#include "model/decoder_rig.h"

namespace so {
namespace {

using test::DecoderRig;
using test::HostBatch;
using test::ModelFixture;
using test::Rig;
using test::StepResult;

bool is_gate(const std::string& name) { return name.ends_with("shared_expert_gate.weight"); }
bool is_down(const std::string& name) { return name.ends_with("shared_expert.down_proj.weight"); }

// A gate whose weight is 0 halves what its expert makes. So does half of the last product's weight, to the bit, and
// that weight's gradient is then twice as large. The gradients of the two activations round in another order.
TEST(SharedExpertTest, WithoutAGateIsTwiceThatBehindAGateOfZeros) {
  ModelFixture gated("qwen3-5-moe"), plain("qwen3-5-moe");
  plain.spec.experts.shared_gate = false;
  plain.layout = ParameterLayout(make_parameters(plain.spec));
  for (auto& [name, tensor] : gated.weights)
    if (is_gate(name)) std::fill(tensor.values.begin(), tensor.values.end(), 0.0f);
  std::erase_if(plain.weights, [](const auto& weight) { return is_gate(weight.first); });
  for (auto& [name, tensor] : plain.weights)
    if (is_down(name))
      for (float& value : tensor.values) value /= 2;
  Rig cpu;
  const HostBatch batch = HostBatch::join(std::span(gated.documents).first(2));
  for (const Keep keep : {Keep::all, Keep::no_gate_up, Keep::input})
    for (const std::int64_t tile : {0, 16}) {
      DecoderSettings settings{model_formats(DType::f32), std::vector(3, keep), 16};
      settings.tile_rows = tile;
      const StepResult with = DecoderRig(cpu.stream(), cpu.ops(), gated, settings).step(batch);
      const StepResult without = DecoderRig(cpu.stream(), cpu.ops(), plain, settings).step(batch);
      EXPECT_EQ(with.losses, without.losses);
      EXPECT_EQ(with.gradients.size(), without.gradients.size() + 3);
      for (const auto& [name, gradient] : without.gradients) {
        std::vector<float> expected = with.gradients.at(name);
        if (is_down(name))
          for (float& value : expected) value *= 2;
        test::expect_near_in_norm(gradient, expected, 1e-5, name);
      }
      for (const auto& [name, gradient] : with.gradients) {
        if (!is_gate(name)) continue;
        EXPECT_GT(test::norm(gradient), 0) << name;
      }
    }
}

}  // namespace
}  // namespace so
