// The decoder against PyTorch, on the fixtures of tests/fixtures/models.
#include <gtest/gtest.h>

#include <cmath>

#include "model/decoder_rig.h"
#include "support/label.h"

namespace so {
namespace {

using test::DecoderRig;
using test::distance;
using test::expect_near_in_norm;
using test::HostBatch;
using test::ModelFixture;
using test::Rig;
using test::StepResult;

// Two fp32 runs that differ in nothing but the order of their sums are up to 4e-6 of a tensor's norm apart (the
// fixtures were refused otherwise; their README tells how that was measured). 1e-5 leaves room for any order; a wrong
// formula is off by orders of magnitude.
constexpr double fp32_sums = 1e-5;

DecoderSettings plain_settings(DType compute = DType::f32) { return {model_formats(compute), {}, 16}; }

double mean_loss(const std::vector<float>& losses, const HostBatch& batch) {
  double sum = 0;
  for (const float loss : losses) sum += loss;
  return sum / static_cast<double>(batch.trained());
}

// An expert that no token chose has no gradient, to the bit.
void expect_gradient(const std::vector<float>& actual, const std::vector<float>& expected, double relative,
                     const std::string& what) {
  if (what.find(".experts.") != std::string::npos && test::norm(expected) == 0)
    EXPECT_EQ(test::norm(actual), 0) << what;
  else
    expect_near_in_norm(actual, expected, relative, what);
}

class FixtureTest : public testing::TestWithParam<const char*> {
 protected:
  Rig cpu{1};  // small work: handing it between threads would cost more than it
  const ModelFixture fixture{GetParam()};
  const HostBatch batch = HostBatch::join(fixture.batch());

