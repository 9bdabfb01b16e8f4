// Directories that go away, move or change while a run trains: nothing of the run is lost.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "support/files.h"
#include "support/process.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

class LostDirectories : public testing::Test {
 protected:
  LostDirectories() {
    fs::create_directory(model_);
    for (const char* name : {"config.json", "model.safetensors"})
      fs::copy_file(fixture_ / "model" / name, model_ / name);
  }
  // Trains, calls `meddle` after the first step, and lets the run end.
  template <class Meddle>
  Outcome train(const Meddle& meddle) const {
    TrainCommand c(model_, fixture_ / "data.jsonl", output_);
    c.set("dtype", "bf16").set("max_length", "48").set("batch_size", "4").set("max_steps", "300");
    c.set("cpu_threads", "1").set("cache_dir", (temporary_ / "cache").string());
    Process process(c.words(), temporary_.path());
    while (steps_recorded(output_) == 0 && !process.ended()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    meddle();
    return process.wait();
  }

  const fs::path fixture_ = model_fixture("qwen3-tied");
  TemporaryDirectory temporary_;
  const fs::path model_ = temporary_ / "model", output_ = temporary_ / "run";
};

TEST_F(LostDirectories, AModelWithoutATokenizerMayGo) {
  const Outcome o = train([&] { fs::remove_all(model_); });
  EXPECT_EQ(o.exit_code, 0) << o.err;
  for (const char* name : {"config.json", "model.safetensors", "checkpoint-300/model.safetensors"})
    EXPECT_TRUE(fs::exists(output_ / name)) << name;
}

TEST_F(LostDirectories, SmallFilesAreThoseThatTheRunBeganWith) {
  write_file(model_ / "chat_template.jinja", "{{ messages }}");
  const Outcome o = train([&] { write_file(model_ / "chat_template.jinja", "another"); });
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(read_file(output_ / "chat_template.jinja"), "{{ messages }}");
}

// One that is too large to be held in memory, and is cut short: the model cannot be whole, and its weights are kept.
TEST_F(LostDirectories, ACheckpointDoesWithoutAFileThatCannotBeRead) {
  const fs::path large = model_ / "tokenizer.model";
  write_file(large, "");
  fs::resize_file(large, 65'000'000);
  const Outcome o = train([&] { fs::resize_file(large, 10); });
  EXPECT_EQ(o.exit_code, 2) << o.err;
  EXPECT_NE(o.err.find("checkpoint-300 is saved without tokenizer.model: "), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("checkpoint-300 is one, with its weights: give that as --model"), std::string::npos) << o.err;
  EXPECT_FALSE(fs::exists(output_ / "model.safetensors"));
  const Outcome verified = run({test::binary(), "verify", (output_ / "checkpoint-300").string()}, temporary_.path());
  EXPECT_EQ(verified.exit_code, 0) << verified.err << verified.out;
}

TEST_F(LostDirectories, AMovedOutputStaysTheRuns) {
  const fs::path moved = temporary_ / "moved";
  const Outcome o = train([&] {
    fs::rename(output_, moved);
    fs::create_directory(output_);
    write_file(output_ / "config.json", "of another");
  });
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_NE(o.err.find((output_.string() + " is now " + moved.string())), std::string::npos) << o.err;
  EXPECT_NE(o.out.find(moved.string()), std::string::npos) << o.out;
  for (const char* name : {"config.json", "model.safetensors", "checkpoint-300/trainer_state.json"})
    EXPECT_TRUE(fs::exists(moved / name)) << name;
  EXPECT_FALSE(fs::exists(moved / ".superoffload-lock"));
  EXPECT_EQ(read_metrics(moved).back().at("step"), 300);
  EXPECT_EQ(snapshot(output_), (std::map<std::string, std::string>{{"config.json", "of another"}}));
}

TEST_F(LostDirectories, AnOutputThatWasRemovedIsMadeAgain) {
  const Outcome o = train([&] { fs::remove_all(output_); });
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_NE(o.err.find(output_.string() + " was removed while it was in use"), std::string::npos) << o.err;
  EXPECT_TRUE(fs::exists(output_ / "checkpoint-300/trainer_state.json"));
  EXPECT_TRUE(fs::exists(output_ / "model.safetensors"));
}

}  // namespace
}  // namespace so::test
