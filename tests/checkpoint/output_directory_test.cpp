#include "checkpoint/output_directory.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "support/errors.h"
#include "support/files.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

class OutputDirectories : public testing::Test {
 protected:
  using Snapshot = std::map<std::string, std::string>;
  static Snapshot without_lock(Snapshot files) {
    files.erase(run_lock_file);
    return files;
  }
  OutputDirectories() {
    options_.model = (temporary_ / "model").string();
    options_.data = (temporary_ / "data.jsonl").string();
    options_.output_dir = output().string();
    fs::create_directories(options_.model);
    write_file(temporary_ / "model" / "config.json", "{}");
    write_file(options_.data, "{}\n");
  }
  fs::path output() const { return temporary_ / "out"; }
  // A finished run's files, and the user's own among them.
  void fill_output() const {
    for (const char* directory : {"runs", "checkpoint-3", "checkpoint-10", "cache", "mine"})
      fs::create_directories(output() / directory);
    for (const char* file : {"notes.txt", "mine/model.safetensors", "metrics.jsonl.txt", "cache/tokens",
                             "metrics.jsonl", "config.json", "model.safetensors", "model.safetensors.index.json",
                             "model-00001-of-00002.safetensors", "runs/events.out.tfevents.1"})
      write_file(output() / file, std::string("contents of ") + file);
    write_file(output() / "metrics.jsonl", R"({"step":1,"loss":2.5,"reference_tflops":0.1})"
                                           "\n");
    write_file(output() / "runs" / "events.out.tfevents.1", "a record: train/reference_tflops");
    for (const char* step : {"3", "10"})
      write_file(output() / (std::string("checkpoint-") + step) / trainer_state_file, to_json(state()));
  }
  // As the run of options_ records it.
  TrainerState state() const {
    TrainerState s;
    s.data_key = 0x1234;
    s.options = to_json(train_option_table().view(options_));
    return s;
  }
  std::string refused() const {
    const auto before = snapshot(temporary_.path());
    std::string message = refusal([&] { OutputDirectory(options_, options_); });
    EXPECT_TRUE(snapshot(temporary_.path()) == before) << "a refusal changes nothing";
    return message;
  }

  TemporaryDirectory temporary_;
  TrainOptions options_;
};

TEST_F(OutputDirectories, FreshOnesAreTakenAndMade) {
  {
    OutputDirectory absent(options_, options_);
    EXPECT_FALSE(absent.checkpoint());
    EXPECT_FALSE(fs::exists(output())) << "nothing changes before prepare()";
    absent.prepare(1);
    EXPECT_TRUE(fs::is_directory(output()));
    // It holds the directory as long as it lives.
    expect_in(refusal([&] { OutputDirectory(options_, options_); }), {output().string(), "in use by another run"});
  }

  write_file(output() / "notes.txt", "mine");
  options_.overwrite_output_dir = true;
  OutputDirectory(options_, options_).prepare(1);
  EXPECT_EQ(snapshot(output()), (std::map<std::string, std::string>{{"notes.txt", "mine"}}));
}

TEST_F(OutputDirectories, AnEarlierRunIsRefused) {
  fill_output();
  expect_in(refused(),
            {output().string(), "already holds a run (checkpoint-10)", "--resume", "--overwrite_output_dir"});
  for (const char* checkpoint : {"checkpoint-3", "checkpoint-10"}) fs::remove_all(output() / checkpoint);
  expect_in(refused(), {"already holds a run (metrics.jsonl)"});
  // Each file of a run is enough.
  for (const char* file : {"metrics.jsonl", "model.safetensors", "model-00001-of-00002.safetensors", "config.json",
                           "model.safetensors.index.json", "checkpoint-3/x"}) {
    fs::remove_all(output());
    fs::create_directories((output() / file).parent_path());
    write_file(output() / file, "of a run");
    expect_in(refused(), {output().string(), fs::path(file).begin()->string()});
  }
  // Files that others keep in runs/ are not a run of ours.
  fs::remove_all(output());
  fs::create_directories(output() / "runs");
  write_file(output() / "runs" / "events.out.tfevents.1", "of another program");
  EXPECT_NO_THROW(OutputDirectory(options_, options_));
}