  DecoderRig rig(const DecoderSettings& s) { return DecoderRig(cpu.stream(), cpu.ops(), fixture, s); }
};

std::string name_of_case(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

constexpr const char* dense_models[]{"llama-untied",
                                     "llama-tied-llama3",
                                     "llama-v4",
                                     "llama-bias",
                                     "llama-sharded",
                                     "qwen3-tied",
                                     "qwen3-untied-v4",
                                     "mistral",
                                     "phi3-v4",
                                     "phi3-long",
                                     "qwen3-bf16-v4",
                                     "phi3-short",
                                     "qwen2",
                                     "seed-oss",
                                     "smollm3-v4",
                                     "olmo2-v4",
                                     "olmo3",
                                     "granite-v4",
                                     "glm4",
                                     "glm4-v4",
                                     "gemma3-v4",
                                     "ministral3",
                                     "gemma3-vision",
                                     "qwen3-5",
                                     "qwen3-5-bias",
                                     "qwen3-5-vision",
                                     "gemma4",
                                     "gemma4-vision",
                                     "gemma4-e"};
constexpr const char* expert_models[]{"qwen3-moe",  "qwen3-moe-balance", "gpt-oss",       "mixtral-v4", "qwen3-5-moe",
                                      "qwen3-next", "gemma4-moe",        "glm4-moe-lite", "nemotron-h"};
class DenseTest : public FixtureTest {};
class ExpertsTest : public FixtureTest {};
INSTANTIATE_TEST_SUITE_P(Dense, FixtureTest, testing::ValuesIn(dense_models), name_of_case);
INSTANTIATE_TEST_SUITE_P(Experts, FixtureTest, testing::ValuesIn(expert_models), name_of_case);
INSTANTIATE_TEST_SUITE_P(Dense, DenseTest, testing::ValuesIn(dense_models), name_of_case);
INSTANTIATE_TEST_SUITE_P(Experts, ExpertsTest, testing::ValuesIn(expert_models), name_of_case);

SO_LABEL(sweep, test::covered_families("Dense/*/"));
SO_LABEL(sweep, test::covered_families("Experts/*/"));
TEST_P(FixtureTest, LogitsOfEveryDocumentAreThoseOfPyTorch) {
  const auto expected = test::read_safetensors(fixture.path / "logits.safetensors");
  ASSERT_EQ(expected.size(), fixture.batch().size());
  const std::vector<float> logits = rig(plain_settings()).logits(batch);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto& document = expected.at("logits." + std::to_string(i));
    const auto begin = static_cast<std::int64_t>(batch.offsets[i]);
    expect_near_in_norm(test::rows_of(logits, begin, document.shape[0], fixture.spec.vocab), document.values, fp32_sums,
                        "document " + std::to_string(i));
  }
}

TEST_P(FixtureTest, LossAndEveryGradientAreThoseOfPyTorch) {
  const auto& numbers = fixture.expected.at("batch");
  ASSERT_EQ(batch.trained(), numbers.at("trained_tokens"));
  const auto expected = test::text_tensors(fixture.spec, test::read_safetensors(fixture.path / "grads.safetensors"));
  const StepResult step = rig(plain_settings()).step(batch);

  const double loss = numbers.at("loss");
  EXPECT_NEAR(mean_loss(step.losses, batch), loss, fp32_sums * loss);
  EXPECT_EQ(expected.size(), step.gradients.size());
  double squares = 0;
  for (const auto& [name, gradient] : step.gradients) {
    ASSERT_TRUE(expected.contains(name)) << name;
    expect_gradient(gradient, expected.at(name).values, fp32_sums, name);
    squares += test::norm(gradient) * test::norm(gradient);
  }
  const double norm = numbers.at("grad_norm");
  EXPECT_NEAR(std::sqrt(squares), norm, fp32_sums * norm);
}

TEST_P(FixtureTest, TheLossAloneIsTheLossOfTheStep) {
  // The same ops on the same numbers, so the same bits; 0 where nothing is trained.
  auto decoder = rig(plain_settings());
  const std::vector<float> losses = decoder.losses(batch);
  if (fixture.spec.experts.balance == 0) {
    EXPECT_EQ(losses, decoder.step(batch).losses);
  }
  for (std::size_t i = 0; i < losses.size(); ++i) {
    if (batch.targets[i] < 0)
      EXPECT_EQ(losses[i], 0) << "token " << i;
    else
      EXPECT_GT(losses[i], 0) << "token " << i;
  }
}

// Without a step the loss is that of PyTorch's logits and no more, whatever the routers of the model add to a step's.
TEST_P(FixtureTest, TheLossAloneIsThatOfTheLogits) {
  const auto logits = test::read_safetensors(fixture.path / "logits.safetensors");
  const std::vector<float> losses = rig(plain_settings()).losses(batch);
  double expected = 0, sum = 0;
  for (std::size_t d = 0; d + 1 < batch.offsets.size(); ++d) {
    const std::vector<float>& rows = logits.at("logits." + std::to_string(d)).values;
    const auto begin = static_cast<std::size_t>(batch.offsets[d]), end = static_cast<std::size_t>(batch.offsets[d + 1]),
               vocabulary = static_cast<std::size_t>(fixture.spec.vocab);
    for (std::size_t i = begin; i < end; ++i) {
      sum += losses[i];
      if (batch.targets[i] < 0) continue;
      const std::span<const float> row = std::span(rows).subspan((i - begin) * vocabulary, vocabulary);
      double exponentials = 0;
      for (const float logit : row) exponentials += std::exp(static_cast<double>(logit));
      expected += std::log(exponentials) - static_cast<double>(row[static_cast<std::size_t>(batch.targets[i])]);
    }
  }
  EXPECT_NEAR(sum, expected, fp32_sums * expected);
}

// In bf16 every stored value is rounded at 2^-8 instead of 2^-24, and to first order errors grow in proportion. What
// rounding does to these gradients in fp32, in the worst tensor, is the fixture's own fp32_noise; 2^16 times that
// bounds every tensor in bf16, since sums are still fp32; half as much again on a GPU, whose attention rounds its
// probabilities too. A difference near fp32's would mean that bf16 did not run.
TEST_P(DenseTest, Bf16IsAsFarFromPyTorchAsItsRoundingExplains) {
  const double bound =
      (test::on_gpu() ? 1.5 : 1.0) * 0x1p16 * fixture.expected.at("batch").at("fp32_noise").at("grad").get<double>();
  auto decoder = rig(plain_settings(DType::bf16));
  const auto expected_logits = test::read_safetensors(fixture.path / "logits.safetensors");
  const std::vector<float> logits = decoder.logits(batch);
  for (std::size_t i = 0; i < expected_logits.size(); ++i) {
    const auto& document = expected_logits.at("logits." + std::to_string(i));
    const auto begin = static_cast<std::int64_t>(batch.offsets[i]);
    const auto rows = test::rows_of(logits, begin, document.shape[0], fixture.spec.vocab);
    expect_near_in_norm(rows, document.values, bound, "document " + std::to_string(i));
    EXPECT_GT(distance(rows, document.values), 1e-3 * test::norm(document.values));
  }
  const auto expected = test::text_tensors(fixture.spec, test::read_safetensors(fixture.path / "grads.safetensors"));
  // Gradients kept in bf16 too, which PyTorch's are as well: one more rounding of the same kind, within the same bound.
  for (const DType kept : {DType::f32, DType::bf16}) {
    if (kept == DType::bf16 && fixture.spec.tied_embeddings) continue;  // two are added up
    const StepResult step = decoder.step(batch, kept);
    for (const auto& [name, gradient] : step.gradients) {
      // A few numbers in which the errors of all tokens meet: PyTorch's own are 1.4 times the bound in bf16.
      const bool few = name.ends_with(".A_log") || name.ends_with(".dt_bias");
      expect_gradient(gradient, expected.at(name).values, few ? 2 * bound : bound,
                      name + " in " + std::string(name_of(kept)));
    }
    const double loss = fixture.expected.at("batch").at("loss");
    EXPECT_NEAR(mean_loss(step.losses, batch), loss, bound * loss);
  }
}

// Where there are experts, rounding turns a few of the tokens' choices. PyTorch's own distance from fp32 in bf16 says
// how much that is worth in this model; another run's is of the same size, but not the same.
TEST_P(ExpertsTest, Bf16IsAsFarFromFp32AsPyTorchIs) {
  constexpr double room = 2;
  const auto& numbers = fixture.expected.at("batch");
  const auto& spread = numbers.at("bf16_spread");
  auto decoder = rig(plain_settings(DType::bf16));
  const auto expected_logits = test::read_safetensors(fixture.path / "logits.safetensors");
  const std::vector<float> logits = decoder.logits(batch);
  for (std::size_t i = 0; i < expected_logits.size(); ++i) {
    const auto& document = expected_logits.at("logits." + std::to_string(i));
    const auto begin = static_cast<std::int64_t>(batch.offsets[i]);
    const auto rows = test::rows_of(logits, begin, document.shape[0], fixture.spec.vocab);
    expect_near_in_norm(rows, document.values, room * spread.at("logits").get<double>(),
                        "document " + std::to_string(i));
  }
  const auto expected = test::text_tensors(fixture.spec, test::read_safetensors(fixture.path / "grads.safetensors"));
  const StepResult step = decoder.step(batch);
  double squares = 0;
  for (const auto& [name, gradient] : step.gradients) {
    const double apart = distance(gradient, expected.at(name).values);
    squares += apart * apart;
  }
  const double norm = numbers.at("grad_norm"), loss = numbers.at("loss");
  EXPECT_LE(std::sqrt(squares), room * spread.at("grad").get<double>() * norm);
  EXPECT_GT(std::sqrt(squares), 1e-3 * norm) << "bf16 did not run";
  EXPECT_NEAR(mean_loss(step.losses, batch), loss, room * spread.at("logits").get<double>() * loss);
}

// ---- Greedy decoding with a KV cache ----

class GreedyTest : public testing::TestWithParam<const char*> {
 protected:
  // As many ids after the prompt as the fixture has. The prompt is fed in pieces of `piece` tokens.
  std::vector<std::int32_t> decode(DecoderRig& decoder, std::size_t piece) {
    const std::span<const std::int32_t> given = prompt;
    const std::size_t count = generated.size();
    auto cache = decoder.make_cache(static_cast<std::int64_t>(prompt.size() + count));
    std::vector<float> logits;
    for (std::size_t at = 0; at < given.size(); at += piece)
      logits = decoder.feed(cache, given.subspan(at, std::min(piece, given.size() - at)));
    std::vector<std::int32_t> ids;
    for (;;) {
      ids.push_back(static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
      if (ids.size() == count) return ids;
      logits = decoder.feed(cache, std::span(ids).last(1));
    }
  }

  Rig cpu{1};
  const ModelFixture fixture{GetParam()};
  const nlohmann::json greedy = nlohmann::json::parse(test::read_file(fixture.path / "greedy.json"));
  const std::vector<std::int32_t> prompt = greedy.at("prompt"), generated = greedy.at("generated");
};

SO_LABEL(sweep, test::covered_families("Models/GreedyTest.*/"));
INSTANTIATE_TEST_SUITE_P(Models, GreedyTest,
                         testing::Values("llama-tied-llama3", "qwen3-tied", "qwen3-moe", "gpt-oss", "smollm3-v4",
                                         "olmo3", "gemma3-v4", "gemma3-vision", "ministral3", "qwen3-5",
                                         "qwen3-5-vision", "qwen3-5-moe", "qwen3-next", "gemma4", "gemma4-moe",
                                         "gemma4-e", "glm4-moe-lite", "nemotron-h"),
                         name_of_case);

TEST_P(GreedyTest, ContinuesAsPyTorchHoweverThePromptIsFed) {
  DecoderRig decoder(cpu.stream(), cpu.ops(), fixture, plain_settings());
  for (const std::size_t piece : {prompt.size(), std::size_t{1}, std::size_t{4}})
    EXPECT_EQ(decode(decoder, piece), generated) << "prompt in pieces of " << piece;
}

TEST_P(GreedyTest, LogitsWithTheCacheAreThoseWithout) {
  test::Document document;
  document.ids = prompt;
  document.ids.insert(document.ids.end(), generated.begin(), generated.end());
  document.labels.assign(document.ids.size(), -1);
  const std::span<const std::int32_t> ids = document.ids;
  // The same sums over the same keys in other shapes. In bf16 the stored values round alike, but a value near the
  // middle of two may fall either way: an error of one rounding, at 2^16 times the size. On a GPU the two ways are two
  // kernels, of which one rounds the probabilities to bf16 too, in every layer: four times that. Queries that grow have
  // larger scores, in which the same rounding weighs more: up to twice as much here, and four times are allowed.
  const double growth = fixture.spec.rope.query_growth > 0 ? 4 : 1;
  for (const auto& [compute, bound] :
       {std::pair{DType::f32, fp32_sums}, std::pair{DType::bf16, test::on_gpu() ? 0x1p-6 : 0x1p-8}}) {
    DecoderRig decoder(cpu.stream(), cpu.ops(), fixture, plain_settings(compute));
    const std::vector<float> whole = decoder.logits(HostBatch::join({&document, 1}));
    auto cache = decoder.make_cache(static_cast<std::int64_t>(ids.size()));
    for (std::size_t at = 0, piece = 7; at < ids.size(); at += piece, piece = 1) {
      const std::size_t count = std::min(piece, ids.size() - at);
      const std::vector<float> logits =
          decoder.feed(cache, ids.subspan(at, count), static_cast<std::int64_t>(ids.size()));
      const auto row = static_cast<std::int64_t>(at + count) - 1;
      ASSERT_EQ(cache.views.used, row + 1);
      expect_near_in_norm(logits, test::rows_of(whole, row, 1, fixture.spec.vocab),
                          compute == DType::bf16 ? growth * bound : bound,
                          "token " + std::to_string(row) + " in " + std::string(name_of(compute)));
    }
  }
}

}  // namespace
}  // namespace so
