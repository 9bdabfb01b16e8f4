// Texts that are not read on from where the last one ended: of a model with LongRoPE, beyond the positions from which
// on the other factors count, and of one whose layers have a state that cannot go back.
#include "model/text_generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/sequence_slice.h"
#include "model/decoder_rig.h"
#include "offload/memory/device_weights.h"

namespace so {
namespace {

using test::ModelFixture;
using test::Rig;

class TextTest : public testing::Test {
 protected:
  static constexpr std::int64_t capacity = 96;

  explicit TextTest(const char* name) : fixture(name) {
    for (int i = 0; i < fixture.layout.count(); ++i) {
      const auto& values = fixture.weights.at(fixture.layout.parameter(i).name).values;
      cpu.stream().copy(weights.at(fixture.layout.range(i).begin), values.data(), values.size() * sizeof(float));
    }
    cpu.stream().synchronize();
    model.make_arena(16 << 20);
  }
  std::vector<std::int32_t> continued(TextGenerator& generator, std::span<const std::int32_t> text, int tokens) {
    AnswerSettings settings{.max_new_tokens = tokens, .stop_at_end = false};
    settings.sampling.temperature = 0;
    std::mt19937_64 random(1);
    return generator.answer(tokenizer, text, settings, random, [](const std::string&) {}).ids;
  }

  Rig cpu{1};
  const ModelFixture fixture;
  const nlohmann::json greedy = nlohmann::json::parse(test::read_file(fixture.path / "greedy.json"));
  const std::vector<std::int32_t> prompt = greedy.at("prompt"), generated = greedy.at("generated");
  const Tokenizer tokenizer =
      Tokenizer::load(std::filesystem::path(test::source_tree()) / "assets" / "tokenizer");  // of more words
  DeviceWeights weights{cpu.device(), fixture.layout, DType::f32};
  ModelOnDevice model{cpu.device(),
                      cpu.ops(),
                      cpu.stream(),
                      fixture.spec,
                      fixture.layout,
                      {model_formats(DType::f32), {}, 16},
                      {.positions = capacity, .batch_tokens = capacity, .cache_rows = capacity}};
};

class LongTextTest : public TextTest {
 protected:
  LongTextTest() : TextTest("phi3-long") {}
};
class StateTextTest : public TextTest, public testing::WithParamInterface<const char*> {
 protected:
  StateTextTest() : TextTest(GetParam()) {}
};

INSTANTIATE_TEST_SUITE_P(Models, StateTextTest, testing::Values("qwen3-5", "nemotron-h"), [](const auto& parameter) {
  std::string name = parameter.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST_P(StateTextTest, IsThatOfPyTorchWhateverWasReadBefore) {
  const auto count = static_cast<int>(generated.size());
  for (const std::int64_t batch_tokens : {1, 4, 96}) {
    TextGenerator generator(cpu.device(), model, weights, cpu.stream(), capacity, batch_tokens);
    EXPECT_EQ(continued(generator, prompt, count), generated) << batch_tokens;
    // The same again, which goes back; then what follows the text, and what follows an earlier part of it.
    EXPECT_EQ(continued(generator, prompt, count), generated) << batch_tokens;
    std::vector<std::int32_t> longer = prompt;
    longer.insert(longer.end(), generated.begin(), generated.end() - 2);
    EXPECT_EQ(continued(generator, longer, 2), std::vector<std::int32_t>(generated.end() - 2, generated.end()))
        << batch_tokens;
    longer.resize(prompt.size() + 20);
    EXPECT_EQ(continued(generator, longer, 5),
              std::vector<std::int32_t>(generated.begin() + 20, generated.begin() + 25))
        << batch_tokens;
  }
}

TEST_F(LongTextTest, IsThatOfPyTorchHoweverItIsRead) {
  const auto original = static_cast<std::size_t>(fixture.spec.rope.original_positions);
  ASSERT_LT(prompt.size(), original);
  ASSERT_GT(prompt.size() + generated.size(), original + 4);
  for (const std::int64_t batch_tokens : {1, 4, 64}) {
    TextGenerator generator(cpu.device(), model, weights, cpu.stream(), capacity, batch_tokens);
    EXPECT_EQ(continued(generator, prompt, static_cast<int>(generated.size())), generated) << batch_tokens;
    // A shorter text that begins alike goes back to the factors of short ones.
    const std::vector<std::int32_t> few(generated.begin(), generated.begin() + 3);
    EXPECT_EQ(continued(generator, prompt, 3), few) << batch_tokens;
    // A prompt of which a part was read while the text was short.
    std::vector<std::int32_t> longer = prompt;
    longer.insert(longer.end(), generated.begin(), generated.end() - 2);
    EXPECT_EQ(continued(generator, longer, 2), std::vector<std::int32_t>(generated.end() - 2, generated.end()))
        << batch_tokens;
  }
}

// Positions of documents of 3, 20 and 2 tokens, whole and in slices, where 16 is the limit.
TEST_F(LongTextTest, EachDocumentTakesTheRowsOfItsLength) {
  MicroBatch batch;
  batch.cu_seqlens = {0, 3, 23, 25};
  batch.tokens = 25;
  batch.ids.assign(25, 5);
  batch.targets.assign(25, -1);
  std::vector<double> expected;
  for (std::size_t d = 0; d < 3; ++d)
    for (std::int32_t i = 0; i < batch.cu_seqlens[d + 1] - batch.cu_seqlens[d]; ++i) {
      batch.positions.push_back(i);
      expected.push_back(i + (d == 1 ? 16 : 0));
    }
  ASSERT_EQ(fixture.spec.rope.original_positions, 16);
  const RopeRows rows(fixture.spec, capacity);
  EXPECT_EQ(rows.count(), 16 + capacity);
  EXPECT_FALSE(RopeRows(fixture.spec, 16).differ());
  for (const int ranks : {1, 2, 4})
    for (int rank = 0; rank < ranks; ++rank) {
      MicroBatch slice = batch;
      take_slice(slice, {rank, ranks});
      BatchUpload upload(cpu.device(), 25, 25, rows);
      const Tensor positions = upload.upload(cpu.stream(), slice).positions;
      cpu.stream().synchronize();
      std::vector<std::int32_t> values(static_cast<std::size_t>(positions.size()));
      cpu.stream().copy(values.data(), positions.data(), positions.bytes());
      cpu.stream().synchronize();
      const auto begin = expected.begin() + slice_begin(25, ranks, rank);
      EXPECT_EQ(std::vector<double>(values.begin(), values.end()),
                std::vector<double>(begin, begin + std::ssize(values)))
          << rank << " of " << ranks;
    }
}

}  // namespace
}  // namespace so