// What tells most is named, not the first in the alphabet; and a model alone is no run to be resumed.
TEST_F(OutputDirectories, AModelOfThisProgramIsNoRun) {
  fs::create_directories(output());
  for (const char* file : {"chat_template.jinja", "config.json", "model.safetensors"})
    write_file(output() / file, "{}");
  OwnFiles(output()).add({"chat_template.jinja", "config.json", "model.safetensors"});
  const std::string message = refused();
  expect_in(message, {"already holds a model that this program wrote (model.safetensors)", "--overwrite_output_dir"});
  EXPECT_EQ(message.find("--resume"), std::string::npos) << message;
}

TEST_F(OutputDirectories, OverwritingRemovesTheRunsFilesOnly) {
  fill_output();
  options_.overwrite_output_dir = true;
  const auto before = snapshot(output());
  OutputDirectory directory(options_, options_);
  EXPECT_FALSE(directory.checkpoint());
  directory.prepare(1);
  EXPECT_TRUE(without_lock(snapshot(output())) == before) << "nothing changes before begin()";
  directory.begin();
  EXPECT_EQ(OwnFiles(output()).read(), FileNames{"metrics.jsonl"});
  fs::remove(output() / own_files_record);
  std::vector<std::string> left;
  for (const auto& [name, bytes] : without_lock(snapshot(output()))) {
    left.push_back(name);
    EXPECT_EQ(bytes, before.at(name));
  }
  EXPECT_EQ(left, (std::vector<std::string>{"cache", "cache/tokens", "metrics.jsonl.txt", "mine",
                                            "mine/model.safetensors", "notes.txt"}));
}

// With a record, it decides: not names, not contents.
TEST_F(OutputDirectories, TheRecordDecidesWhatIsOverwritten) {
  options_.overwrite_output_dir = true;
  {
    OutputDirectory first(options_, options_);
    first.prepare(1);
    first.begin();
    first.add({"runs/events.out.tfevents.1", "checkpoint-3/trainer_state.json", "model.safetensors"});
  }
  fs::create_directories(output() / "runs" / "of-another");
  for (const char* name : {"checkpoint-3", "checkpoint-best"}) fs::create_directories(output() / name);
  for (const char* file : {"metrics.jsonl", "runs/events.out.tfevents.1", "checkpoint-3/trainer_state.json",
                           "model.safetensors", "model-q4.safetensors", "checkpoint-best/model.safetensors",
                           "runs/events.out.tfevents.2", "runs/of-another/x", "model.safetensors.bak", "thesis.tex"})
    write_file(output() / file, file);
  OutputDirectory second(options_, options_);
  second.prepare(1);
  second.begin();
  std::vector<std::string> left;
  for (const auto& [name, bytes] : without_lock(snapshot(output())))
    if (bytes != "(directory)") left.push_back(name);
  EXPECT_EQ(left, (std::vector<std::string>{".superoffload-files.json", "checkpoint-best/model.safetensors",
                                            "model-q4.safetensors", "model.safetensors.bak",
                                            "runs/events.out.tfevents.2", "runs/of-another/x", "thesis.tex"}));
}

TEST_F(OutputDirectories, WhatOthersWroteUnderARunsNamesIsRefused) {
  options_.overwrite_output_dir = true;
  {
    OutputDirectory first(options_, options_);
    first.prepare(1);
    first.begin();
  }
  for (const bool recorded : {true, false}) {
    if (!recorded) fs::remove(output() / own_files_record);
    for (const char* name : {"model.safetensors", "model-00001-of-00002.safetensors", "config.json",
                             "checkpoint-3/notes", "model.safetensors.index.json", "metrics.jsonl"}) {
      const fs::path file = output() / name;
      if (recorded && file.filename() == "metrics.jsonl") continue;  // the record has it
      fs::create_directories(file.parent_path());
      write_file(file, "mine");
      expect_in(refused(), {file.string(), "move it away"});
      fs::remove_all(output() / *fs::path(name).begin());
    }
    fs::create_symlink(options_.data, output() / "config.json");
    expect_in(refused(), {(output() / "config.json").string(), "move it away"});
    fs::remove(output() / "config.json");
    fs::create_directory_symlink(options_.model, output() / "runs");
    expect_in(refused(), {(output() / "runs").string(), "move it away"});
    fs::remove(output() / "runs");
    fs::create_directory(output() / "export");  // where the model is made at the end
    expect_in(refused(), {(output() / "export").string(), "move it away"});
    fs::remove(output() / "export");
    // A small file that the export copies beside the weights: refused where its bytes would be lost.
    write_file(temporary_ / "model" / "tokenizer.json", "the model's");
    write_file(output() / "tokenizer.json", "the user's");
    expect_in(refused(), {(output() / "tokenizer.json").string()});
    write_file(output() / "tokenizer.json", "the model's");
    EXPECT_NO_THROW(OutputDirectory(options_, options_));
  }
}

