// samples.jsonl: written, cut for a resumed run, and read when anything may stand in it.
#include "io/samples.h"

#include <gtest/gtest.h>

#include "support/io.h"

namespace so {
namespace {

Sample sample_of(std::int64_t step, std::int64_t number, std::string text) {
  return {.step = step, .sample = number, .prompt = "p", .text = std::move(text), .tokens = 3, .finish_reason = "eos"};
}

TEST(SamplesRecord, ReadsBackAndGoesOnFromAStep) {
  io_test::TemporaryDirectory output;
  EXPECT_TRUE(read_samples_file(output.path()).samples.empty()) << "a run without samples has no such file";
  {
    SamplesLog log(output.path());
    log.add(std::vector<Sample>{sample_of(0, 1, "a\n\"b\""), sample_of(0, 2, "c")});
    log.add(std::vector<Sample>{sample_of(5, 1, std::string("cut \xc3"))});
    log.add(std::vector<Sample>{sample_of(9, 1, "d")});
    EXPECT_FALSE(log.lost_any());
  }
  const auto texts = [&] {
    std::vector<std::string> all;
    const RecordedSamples recorded = read_samples_file(output.path());
    EXPECT_EQ(recorded.damage, "");
    for (const Sample& sample : recorded.samples) all.push_back(sample.text);
    return all;
  };
  EXPECT_EQ(texts(), (std::vector<std::string>{"a\n\"b\"", "c", "cut \xef\xbf\xbd", "d"}));
  const Sample first = read_samples_file(output.path()).samples.at(1);
  EXPECT_EQ(first.sample, 2);
  EXPECT_EQ(first.prompt, "p");
  EXPECT_EQ(first.tokens, 3);
  EXPECT_EQ(first.finish_reason, "eos");

  // Killed in the middle of a line, and resumed from step 5.
  const auto path = output.path() / samples_file;
  io_test::write_file(path, io_test::read_file(path) + "{\"step\":10,\"sam");
  EXPECT_EQ(texts().size(), 4u) << "a line that is being written is left out";
  SamplesLog log(output.path());
  log.truncate_after(5);
  EXPECT_EQ(texts(), (std::vector<std::string>{"a\n\"b\"", "c", "cut \xef\xbf\xbd"}));
  log.add(std::vector<Sample>{sample_of(6, 1, "e")});
  EXPECT_EQ(texts().back(), "e");
}

TEST(SamplesRecord, IsReadUpToDamage) {
  const std::string good = R"({"step":1,"sample":1,"prompt":"p","text":"t","tokens":1,"finish_reason":"eos"})"
                           "\n";
  for (const char* bad : {"x", "[]", "{}", "{\"step\":1}", R"({"step":-1,"sample":1})", R"({"step":1,"sample":0})",
                          R"({"step":"1","sample":1})", "\xff", ""}) {
    const RecordedSamples recorded = read_samples_text(good + bad + "\n" + good);
    EXPECT_EQ(recorded.samples.size(), 1u) << bad;
    EXPECT_EQ(recorded.damage, "line 2 is no sample") << bad;
  }
  // A key that is missing, or of another type, is empty.
  const RecordedSamples bare = read_samples_text("{\"step\":1,\"sample\":1,\"text\":7}\n");
  ASSERT_EQ(bare.samples.size(), 1u);
  EXPECT_EQ(bare.samples.at(0).text, "");
  EXPECT_EQ(bare.damage, "");
}

}  // namespace
}  // namespace so
