// Training on several files, with weights, and on what a split leaves.
#include <gtest/gtest.h>

#include <sstream>

#include "support/files.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/python.h"
#include "support/refusal.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class SeveralFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::istringstream lines(read_file(model_fixture("qwen3-tied") / "data.jsonl"));
    std::string line;
    std::string texts[3];
    for (int i = 0; std::getline(lines, line); ++i) texts[std::min(i / 30, 2)] += line + "\n";
    fs::create_directory(temporary_ / "parts");
    for (int i = 0; i < 3; ++i) write_file(part(i), texts[i]);
    write_file(whole_, texts[0] + texts[1] + texts[2]);
  }
  fs::path part(int i) const { return temporary_ / "parts" / (std::to_string(i) + ".jsonl"); }
  TrainCommand command(const std::string& output, const std::string& data) const {
    TrainCommand c(model_fixture("qwen3-tied") / "model", data, temporary_ / output);
    c.set("lr", "1e-3").set("batch_size", "8").set("max_length", "32").set("shuffle", "true").set("max_steps", "6");
    return c.set("save_steps", "3").set("cache_dir", (temporary_ / "cache").string());
  }
  Outcome finish(const TrainCommand& c) const {
    Outcome o = run(c.words(), temporary_.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return o;
  }
  std::string weights(const std::string& output) const { return read_file(temporary_ / output / "model.safetensors"); }
  std::vector<json> losses(const std::string& output, const char* key) const {
    std::vector<json> all;
    for (const json& line : read_metrics(temporary_ / output))
      if (line.contains(key)) all.push_back(line.at(key));
    return all;
  }

  TemporaryDirectory temporary_;
  const fs::path whole_ = temporary_ / "whole.jsonl";
};

// The order of an epoch goes by the places of records, so files in a row are as one.
TEST_F(SeveralFiles, TrainAsOneFileWithAllTheirRecords) {
  finish(command("whole", whole_.string()));
  const Outcome o = finish(command("directory", (temporary_ / "parts").string()));
  EXPECT_NE(o.err.find("data of an epoch: 120 records of 3 files"), std::string::npos) << o.err;
  EXPECT_TRUE(weights("directory") == weights("whole"));
  finish(command("pattern", (temporary_ / "parts" / "[0-9].jsonl").string()));
  EXPECT_TRUE(weights("pattern") == weights("whole"));
  finish(command("list", part(0).string() + "," + part(1).string() + "," + part(2).string()));
  EXPECT_TRUE(weights("list") == weights("whole"));
  finish(command("other", part(1).string() + "," + part(0).string() + "," + part(2).string()));
  EXPECT_FALSE(weights("other") == weights("whole"));
  std::ptrdiff_t caches = 0;
  for (const auto& entry : fs::directory_iterator(temporary_ / "cache"))
    caches += entry.path().extension() == ".tokens";
  EXPECT_EQ(caches, 4) << "one for each file, however they are named together";

  const auto loss = [&](const std::string& data) {
    const Outcome e = run({binary(), "eval", "--model", (temporary_ / "whole").string(), "--data", data, "--device",
                           "cpu", "--cache_dir", (temporary_ / "cache").string(), "--json"},
                          temporary_.path());
    EXPECT_EQ(e.exit_code, 0) << e.err;
    return e.out;
  };
  EXPECT_EQ(loss((temporary_ / "parts").string()), loss(whole_.string()));
}

// A table is a file like another: beside JSONL, with weights, a split and a resumption.
TEST_F(SeveralFiles, MayBeTables) {
  if (!find_pyarrow()) GTEST_SKIP() << kNoPyarrow;
  const fs::path tables = fs::path(fixtures()) / "data" / "tables";
  const auto data = [&](const char* name) { return (tables / name).string() + "," + part(0).string(); };
  const auto of = [&](const std::string& output, const char* tokens) {
    TrainCommand c = command(output, data(tokens));
    return c.set("data_weights", "2.5,1").set("validation_split", "0.1").set("eval_steps", "3");
  };
  finish(of("lines", "tokens.jsonl"));
  finish(of("table", "tokens.parquet"));
  EXPECT_TRUE(weights("table") == weights("lines"));
  EXPECT_EQ(losses("table", "eval_loss"), losses("lines", "eval_loss"));

  fs::remove_all(temporary_ / "table" / "checkpoint-6");
  finish(of("table", "tokens.parquet").flag("resume"));
  EXPECT_TRUE(weights("table") == weights("lines"));
}

TEST_F(SeveralFiles, ResumeOnTheSameFilesOnly) {
  const std::string all = (temporary_ / "parts").string();
  const TrainCommand c =
      command("run", all).set("data_weights", "1.5").set("validation_split", "0.1").set("eval_steps", "3");
  const Outcome o = finish(c);
  EXPECT_NE(o.err.find("; 12 records are held out for evaluation"), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("data of an epoch: 162 records"), std::string::npos) << o.err;
  const std::string end = weights("run");
  const auto evaluations = losses("run", "eval_loss");
  EXPECT_EQ(evaluations.size(), 3u);
  fs::remove_all(temporary_ / "run" / "checkpoint-6");
  const auto refused = [&](const TrainCommand& other, const char* why) {
    expect_refusal(run(TrainCommand(other).flag("resume").words(), temporary_.path()), {why});
  };
  refused(TrainCommand(c).set("validation_split", "12"), "validation_split: 0.1 recorded");
  refused(TrainCommand(c).set("data_weights", "2"), "data_weights: ");
  refused(TrainCommand(c).set("data", part(0).string()), "other data");
  finish(TrainCommand(c).flag("resume"));
  EXPECT_TRUE(weights("run") == end);
  EXPECT_EQ(losses("run", "eval_loss"), evaluations);
}

TEST_F(SeveralFiles, RefusalsNameTheOption) {
  const auto refused = [&](const TrainCommand& c, std::initializer_list<std::string> why) {
    expect_refusal(run(c.words(), temporary_.path()), why);
    EXPECT_FALSE(fs::exists(temporary_ / "out"));
  };
  const TrainCommand c = command("out", whole_.string());
  refused(TrainCommand(c).set("validation_split", "120"), {"--validation_split 120 leaves nothing to train on"});
  refused(TrainCommand(c).set("validation_split", "2.5"), {"--validation_split 2.5 is neither"});
  refused(TrainCommand(c).set("validation_split", "0.1").set("eval_data", whole_.string()), {"give one of them"});
  refused(TrainCommand(c).set("data_weights", "1,2"), {"--data_weights", "weights: 2; parts of --data: 1"});
  refused(TrainCommand(c).set("data", part(0).string() + "," + part(0).string()), {"--data names", "twice"});
  refused(TrainCommand(c).set("data", (temporary_ / "*.parquet").string()), {"--data", "no file has such a name"});
  refused(TrainCommand(c).set("data", part(0).string() + "," + (temporary_ / "absent").string()), {"absent"});
}

}  // namespace
}  // namespace so::test