TEST_F(OutputDirectories, ADamagedRecordIsRefused) {
  fill_output();
  write_file(output() / own_files_record, "{");
  for (const bool overwrite : {false, true}) {
    options_.overwrite_output_dir = overwrite;
    expect_in(refused(), {own_files_record, "damaged"});
  }
  options_.overwrite_output_dir = false;
  options_.resume = "latest";
  expect_in(refused(), {own_files_record, "damaged"});
}

TEST_F(OutputDirectories, AResumedOldDirectoryIsRecorded) {
  fill_output();
  options_.resume = "latest";
  OutputDirectory directory(options_, options_);
  directory.prepare(1);
  directory.begin();
  EXPECT_EQ(OwnFiles(output()).read(),
            (FileNames{"checkpoint-10/trainer_state.json", "checkpoint-3/trainer_state.json", "config.json",
                       "metrics.jsonl", "model-00001-of-00002.safetensors", "model.safetensors",
                       "model.safetensors.index.json", "runs/events.out.tfevents.1"}));
}

TEST_F(OutputDirectories, ADryRunRefusesWhatCannotBeWritten) {
  const auto before = snapshot(temporary_.path());
  OutputDirectory(options_, options_).require_usable(1);
  expect_in(refusal([&] {
              OutputDirectory(options_, options_).require_usable(std::numeric_limits<std::uint64_t>::max() / 2);
            }),
            {"space"});
  options_.output_dir = (temporary_ / "data.jsonl" / "out").string();
  expect_in(refusal([&] { OutputDirectory(options_, options_).require_usable(1); }), {options_.output_dir});
  EXPECT_TRUE(snapshot(temporary_.path()) == before);
}

TEST_F(OutputDirectories, TheModelsOwnDirectoryIsRefused) {
  fs::create_directory_symlink(options_.model, temporary_ / "link");
  for (const bool overwrite : {false, true}) {
    options_.overwrite_output_dir = overwrite;
    for (const fs::path& name : {temporary_ / "model", temporary_ / "model" / "." / "..", temporary_ / "link"}) {
      options_.output_dir = (name.filename() == ".." ? name / "model" : name).string();
      expect_in(refused(), {options_.output_dir, "--output_dir", "model"});
    }
  }
}

// Overwriting would remove what the run is about to read.
TEST_F(OutputDirectories, InputsAmongTheFilesToOverwriteAreRefused) {
  fill_output();
  options_.overwrite_output_dir = true;
  const TrainOptions plain = options_;
  options_.model = (output() / "checkpoint-3").string();
  expect_in(refused(), {"--model", options_.model, "--overwrite_output_dir"});
  fs::create_directory_symlink(options_.model, temporary_ / "link");
  options_.model = (temporary_ / "link").string();
  expect_in(refused(), {"--model", options_.model, "--overwrite_output_dir"});
  options_ = plain;
  options_.data = (output() / "runs" / "events.out.tfevents.1").string();
  expect_in(refused(), {"--data", options_.data});
  options_ = plain;
  options_.eval_data = (output() / "metrics.jsonl").string();
  expect_in(refused(), {"--eval_data", *options_.eval_data});
  options_ = plain;
  options_.data = (output() / "notes.txt").string();  // stays, so it may be read
  options_.model = (output() / "mine").string();
  OutputDirectory directory(options_, options_);
  directory.prepare(1);
  directory.begin();
  EXPECT_TRUE(fs::exists(output() / "mine" / "model.safetensors"));
}

