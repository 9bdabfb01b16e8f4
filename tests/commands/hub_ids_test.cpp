// Models and data sets that are named as on the Hugging Face hub. The cache is a copy of one that huggingface_hub laid
// out; in place of hf stands a script that copies.
#include <gtest/gtest.h>

#include "base/option_table.h"
#include "support/errors.h"
#include "support/hub_cache.h"
#include "support/mpirun.h"
#include "support/process.h"
#include "support/refusal.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

class HubIds : public HubCacheTest {
 protected:
  HubIds() {
    fs::create_directory(here());
    fs::create_directory(programs());
  }
  fs::path here() const { return directory_ / "here"; }          // the working directory
  fs::path programs() const { return directory_ / "programs"; }  // in front of PATH
  fs::path model() const { return model_fixture("llama-sharded") / "model"; }
  std::string commit(const std::string& repository, const std::string& revision = "main") const {
    return read_file(cache() / repository / "refs" / revision);
  }
  fs::path of_cache(const std::string& repository) const {
    return cache() / repository / "snapshots" / commit(repository);
  }

  Outcome run_here(const std::vector<std::string>& arguments, const std::vector<std::string>& variables = {}) const {
    std::vector<std::string> words{"/usr/bin/env"};
    for (const char* name : {"HF_HOME", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"})
      words.insert(words.end(), {"-u", name});
    words.push_back("HF_HUB_CACHE=" + cache().string());
    words.push_back("PATH=" + programs().string() + ":/usr/bin:/bin");
    words.insert(words.end(), variables.begin(), variables.end());
    words.push_back(binary());
    words.insert(words.end(), arguments.begin(), arguments.end());
    return run(words, directory_.path(), {.directory = here()});
  }
  std::vector<std::string> training(const std::string& model, const std::string& data) const {
    return {"train",
            "--model",
            model,
            "--data",
            data,
            "--output_dir",
            (directory_ / "out").string(),
            "--device",
            "cpu",
            "--max_steps",
            "2",
            "--batch_size",
            "2",
            "--max_length",
            "32",
            "--cache_dir",
            (directory_ / "tokens").string()};
  }
  static std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  void write_program(const std::string& name, const std::string& text) const {
    write_file(programs() / name, "#!/bin/sh\n" + text);
    fs::permissions(programs() / name, fs::perms::owner_all);
  }
  // Fetches from the fixture's cache, and leaves its arguments, a line each, in "asked".
  void write_hf() const {
    write_program("hf", "for word; do echo \"$word\"; done >'" + (directory_ / "asked").string() +
                            "'\necho fetched\ncp -a '" + (fs::path(fixtures()) / "hub" / "cache").string() +
                            "'/. \"$HF_HUB_CACHE\"\n");
  }
  std::string asked() const { return read_file(directory_ / "asked"); }
};

TEST_F(HubIds, TrainAsTheDirectoriesDo) {
  const Outcome named = run_here(training("tiny/llama", "tiny/chats"));
  ASSERT_EQ(named.exit_code, 0) << named.err;
  const std::string title = "tiny/llama@" + commit("models--tiny--llama");
  expect_in(named.err, {"model: " + title + ":"});
  const auto start =
      nlohmann::json::parse(lines_of(read_file(directory_ / "out" / "metrics.jsonl")).front()).at("start");
  EXPECT_EQ(start.at("model"), title);
  for (const auto& setting : start.at("settings")) {
    if (setting.at("name") == "data") {
      EXPECT_EQ(setting.at("value"), of_cache("datasets--tiny--chats").string());
    }
  }
  const std::string weights = read_file(directory_ / "out" / "model.safetensors");
  fs::remove_all(directory_ / "out");
  // The same files, by their paths.
  const fs::path data = of_cache("datasets--tiny--chats") / "data";
  const Outcome by_path = run_here(training(model().string(), (data / "train-*").string()));
  ASSERT_EQ(by_path.exit_code, 0) << by_path.err;
  EXPECT_EQ(read_file(directory_ / "out" / "model.safetensors"), weights);
  for (const auto& [name, bytes] : test::snapshot(directory_ / "out"))
    EXPECT_FALSE(fs::is_symlink(directory_ / "out" / name)) << name;
}

TEST_F(HubIds, AreTakenByEachCommand) {
  const std::string tiny = "tiny/llama";
  const fs::path records = of_cache("datasets--tiny--chats") / "data" / "test-00000-of-00001.jsonl";
  const std::vector<std::vector<std::string>> commands = {
      {"eval", "--model", tiny, "--data", "tiny/chats", "--device", "cpu"},
      {"eval", "--model", tiny, "--data", "tiny/chats/data/test-*," + records.parent_path().string() + "/train-00000*",
       "--device", "cpu"},
      {"plan", "--model", "tiny/qwen3", "--hardware", "h200"},
      {"verify", tiny},
      {"bench", "load", "--model", tiny, "--device", "cpu", "--rounds", "1"},
      {"bench", "step", "--config", "tiny/qwen3", "--device", "cpu", "--max_length", "32", "--steps", "2"}};
  for (const auto& command : commands) {
    const Outcome outcome = run_here(command);
    EXPECT_EQ(outcome.exit_code, 0) << join(command, " ") << ": " << outcome.err;
  }
  // A revision, and the small files alone where no weights are needed.
  const Outcome planned = run_here(with(training("tiny/qwen3", "tiny/chats/data/train-*"), {"--dry_run"}));
  EXPECT_EQ(planned.exit_code, 0) << planned.err;
  const Outcome part = run_here(with(training("tiny/qwen3", "tiny/chats@v1/data/train-00000*"), {"--dry_run"}));
  EXPECT_EQ(part.exit_code, 0) << part.err;
}

TEST_F(HubIds, WhatIsNotThereIsRefusedWithTheLineThatHelps) {
  const std::string where = cache().string();
  const auto expect_line = [&](const std::vector<std::string>& command, const std::vector<std::string>& needles) {
    expect_refusal(run_here(command), needles);
  };
  expect_line(
      training("Qwen/Qwen3-0.6B", "tiny/chats"),
      {"--model Qwen/Qwen3-0.6B: there is no such directory here, and no such model in the Hugging Face cache, " +
       where + "; fetch it: hf download Qwen/Qwen3-0.6B, or give --download"});
  expect_line(training("tiny/llama@v2", "tiny/chats"),
              {"has this model, but not its revision v2; fetch it: hf download tiny/llama --revision v2, or"});
  expect_line(training("tiny/llama", "tatsu-lab/alpaca"),
              {"--data tatsu-lab/alpaca: there is no such file or directory here, and no such data set in the",
               "fetch it: hf download tatsu-lab/alpaca --repo-type dataset, or"});
  expect_line(training("tiny/llama", "tiny/chats,allenai/c4@refs/convert/parquet/en"),
              {"hf download allenai/c4 --repo-type dataset --revision refs/convert/parquet --include 'en/*', or"});
  expect_line(
      training("tiny/qwen3", "tiny/chats"),
      {"--model tiny/qwen3: of its snapshot in the Hugging Face cache, " + of_cache("models--tiny--qwen3").string() +
       ", model.safetensors is missing; fetch it: hf download tiny/qwen3, or"});
  expect_line(training("tiny/llama", "tiny/chats@v1"), {"data/test-00000-of-00001.jsonl is missing"});
  expect_line({"plan", "--model", "Qwen/Qwen3-0.6B"},
              {"fetch it: hf download Qwen/Qwen3-0.6B --include config.json, or"});
  expect_line({"tokenize", "--model", "Qwen/Qwen3-0.6B", "--text", "x"},
              {"hf download Qwen/Qwen3-0.6B --include '*.j*'"});
  expect_line({"verify", "Qwen/Qwen3-0.6B"}, {"--dir Qwen/Qwen3-0.6B: ", "hf download Qwen/Qwen3-0.6B"});
  write_file(cache() / "models--tiny--qwen3" / "blobs" / "abc.incomplete", "half");
  expect_line(training("tiny/qwen3", "tiny/chats"),
              {"model.safetensors is missing (a download was interrupted, or goes on)"});
  // What can only be a path is none of the hub's.
  for (const char* path : {"./Qwen/Qwen3", "Qwen3-0.6B", "a/b/c"})
    expect_refusal(run_here(training(path, "tiny/chats")), {std::string(path) + ": no such directory"});
  expect_refusal(run_here(training("tiny/llama", "data/train.jsonl")), {"data/train.jsonl: No such file"});
  EXPECT_FALSE(fs::exists(directory_ / "out"));
}

TEST_F(HubIds, WhatIsHereComesFirst) {
  fs::create_directories(here() / "tiny");
  fs::copy(model_fixture("qwen3-tied") / "model", here() / "tiny" / "llama");
  fs::create_directories(here() / "tiny" / "chats");
  fs::copy_file(model_fixture("qwen3-tied") / "data.jsonl", here() / "tiny" / "chats" / "mine.jsonl");
  const Outcome outcome = run_here(with(training("tiny/llama", "tiny/chats"), {"--dry_run"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* name : {"--model tiny/llama", "--data tiny/chats"})
    expect_in(outcome.err,
              {std::string(name) + ": taken for what is called so here; the Hugging Face cache has it too"});
  expect_in(outcome.err, {"model: tiny/llama: Qwen3ForCausalLM"});
  // Longer names begin with a directory of this one.
  expect_refusal(run_here(training("tiny/llama", "tiny/other/part")), {"tiny/other/part: No such file"});
  fs::rename(here() / "tiny", here() / "other");
  const Outcome alone = run_here(with(training("other/llama", "other/chats"), {"--dry_run"}));
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_EQ(alone.err.find("taken for"), std::string::npos) << alone.err;
}

TEST_F(HubIds, AreFetchedWhereThatIsAskedFor) {
  fs::remove_all(cache());
  fs::create_directory(cache());
  write_hf();
  const auto words = training("tiny/llama", "tiny/chats");
  expect_refusal(run_here(words), {"hf download tiny/llama"});
  EXPECT_FALSE(fs::exists(directory_ / "asked")) << "nothing is fetched unasked";
  expect_refusal(run_here(with(words, {"--download"}), {"HF_HUB_OFFLINE=1"}),
                 {"HF_HUB_OFFLINE is set; unset it before"});
  EXPECT_FALSE(fs::exists(directory_ / "asked"));
  const Outcome outcome = run_here(with(words, {"--download"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(asked(), "download\ntiny/llama\n");
  EXPECT_EQ(outcome.out.find("fetched"), std::string::npos) << "standard output has the command's result alone";
  expect_in(outcome.err, {"--model tiny/llama: hf download tiny/llama\n", "fetched\n"});
  // What is there is not fetched again, nor looked for on the hub.
  fs::remove(directory_ / "asked");
  fs::remove_all(directory_ / "out");
  EXPECT_EQ(run_here(with(words, {"--download"}), {"HF_HUB_OFFLINE=1"}).exit_code, 0);
  EXPECT_FALSE(fs::exists(directory_ / "asked"));
}

TEST_F(HubIds, ADownloadThatFailsIsTheEnd) {
  const auto words = with(training("tiny/gemma", "tiny/chats"), {"--download"});
  write_program("hf", "echo 404 not found >&2\nexit 1\n");
  const Outcome failed = run_here(words);
  expect_refusal(failed,
                 {"--model tiny/gemma: hf download tiny/gemma ended with exit code 1; what it said stands above"});
  expect_in(failed.err, {"404 not found"});
  write_program("hf", "exit 0\n");
  expect_refusal(run_here(words), {"no such model in", "hf download tiny/gemma ended well, and left it so"});
}

// As huggingface_hub stands in a Python without its command; and in none.
TEST_F(HubIds, PythonFetchesWhereThereIsNoCommand) {
  const auto words = with(training("tiny/gemma", "tiny/chats"), {"--download"});
  write_program("python3", "[ \"$1\" = -I ] || exit 9\nshift 3\nfor word; do echo \"[$word]\"; done >'" +
                               (directory_ / "asked").string() + "'\nexit 0\n");
  expect_refusal(run_here(words, {"PATH=" + programs().string()}), {"left it so"});
  EXPECT_EQ(asked(), "[model]\n[tiny/gemma]\n[]\n[]\n");
  write_program("python3", "exit 113\n");
  const Outcome none = run_here(words, {"PATH=" + programs().string()});
  if (none.err.find("exit code") == std::string::npos)  // else the system's Python has the module
    expect_refusal(none,
                   {"--model tiny/gemma: --download needs huggingface_hub, which no python3 here has: pip install"});
}

TEST_F(HubIds, NothingOfTheWorkingDirectoryIsRun) {
  for (const char* name : {"hf", "python3"}) {
    write_file(here() / name, "#!/bin/sh\ntouch '" + (directory_ / "ran").string() + "'\n");
    fs::permissions(here() / name, fs::perms::owner_all);
  }
  write_program("hf", "pwd >'" + (directory_ / "asked").string() + "'; echo \"$PYTHONPATH$PYTHONHOME\" >>'" +
                          (directory_ / "asked").string() + "'; echo \"$HF_HOME\" >>'" +
                          (directory_ / "asked").string() + "'");
  const auto words = with(training("tiny/gemma", "tiny/chats"), {"--download"});
  expect_refusal(run_here(words, {"PATH=.::" + programs().string() + ":/usr/bin:/bin", "PYTHONPATH=.", "PYTHONHOME=x",
                                  "HF_HOME=theirs"}),
                 {"left it so"});
  EXPECT_FALSE(fs::exists(directory_ / "ran"));
  EXPECT_EQ(asked(), "/\n\n" + (here() / "theirs").string() + "\n");
}

TEST_F(HubIds, ASignalReachesTheDownload) {
  write_program("hf", "trap 'touch \"" + (directory_ / "stopped").string() + "\"; exit 1' INT\ntouch '" +
                          (directory_ / "started").string() + "'\nwhile :; do sleep 0.05; done\n");
  std::vector<std::string> words{"/usr/bin/env", "HF_HUB_CACHE=" + cache().string(),
                                 "PATH=" + programs().string() + ":/usr/bin:/bin", binary()};
  Process process(with(words, with(training("tiny/gemma", "tiny/chats"), {"--download"})), directory_.path());
  while (!fs::exists(directory_ / "started")) {
    ASSERT_FALSE(process.ended()) << read_file(directory_ / "stderr.txt");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  process.send(SIGINT);
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.signal, SIGINT) << outcome.err;
  EXPECT_TRUE(fs::exists(directory_ / "stopped"));
}

TEST_F(HubIds, RanksFetchOnce) {
  if (const std::string why = why_no_ranks(); !why.empty()) GTEST_SKIP() << why;
  fs::remove_all(cache());
  fs::create_directory(cache());
  write_program("hf", "echo asked >>'" + (directory_ / "asked").string() + "'\ncp -a '" +
                          (fs::path(fixtures()) / "hub" / "cache").string() + "'/. \"$HF_HUB_CACHE\"\n");
  const auto words = with(training("tiny/llama", "tiny/chats"), {"--download", "--gpus", "2"});
  const Outcome outcome = run_here(words, {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(asked(), "asked\n");
  // Ranks that another has started do not.
  const std::vector<std::string> one = with({"/usr/bin/env", "HF_HUB_CACHE=" + cache().string(), binary()},
                                            with(training("tiny/gemma", "tiny/chats"), {"--download"}));
  const Outcome started = run(under_mpirun({one, one}), directory_.path());
  EXPECT_NE(started.exit_code, 0);
  expect_in(started.err, {"hf download tiny/gemma (--download does so before ranks start, and 2 are running)"});
  EXPECT_EQ(asked(), "asked\n");
}

}  // namespace
}  // namespace so::test
