// --rope_scaling: a run on more positions than config.json has is the run of a model whose config.json has them, and
// its model's config.json says so.
#include <gtest/gtest.h>

#include <filesystem>

#include "support/files.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/refusal.h"
#include "support/training_run.h"

namespace so::test {
namespace {

using nlohmann::json;

class RopeScalingRun : public testing::Test {
 protected:
  RopeScalingRun() {
    // Two documents beyond the model's 128 positions.
    std::string lines;
    for (int document = 0; document < 4; ++document) {
      json ids = json::array();
      for (int i = 0; i < (document < 2 ? 200 : 40); ++i) ids.push_back((7 * i + 13 * document + i * i) % 96);
      lines += json{{"input_ids", ids}, {"labels", ids}}.dump() + "\n";
    }
    write_file(data_, lines);
  }
  TrainCommand command(const std::filesystem::path& model, const std::string& name) const {
    TrainCommand c(model, data_, temporary_ / name);
    c.set("lr", "1e-3").set("batch_size", "2").set("max_length", "256").set("max_steps", "2").set("warmup", "0");
    return c.set("cache_dir", (temporary_ / "cache").string());
  }
  std::vector<double> losses(const TrainCommand& c, const std::string& name) const {
    const Outcome o = run(c.words(), temporary_.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    std::vector<double> all;
    for (const auto& line : read_metrics(temporary_ / name)) all.push_back(line.at("loss"));
    return all;
  }
  json exported(const std::string& name) const { return read_json(temporary_ / name / "config.json"); }

  TemporaryDirectory temporary_;
  std::filesystem::path data_ = temporary_ / "data.jsonl";
  const std::filesystem::path model_ = model_fixture("qwen3-tied") / "model";
};

TEST_F(RopeScalingRun, IsTheRunOfAModelWhoseConfigHasIt) {
  const std::vector<double> asked = losses(command(model_, "asked").set("rope_scaling", "yarn"), "asked");
  ASSERT_EQ(asked.size(), 2u);
  const json config = exported("asked");
  EXPECT_EQ(config.at("max_position_embeddings"), 256);
  EXPECT_EQ(config.at("rope_parameters").at("rope_type"), "yarn");
  EXPECT_EQ(config.at("rope_parameters").at("factor"), 2.0);
  EXPECT_EQ(config.at("rope_parameters").at("original_max_position_embeddings"), 128);

  std::filesystem::copy(model_, temporary_ / "own", std::filesystem::copy_options::recursive);
  json own = read_json(model_ / "config.json");
  own["max_position_embeddings"] = 256;
  own["rope_parameters"]["rope_type"] = "yarn";
  own["rope_parameters"]["factor"] = 2.0;
  own["rope_parameters"]["original_max_position_embeddings"] = 128;
  write_file(temporary_ / "own" / "config.json", own.dump());
  EXPECT_EQ(losses(command(temporary_ / "own", "given"), "given"), asked);

  // Another rotation is another run.
  const std::vector<double> plain = losses(command(model_, "plain").set("rope_scaling", "none"), "plain");
  EXPECT_NE(plain, asked);
  EXPECT_EQ(exported("plain").at("max_position_embeddings"), 256);
  EXPECT_EQ(exported("plain").at("rope_parameters"), read_json(model_ / "config.json").at("rope_parameters"));
  expect_refusal(run(command(model_, "asked").set("rope_scaling", "linear").flag("resume").words(), temporary_.path()),
                 {"rope_scaling: \"yarn\" recorded, \"linear\" now"});
}

TEST_F(RopeScalingRun, RefusesBeforeAnythingIsWritten) {
  const auto refused = [&](TrainCommand c, const std::vector<std::string>& needles) {
    expect_refusal(run(c.words(), temporary_.path()), needles);
    EXPECT_FALSE(std::filesystem::exists(temporary_ / "out"));
  };
  refused(command(model_, "out"), {"--max_length 256", "--rope_scaling yarn, linear or none"});
  refused(command(model_, "out").set("rope_scaling", "yarn").set("rope_factor", "1.5"), {"reaches 192", "at least 2"});
  refused(command(model_, "out").set("rope_scaling", "dynamic").set("rope_factor", "2"), {"dynamic", "yarn or linear"});
  refused(command(model_, "out").set("rope_factor", "2"), {"rope_factor", "the model's rotation stays as it is"});
  refused(command(model_fixture("phi3-long") / "model", "out").set("rope_scaling", "none"), {"'longrope'"});
}

TEST_F(RopeScalingRun, PlansAndBenchmarksTakeAnyLength) {
  const std::string config = (model_ / "config.json").string();
  const Outcome plan =
      run({test::binary(), "plan", "--model", config, "--batch_size", "1", "--max_length", "1000"}, temporary_.path());
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_NE(plan.err.find("beyond the 128 positions"), std::string::npos) << plan.err;
  const Outcome step = run({test::binary(), "bench", "step", "--config", config, "--device", "cpu", "--batch_size", "1",
                            "--max_length", "300", "--steps", "1", "--warmup", "0", "--breakdown", "false"},
                           temporary_.path());
  EXPECT_EQ(step.exit_code, 0) << step.err;
}

}  // namespace
}  // namespace so::test