TEST_F(OutputDirectories, ResumesFromTheNewestCompleteCheckpoint) {
  fill_output();
  fs::create_directories(output() / "checkpoint-11");  // without its state: incomplete
  options_.resume = "latest";
  const auto before = snapshot(output());
  OutputDirectory directory(options_, options_);
  ASSERT_TRUE(directory.checkpoint());
  EXPECT_EQ(directory.checkpoint()->path, output() / "checkpoint-10");
  EXPECT_EQ(directory.checkpoint()->step, 10);
  directory.prepare(1);
  EXPECT_TRUE(without_lock(snapshot(output())) == before) << "what is resumed stays";
}

TEST_F(OutputDirectories, ResumeWithoutACheckpointStartsAfresh) {
  options_.resume = "latest";
  EXPECT_FALSE(OutputDirectory(options_, options_).checkpoint());  // nor a directory
  fill_output();
  fs::remove_all(output() / "checkpoint-3");
  fs::remove_all(output() / "checkpoint-10");
  OutputDirectory directory(options_, options_);
  EXPECT_FALSE(directory.checkpoint());
  EXPECT_TRUE(fs::exists(output() / "metrics.jsonl"));
  directory.prepare(1);
  directory.begin();
  EXPECT_FALSE(fs::exists(output() / "metrics.jsonl")) << "its steps will be run again";
  EXPECT_TRUE(fs::exists(output() / "notes.txt"));
}

TEST_F(OutputDirectories, AnExplicitCheckpointMustBeOne) {
  fill_output();
  options_.resume = (output() / "checkpoint-3").string();
  const OutputDirectory directory(options_, options_);
  ASSERT_TRUE(directory.checkpoint());
  EXPECT_EQ(directory.checkpoint()->path, fs::path(*options_.resume));

  fs::remove(output() / "checkpoint-3" / trainer_state_file);
  expect_in(refused(), {*options_.resume, trainer_state_file});
  options_.resume = (output() / "checkpoint-4").string();
  expect_in(refused(), {"--resume " + *options_.resume, "no such directory", "the latest checkpoint there is"});
  options_.resume = "true";
  expect_in(refused(), {"--resume true", "give latest"});
  options_.resume = std::string(300, 'x');  // no name a file system takes
  expect_in(refused(), {*options_.resume});
}

TEST_F(OutputDirectories, ImpossiblePathsAreRefused) {
  options_.output_dir = options_.data;
  expect_in(refused(), {options_.output_dir, "not a directory"});
  options_.output_dir = (temporary_ / std::string(300, 'x')).string();
  expect_in(refused(), {options_.output_dir});
  fs::create_symlink("loop", temporary_ / "loop");
  options_.output_dir = (temporary_ / "loop").string();
  expect_in(refusal([&] { OutputDirectory(options_, options_); }), {options_.output_dir, "symbolic links"});
}

TEST_F(OutputDirectories, PrepareRefusesWhatTheDiskCannotHold) {
  OutputDirectory directory(options_, options_);
  expect_in(refusal([&] { directory.prepare(std::numeric_limits<std::uint64_t>::max() / 2); }),
            {output().string(), "space"});
}

TEST_F(OutputDirectories, RequireSameRunNamesEachDifference) {
  fill_output();
  const TrainerState recorded = state();
  options_.resume = "latest";
  options_.save_steps = 7;  // free to change, like the two after it
  options_.cpu_threads = 1;
  options_.output_dir = output().string();
  {
    const OutputDirectory directory(options_, options_);
    EXPECT_NO_THROW(directory.require_same_run(recorded, options_, recorded.data_key));
    const std::string other_data =
        refusal([&] { directory.require_same_run(recorded, options_, recorded.data_key + 1); });
    expect_in(other_data, {"checkpoint-10", trainer_state_file, options_.data});
  }
  options_.lr = 0.5;
  options_.seed = 43;
  options_.packing = true;
  const OutputDirectory directory(options_, options_);
  const std::string message = refusal([&] { directory.require_same_run(recorded, options_, recorded.data_key); });
  expect_in(message, {"checkpoint-10", trainer_state_file, "lr: 1e-05 recorded, 0.5 now", "seed: 42 recorded, 43 now",
                      "packing: false recorded, true now"});
  for (const char* same : {"save_steps", "cpu_threads", "batch_size"})
    EXPECT_EQ(message.find(same), std::string::npos) << message;
}

}  // namespace
}  // namespace so::test
