// Products in FP8: a step against PyTorch, which rounds operands by its own cast, and what must not depend on how the
// step is made.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/decoder_rig.h"
#include "model/fp8_layers.h"
#include "support/errors.h"

namespace so {
namespace {

using test::DecoderRig;
using test::HostBatch;
using test::ModelFixture;
using test::Rig;
using test::StepResult;

DecoderSettings fp8_settings(DType compute = DType::f32, std::vector<Keep> keep = {}) {
  return {model_formats(compute), std::move(keep), 16};
}

struct Fp8Step : testing::Test {
  Rig cpu{1};
  ModelFixture fixture{"fp8-products"};
  const HostBatch batch = HostBatch::join(fixture.batch());

  StepResult step(const DecoderSettings& settings, std::int64_t keep_first = 0, std::int64_t keep_last = 0) {
    if (!cpu.ops().multiplies_fp8()) return {};
    use_fp8(fixture.spec, keep_first, keep_last, "the fixture");
    return DecoderRig(cpu.stream(), cpu.ops(), fixture, settings).step(batch);
  }
  // Every sixteenth row, as the fixture has them.
  std::vector<float> some_rows(const std::string& name, const std::vector<float>& gradient) const {
    const std::int64_t columns = fixture.layout.parameter(index_of(name)).shape.back();
    std::vector<float> rows;
    for (std::int64_t at = 0; at < std::ssize(gradient); at += 16 * columns)
      rows.insert(rows.end(), gradient.begin() + at, gradient.begin() + at + columns);
    return rows;
  }
  int index_of(const std::string& name) const {
    for (int i = 0; i < fixture.layout.count(); ++i)
      if (fixture.layout.parameter(i).name == name) return i;
    throw std::out_of_range(name);
  }
};

// fp32 sums in another order turn a few codes, by a sixteenth of them at most, which shows most in the gradients of
// keys, small differences of large numbers. FP8 itself moves every gradient by more than 4%.
TEST_F(Fp8Step, IsThatOfPyTorch) {
  const StepResult got = step(fp8_settings());
  if (got.losses.empty()) GTEST_SKIP() << "this GPU has no products in FP8";
  // A GPU adds up the products of 128 elements with about 14 bits, which turns more of them: 3.3% was seen on an H200.
  const double turned_codes = test::on_gpu() ? 0.045 : 0.01, of_loss = test::on_gpu() ? 0.2 : 0.1;
  const auto& numbers = fixture.expected.at("batch");
  double loss = 0;
  for (const float of_token : got.losses) loss += of_token;
  loss /= static_cast<double>(batch.trained());
  const double expected_loss = numbers.at("loss"), without = numbers.at("loss_without_fp8");
  EXPECT_NEAR(loss, expected_loss, of_loss * std::abs(expected_loss - without));
  const auto rows = test::read_safetensors(fixture.path / "grads.safetensors");
  for (const auto& [name, gradient] : got.gradients) {
    const double norm = numbers.at("grad_norms").at(name);
    EXPECT_NEAR(test::norm(gradient), norm, turned_codes * norm) << name;
    if (rows.contains(name))
      test::expect_near_in_norm(some_rows(name, gradient), rows.at(name).values, turned_codes, name);
  }
}

TEST_F(Fp8Step, KeepsItsBitsWhateverLayersKeep) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const StepResult all = step(fp8_settings(type));
    if (all.losses.empty()) GTEST_SKIP() << "this GPU has no products in FP8";
    for (const Keep keep : {Keep::input, Keep::attention, Keep::no_gate_up, Keep::light}) {
      const StepResult other = step(fp8_settings(type, {keep, keep}));
      EXPECT_EQ(all.losses, other.losses);
      EXPECT_EQ(all.gradients, other.gradients) << static_cast<int>(keep);
    }
  }
}

