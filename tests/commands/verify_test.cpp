// superoffload verify, and what a damaged or mixed checkpoint means for --resume.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "support/files.h"
#include "support/label.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/refusal.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

class Verified : public testing::Test {
 protected:
  TrainCommand command() const {
    TrainCommand c(model_fixture("qwen3-tied") / "model", model_fixture("qwen3-tied") / "data.jsonl", out());
    c.set("lr", "1e-3").set("batch_size", "2").set("max_length", "48").set("max_steps", "3").set("save_steps", "1");
    return c.set("cache_dir", (temporary_ / "cache").string());
  }
  void train() const {
    const Outcome o = run(command().words(), temporary_.path());
    ASSERT_EQ(o.exit_code, 0) << o.err;
  }
  Outcome verify(const std::vector<std::string>& words) const {
    std::vector<std::string> all{test::binary(), "verify"};
    all.insert(all.end(), words.begin(), words.end());
    return run(all, temporary_.path());
  }
  fs::path out() const { return temporary_ / "out"; }
  static void flip(const fs::path& file) {
    std::string bytes = read_file(file);
    bytes.at(bytes.size() / 2) ^= 1;
    write_file(file, bytes);
  }
  TemporaryDirectory temporary_;
};

TEST_F(Verified, ALineADirectoryAndTheExitCode) {
  train();
  const auto before = snapshot(out());
  const Outcome whole = verify({out().string()});
  EXPECT_EQ(whole.exit_code, 0) << whole.err << whole.out;
  const auto lines = lines_of(whole.out);
  ASSERT_EQ(lines.size(), 4u) << whole.out;
  EXPECT_TRUE(lines[0].starts_with(out().string() + ": whole, model, ")) << lines[0];
  for (int step = 1; step <= 3; ++step)
    EXPECT_TRUE(
        lines[static_cast<std::size_t>(step)].starts_with((out() / ("checkpoint-" + std::to_string(step))).string() +
                                                          ": whole, checkpoint of step " + std::to_string(step) + ", "))
        << whole.out;

  flip(out() / "checkpoint-2" / "exp_avg.safetensors");
  fs::remove(out() / "generation_config.json");
  const fs::path odd = temporary_ / "run\u009b2J\u202e";  // a name that steers a terminal
  fs::rename(out(), odd);
  const Outcome damaged = verify({"--dir", odd.string(), "--json"});
  fs::rename(odd, out());
  EXPECT_NE(damaged.out.find("run\\u009b2J\\u202e"), std::string::npos) << damaged.out;
  EXPECT_EQ(damaged.exit_code, 1) << damaged.err;
  const auto j = nlohmann::json::parse(damaged.out);
  EXPECT_EQ(j.at("whole"), false);
  ASSERT_EQ(j.at("directories").size(), 4u);
  EXPECT_EQ(j["directories"][0]["damaged"][0]["file"], "generation_config.json");
  EXPECT_EQ(j["directories"][1]["whole"], true);
  EXPECT_EQ(j["directories"][2]["damaged"][0]["file"], "exp_avg.safetensors");
  EXPECT_EQ(j["directories"][2]["step"], 2);
  const Outcome text = verify({(out() / "checkpoint-2").string()});
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_NE(text.out.find("DAMAGED"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("  exp_avg.safetensors: has the checksum "), std::string::npos) << text.out;

  flip(out() / "checkpoint-2" / "exp_avg.safetensors");
  fs::copy_file(out() / "checkpoint-2" / "generation_config.json", out() / "generation_config.json");
  EXPECT_EQ(verify({out().string()}).exit_code, 0);
  EXPECT_TRUE(snapshot(out()) == before) << "verify changes nothing";
}

TEST_F(Verified, NothingToVerifyIsSaid) {
  fs::create_directory(out());
  write_file(out() / "notes.txt", "x");
  expect_refusal(verify({out().string()}), {out().string(), "nothing to verify"});
  expect_refusal(verify({(out() / "none").string()}), {"no such directory"});
  expect_refusal(verify({}), {"missing --dir DIR"});
  expect_refusal(verify({"a", "b"}), {"\"b\""});
}

TEST_F(Verified, AModelWithoutChecksumsIsReadAsFarAsItSays) {
  const Outcome o = verify({(model_fixture("llama-sharded") / "model").string()});
  EXPECT_EQ(o.exit_code, 0) << o.err << o.out;
  EXPECT_NE(o.out.find("no checksums.json"), std::string::npos) << o.out;
  fs::copy(model_fixture("llama-sharded") / "model", out());
  for (const auto& entry : fs::directory_iterator(out()))
    if (entry.path().extension() == ".safetensors") fs::resize_file(entry.path(), fs::file_size(entry.path()) - 4);
  const Outcome cut = verify({out().string()});
  EXPECT_EQ(cut.exit_code, 1) << cut.out;
}

// A damaged checkpoint is refused before anything is used or changed, and the older one that is named works.
SO_LABEL(tsan, "Verified.ResumeRefusesWhatIsDamagedAndNamesWhatIsNot");
TEST_F(Verified, ResumeRefusesWhatIsDamagedAndNamesWhatIsNot) {
  train();
  const fs::path last = out() / "checkpoint-3", older = out() / "checkpoint-2";
  fs::copy_file(older / "exp_avg_sq.safetensors", last / "exp_avg_sq.safetensors",
                fs::copy_options::overwrite_existing);
  const auto before = snapshot(out());
  for (const bool dry : {true, false}) {
    TrainCommand c = command().flag("resume");
    if (dry) c.flag("dry_run");
    expect_refusal(run(c.words(), temporary_.path()),
                   {(last / "exp_avg_sq.safetensors").string(), "is of step 2", "--resume " + older.string()});
  }
  EXPECT_TRUE(snapshot(out()) == before) << "a refusal changes nothing";
  const Outcome o = run(command().set("resume", older.string()).words(), temporary_.path());
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_NE(o.err.find("checked " + older.string()), std::string::npos) << o.err;
  EXPECT_EQ(verify({out().string()}).exit_code, 0) << "the step that was run again takes the mixed one's place";
}

// Its other files say that it was whole once, so it is not passed over as one that never was.
TEST_F(Verified, ResumeRefusesACheckpointThatHasLostItsState) {
  train();
  const fs::path last = out() / "checkpoint-3", older = out() / "checkpoint-2";
  fs::remove(last / "trainer_state.json");
  const auto before = snapshot(out());
  expect_refusal(run(command().flag("resume").words(), temporary_.path()),
                 {(last / "trainer_state.json").string(), "is missing", "--resume " + older.string()});
  for (const fs::path& checkpoint : {older, out() / "checkpoint-1"}) fs::remove(checkpoint / "trainer_state.json");
  expect_refusal(run(command().flag("resume").words(), temporary_.path()),
                 {(last / "trainer_state.json").string(), "is missing"});
  fs::remove_all(out());
  train();
  fs::remove(last / "trainer_state.json");
  const Outcome o = run(command().set("resume", older.string()).words(), temporary_.path());
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_TRUE(fs::exists(out() / "checkpoint-3.kept-1" / "master.safetensors") ||
              fs::exists(out() / "checkpoint-3.kept-1" / "model.safetensors"));
}

TEST_F(Verified, ResumeDoesNotReplaceAFinishedModelWithoutItsCheckpoints) {
  train();
  for (const int step : {1, 2, 3}) fs::remove_all(out() / fmt::format("checkpoint-{}", step));
  const auto before = snapshot(out());
  expect_refusal(run(command().flag("resume").words(), temporary_.path()),
                 {out().string(), "the model of a finished run and none of its checkpoints", "--overwrite_output_dir"});
  EXPECT_TRUE(snapshot(out()) == before);
}

TEST_F(Verified, AFinishedRunThatLacksFilesWritesItsModelAgain) {
  train();
  const std::string weights = read_file(out() / "model.safetensors"), config = read_file(out() / "config.json");
  fs::remove(out() / "config.json");
  fs::resize_file(out() / "model.safetensors", weights.size() - 4);
  for (const char* state : {"damaged", "whole"}) {
    const Outcome o = run(command().flag("resume").words(), temporary_.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    EXPECT_EQ(o.out.find("holds the finished run") != std::string::npos, std::string(state) == "whole") << o.out;
    EXPECT_TRUE(read_file(out() / "model.safetensors") == weights);
    EXPECT_EQ(read_file(out() / "config.json"), config);
  }
}

}  // namespace
}  // namespace so::test
