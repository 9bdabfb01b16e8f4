// Gated delta layers, state spaces and attention by latents: what must not be carried from a document to the next.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "model/decoder_rig.h"
#include "support/on_gpu.h"

namespace so {
namespace {

using test::DecoderRig;
using test::Document;
using test::HostBatch;
using test::ModelFixture;
using test::Rig;

class DeltaTest : public testing::TestWithParam<const char*> {
 protected:
  // Lengths around the 64 tokens that the rule takes at a time, around those that the convolution sees, and one token.
  std::vector<Document> make_documents() const {
    std::vector<Document> documents;
    std::int32_t id = 5;
    for (const std::size_t length : {70, 1, 3, 64, 2, 65, 19}) {
      Document& document = documents.emplace_back();
      for (std::size_t i = 0; i < length; ++i) {
        id = static_cast<std::int32_t>((id * 31 + 17) % fixture.spec.vocab);
        document.ids.push_back(id);
      }
      document.labels = document.ids;
    }
    return documents;
  }
  std::vector<float> losses(DType compute, std::span<const Document> documents) {
    return DecoderRig(cpu.stream(), cpu.ops(), fixture, {model_formats(compute), {}, 16})
        .losses(HostBatch::join(documents));
  }

  Rig cpu;
  const ModelFixture fixture{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Models, DeltaTest,
                         testing::Values("qwen3-5", "qwen3-5-bias", "qwen3-next", "glm4-moe-lite", "nemotron-h"),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// A product in fp32 may sum in another order for another number of rows, and in the last rows that do not fill a block:
// of 8 with AVX-512, of 6 with AVX2, which also begins blocks anew in the middle of many rows. So there each document
// has a few tokens of another behind it, and batches are filled up to one size that is whole blocks in both halves.
// Experts have as many rows as tokens chose them, which cannot be filled up: those are compared in bf16 alone.
TEST_P(DeltaTest, DocumentsInAnyOrderGiveTheBitsTheyGiveAlone) {
  constexpr std::size_t block = 24, filled = 336;
  const std::vector<Document> documents = make_documents();
  const auto other = [](std::size_t tokens) {
    return Document{std::vector<std::int32_t>(tokens, 7), std::vector<std::int32_t>(tokens, 7)};
  };
  // The losses of these documents.
  const auto run = [&](DType compute, std::span<const std::size_t> which) {
    std::vector<Document> batch;
    std::vector<std::size_t> begins;
    std::size_t tokens = 0;
    const auto add = [&](const Document& document) {
      batch.push_back(document);
      tokens += document.ids.size();
    };
    for (const std::size_t i : which) {
      begins.push_back(tokens);
      add(documents[i]);
      if (compute == DType::f32 && tokens % block != 0) add(other(block - tokens % block));
    }
    while (compute == DType::f32 && tokens < filled) add(other(std::min<std::size_t>(filled - tokens, 64)));
    if (compute == DType::f32) {
      EXPECT_EQ(tokens, filled);
    }
    const std::vector<float> all = losses(compute, batch);
    std::vector<std::vector<float>> result;
    for (std::size_t d = 0; d < which.size(); ++d) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(begins[d]);
      result.emplace_back(begin, begin + std::ssize(documents[which[d]].ids));
    }
    return result;
  };
  for (const DType compute : {DType::f32, DType::bf16})
    for (const std::vector<std::size_t>& order :
         {std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6}, {3, 6, 0, 1, 5, 2, 4}, {6, 5, 4, 2, 3, 0, 1}}) {
      if (compute == DType::f32 && fixture.spec.expert_layers() > 0) continue;
      const auto together = run(compute, order);
      for (std::size_t d = 0; d < order.size(); ++d)
        EXPECT_EQ(together[d], run(compute, std::span(order).subspan(d, 1)).front())
            << "document " << order[d] << " in " << name_of(compute);
    }
}

// Each document has words of its own, so the gradients of their embeddings are the document's alone, but where these
// are the output's too.
TEST_P(DeltaTest, GradientsGoNoFurtherThanTheirDocument) {
  if (fixture.spec.tied_embeddings) return;
  constexpr std::int32_t words = 20;
  std::vector<Document> documents = make_documents();
  for (std::size_t d = 0; d < documents.size(); ++d)
    for (std::int32_t& id : documents[d].ids) id = static_cast<std::int32_t>(d) * words + id % words;
  for (Document& document : documents) document.labels = document.ids;
  ASSERT_LE(std::ssize(documents) * words, fixture.spec.vocab);
  const auto gradients = [&](std::span<const Document> batch) {
    return DecoderRig(cpu.stream(), cpu.ops(), fixture, {model_formats(DType::bf16), {}, 16})
        .step({HostBatch::join(batch)}, 0.25)
        .gradients.at(fixture.layout.parameter(0).name);
  };
  std::reverse(documents.begin() + 1, documents.end());
  const std::vector<float> together = gradients(documents);
  for (std::size_t d = 0; d < documents.size(); ++d) {
    if (documents[d].ids.size() == 1) continue;  // which trains nothing
    const std::int64_t first = documents[d].ids.front() / words * words;
    const auto rows = [&](const std::vector<float>& all) {
      return test::rows_of(all, first, words, fixture.spec.hidden);
    };
    const std::vector<float> alone = gradients(std::span(documents).subspan(d, 1));
    EXPECT_GT(test::norm(rows(alone)), 0) << d;
    EXPECT_EQ(rows(together), rows(alone)) << d;
  }
}

// A text that is begun anew finds neither the state nor the convolution's input of the one before.
TEST_P(DeltaTest, ATextThatBeginsAnewRemembersNothing) {
  const std::vector<Document> documents = make_documents();
  DecoderRig decoder(cpu.stream(), cpu.ops(), fixture, {model_formats(DType::f32), {}, 16});
  auto fresh = decoder.make_cache(96), used = decoder.make_cache(96);
  decoder.feed(used, documents[3].ids);
  used.views.used = 0;
  for (const std::size_t i : {5, 6})
    EXPECT_EQ(decoder.feed(used, documents[i].ids), decoder.feed(fresh, documents[i].ids)) << i;
}

}  // namespace
}  // namespace so