// A tile's columns have scales of their own, which moves gradients less than FP8 does.
TEST_F(Fp8Step, WorksInTiles) {
  for (const Keep keep : {Keep::input, Keep::no_gate_up, Keep::all}) {
    DecoderSettings settings = fp8_settings(DType::f32, {keep, keep});
    const StepResult whole = step(settings);
    if (whole.losses.empty()) GTEST_SKIP() << "this GPU has no products in FP8";
    settings.tile_rows = 24;
    const StepResult tiles = step(settings);
    test::expect_near_in_norm(tiles.losses, whole.losses, 1e-3, "losses");
    for (const auto& [name, gradient] : whole.gradients)
      test::expect_near_in_norm(tiles.gradients.at(name), gradient, 0.03, name);
  }
}

// Losses of a document do not depend on what else is in the batch: rows have scales of their own. A CPU adds up rows
// that do not fill a block in another order, so documents are filled up to whole blocks.
TEST_F(Fp8Step, DocumentsInAnyOrderHaveTheSameLosses) {
  if (!cpu.ops().multiplies_fp8()) GTEST_SKIP() << "this GPU has no products in FP8";
  use_fp8(fixture.spec, 0, 0, "the fixture");
  DecoderRig rig(cpu.stream(), cpu.ops(), fixture, fp8_settings(DType::bf16));
  constexpr std::int64_t block = 24;
  std::vector<test::Document> documents(fixture.batch().begin(), fixture.batch().end());
  for (test::Document& document : documents)
    while (std::ssize(document.ids) % block != 0) document.ids.push_back(7), document.labels.push_back(7);
  std::vector<float> expected = rig.losses(HostBatch::join(documents));
  std::rotate(expected.begin(), expected.begin() + std::ssize(documents.front().ids), expected.end());
  std::rotate(documents.begin(), documents.begin() + 1, documents.end());
  const std::vector<float> rotated = rig.losses(HostBatch::join(documents));
  EXPECT_EQ(rotated, expected);
}

TEST_F(Fp8Step, LayersThatAreKeptAreAsWithoutFp8) {
  const StepResult plain = DecoderRig(cpu.stream(), cpu.ops(), fixture, fp8_settings()).step(batch);
  const StepResult one = step(fp8_settings(), 1, 0);
  if (one.losses.empty()) GTEST_SKIP() << "this GPU has no products in FP8";
  EXPECT_FALSE(fixture.spec.layer(0).fp8);
  EXPECT_TRUE(fixture.spec.layer(1).fp8);
  EXPECT_NE(plain.losses, one.losses);
  const StepResult other = step(fp8_settings(), 0, 1);
  EXPECT_NE(other.losses, one.losses);
}

TEST_F(Fp8Step, FrozenWeightsNeedNoColumns) {
  if (!cpu.ops().multiplies_fp8()) GTEST_SKIP() << "this GPU has no products in FP8";
  const StepResult all = step(fp8_settings());
  ModelFixture frozen("fp8-products", {.frozen = {"*.mlp.*"}});
  use_fp8(frozen.spec, 0, 0, "the fixture");
  const StepResult some = DecoderRig(cpu.stream(), cpu.ops(), frozen, fp8_settings()).step(batch);
  EXPECT_EQ(all.losses, some.losses);
  const std::string q = "model.layers.0.self_attn.o_proj.weight";
  EXPECT_EQ(all.gradients.at(q), some.gradients.at(q));
}

TEST(Fp8Layers, AreRefusedWhereTheyCannotBe) {
  DecoderSpec small = ModelFixture("qwen3-tied").spec, spec = ModelFixture("fp8-products").spec;
  test::expect_in(test::refusal([&] { use_fp8(small, 0, 0, "mine"); }),
                  {"model.layers.0.self_attn.q_proj.weight of mine is", "multiples of 128", "--fp8_keep_layers"});
  test::expect_in(test::refusal([&] { use_fp8(spec, 1, 1, "mine"); }), {"mine has 2 layers, of which none is left"});
}

}  // namespace
}  // namespace so
