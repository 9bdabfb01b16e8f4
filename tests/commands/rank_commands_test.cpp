// Commands beside train that share their work between ranks, as a user starts them. Not under sanitizers, like
// ranks_test.cpp.
#include <gtest/gtest.h>

#include <cmath>

#include "support/files.h"
#include "support/mpirun.h"
#include "support/process.h"
#include "support/refusal.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;
using CommandWords = std::vector<std::string>;

CommandWords with_more(CommandWords words, const CommandWords& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class RankCommands : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = why_no_ranks(); !reason.empty()) GTEST_SKIP() << reason;
  }
  CommandWords eval(const CommandWords& more) const {
    return with_more({test::binary(), "eval", "--model", (fixture_ / "model").string(), "--data",
                      (fixture_ / "data.jsonl").string(), "--cache_dir", (temporary_ / "cache").string(), "--device",
                      "cpu", "--dtype", "fp32", "--batch_size", "1", "--json"},
                     more);
  }
  // What the program has printed.
  std::string result_of(const CommandWords& words) const {
    const Outcome o = run(words, temporary_.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return o.out;
  }
  // The sentences that it has ended with.
  std::string refusal_of(const CommandWords& words) const {
    const Outcome o = run(words, temporary_.path());
    EXPECT_EQ(o.exit_code, 2) << o.err;
    EXPECT_EQ(o.out, "");
    std::string said;
    for (const std::string& line : lines_of(o.err))
      if (line.starts_with("superoffload: ")) said += line + "\n";
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << o.err;
    return said;
  }

  const fs::path fixture_ = model_fixture("qwen3-tied");
  TemporaryDirectory temporary_;
};

TEST_F(RankCommands, EvalGivesOneRanksResult) {
  const auto one = nlohmann::json::parse(result_of(eval({})));
  for (const char* ranks : {"2", "3"}) {
    SCOPED_TRACE(ranks);
    const std::string text = result_of(eval({"--gpus", ranks}));
    EXPECT_EQ(text.find('\n'), text.size() - 1) << "one rank alone prints: " << text;
    const auto several = nlohmann::json::parse(text);
    for (const auto& [name, value] : one.items())
      EXPECT_NEAR(several.at(name).get<double>(), value.get<double>(), 1e-6 * value.get<double>()) << name;
    EXPECT_EQ(result_of(eval({"--gpus", ranks})), text) << "the same bytes twice";
  }
}

TEST_F(RankCommands, EvalUnderMpirunTheSame) {
  EXPECT_EQ(result_of(under_mpirun({eval({}), eval({})})), result_of(eval({"--gpus", "2"})));
}

// Each with one sentence.
TEST_F(RankCommands, EvalRefusals) {
  std::string first_record;
  std::istringstream lines(read_file(fixture_ / "data.jsonl"));
  std::getline(lines, first_record);
  write_file(temporary_ / "one.jsonl", first_record + "\n");
  CommandWords one_record = eval({"--gpus", "2"});
  one_record[5] = (temporary_ / "one.jsonl").string();
  EXPECT_NE(refusal_of(one_record).find("which has 1 record to work on: start at most 1"), std::string::npos);
  EXPECT_NE(refusal_of(under_mpirun({eval({}), eval({"--max_length", "16"})}))
                .find("rank 1 differs from rank 0 in --max_length: 16, not "),
            std::string::npos);
}

}  // namespace
}  // namespace so::test
