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
  const auto split = nlohmann::json::parse(result_of(eval({"--gpus", "2", "--sequence_parallel_size", "2"})));
  for (const auto& [name, value] : one.items())
    EXPECT_NEAR(split.at(name).get<double>(), value.get<double>(), 1e-6 * value.get<double>()) << name;
}

TEST_F(RankCommands, EvalUnderMpirunTheSame) {
  EXPECT_EQ(result_of(under_mpirun({eval({}), eval({})})), result_of(eval({"--gpus", "2"})));
}

TEST_F(RankCommands, BenchStepMeasuresAllRanks) {
  const auto words = [&](const CommandWords& more) {
    return with_more({test::binary(), "bench", "step", "--config", (fixture_ / "model").string(), "--device", "cpu",
                      "--batch_size", "2", "--max_length", "40", "--steps", "2", "--warmup", "1"},
                     more);
  };
  for (const std::size_t ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    const auto result = nlohmann::json::parse(result_of(words({"--gpus", std::to_string(ranks), "--json"})));
    const double tokens =
        result.at("tokens_per_s").get<double>() * result.at("step_seconds").at("median").get<double>();
    EXPECT_NEAR(tokens, 80.0 * static_cast<double>(ranks), 1e-6);
    ASSERT_EQ(result.at("ranks").size(), ranks);
    double gemm = 0;
    for (std::size_t i = 0; i < ranks; ++i) {
      const auto& rank = result.at("ranks")[i];
      EXPECT_EQ(rank.at("rank"), i);
      EXPECT_EQ(rank.at("host"), 0);
      EXPECT_NEAR(rank.at("tokens_per_s").get<double>() * rank.at("step_seconds").get<double>(), 80, 1e-6);
      EXPECT_GT(rank.at("host_bytes"), 0);
      EXPECT_GT(rank.at("overlap_efficiency"), 0);
      gemm += rank.at("gemm_tflops").get<double>();
    }
    EXPECT_NEAR(result.at("gemm_tflops").get<double>(), gemm, 1e-9 * gemm);
    EXPECT_TRUE(result.contains("time")) << "rank 0's";
  }
  const std::string text = result_of(words({"--gpus", "2"}));
  for (const char* part : {"tokens/s of 2 ranks\n", "  rank 0  ", "  rank 1  "})
    EXPECT_EQ(text.find(part), text.rfind(part)) << part << text;
  EXPECT_NE(text.find("  rank 1  "), std::string::npos) << text;
  const std::string plain = refusal_of(words({"--gpus", "2", "--no_optimizer"}));
  EXPECT_NE(plain.find("there is no optimizer"), std::string::npos) << plain;
  const std::string differs = refusal_of(under_mpirun({words({}), words({"--max_grad_norm", "0.5"})}));
  EXPECT_NE(differs.find("rank 1 differs from rank 0 in --max_grad_norm: 0.5, not 1;"), std::string::npos) << differs;
}

// What the program says is enough runs, with the devices refusing every byte beyond it; and less of it has whole
// weights give way to gathered ones.
TEST_F(RankCommands, WholeWeightsThatDoNotFitAreGathered) {
  nlohmann::json config = read_json(fixture_ / "model" / "config.json");
  config.update({{"hidden_size", 256}, {"num_hidden_layers", 12}, {"intermediate_size", 768}});
  config.erase("layer_types");
  write_file(temporary_ / "config.json", config.dump());
  const auto words = [&](const std::string& memory, const CommandWords& more) {
    return with_more({test::binary(),
                      "bench",
                      "step",
                      "--config",
                      (temporary_ / "config.json").string(),
                      "--device",
                      "cpu",
                      "--gpus",
                      "2",
                      "--batch_size",
                      "1",
                      "--max_length",
                      "32",
                      "--steps",
                      "2",
                      "--warmup",
                      "1",
                      "--breakdown",
                      "false",
                      "--json",
                      "--host_memory",
                      memory},
                     more);
  };
  // In bytes, of a host.
  const auto enough = [&](const CommandWords& more) {
    const std::string said = refusal_of(words("1MB", more)), option = "it would fit with --host_memory ";
    const auto at = said.find(option);
    EXPECT_NE(at, std::string::npos) << said;
    EXPECT_NE(said.find("MB", at), std::string::npos) << said;
    return at == std::string::npos ? 0 : std::stod(said.substr(at + option.size())) * 1e6;
  };
  const double whole = enough({"--gathered_layers", "0"}), gathered = enough({"--gathered_layers", "12"});
  ASSERT_LT(gathered, 0.95 * whole);
  const auto run_with = [&](double bytes, const CommandWords& more) {
    return nlohmann::json::parse(result_of(words(std::to_string(static_cast<std::int64_t>(bytes)), more)));
  };
  const auto between = run_with((whole + gathered) / 2, {}), most = run_with(whole, {"--gathered_layers", "0"}),
             least = run_with(gathered, {"--gathered_layers", "12"}),
             split = run_with((whole + gathered) / 2, {"--offload_ratio", "0.5"});
  EXPECT_EQ(between.at("gathered_units"), 12);
  EXPECT_EQ(most.at("gathered_units"), 0);
  EXPECT_EQ(split.at("gathered_units"), 12);
  EXPECT_LE(split.at("host_share"), 0.5);
  for (const auto* result : {&between, &most, &least, &split}) {
    for (const char* memory : {"device_bytes", "pinned_bytes"}) {
      const auto& bytes = result->at("summary").at(memory);
      EXPECT_EQ(bytes.at("measured"), bytes.at("planned")) << memory;
    }
    EXPECT_EQ(result->at("first_loss"), most.at("first_loss"));
    EXPECT_EQ(result->at("last_loss"), most.at("last_loss")) << "the same bits";
  }
  EXPECT_NE(
      refusal_of(words(std::to_string(static_cast<std::int64_t>((whole + gathered) / 2)), {"--gathered_layers", "0"}))
          .find("--gathered_layers -1"),
      std::string::npos);
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
  EXPECT_NE(refusal_of(eval({"--gpus", "20000"})).find("--gpus 20000: the ranks are processes of this host, and"),
            std::string::npos);
  EXPECT_NE(refusal_of(under_mpirun({eval({}), eval({"--max_length", "16"})}))
                .find("rank 1 differs from rank 0 in --max_length: 16, not "),
            std::string::npos);
}

}  // namespace
}  // namespace so::test
