// --overwrite_output_dir of train and init removes what this program wrote, by its record, and nothing else.
#include "io/run_lock.h"
#include "support/paths.h"
#include "support/refusal.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

class Overwriting : public RefusalTest {
 protected:
  Outcome run_words(const std::vector<std::string>& words) const { return run(words, temporary_.path()); }
  void finish(const std::vector<std::string>& words) const {
    const Outcome outcome = run_words(words);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  }
  TrainCommand training() const {
    TrainCommand c = command();
    return c.set("output_dir", out().string()).set("cache_dir", (temporary_ / "cache").string()).set("save_steps", "1");
  }
  fs::path out() const { return temporary_ / "run"; }
  std::vector<std::string> init(bool overwrite) const {
    std::vector<std::string> words{test::binary(),    "init",         "--config",
                                   config().string(), "--output_dir", out().string()};
    if (overwrite) words.push_back("--overwrite_output_dir");
    return words;
  }
  // Files and directories that a user may have in an output directory, with names near those of a run.
  std::map<std::string, std::string> put_users_files() const {
    std::map<std::string, std::string> mine;
    for (const char* name :
         {"thesis/chapter.tex", "checkpoint-best/model.safetensors", "checkpoint-1.bak/x", "model-q4.safetensors",
          "model.safetensors.bak", "runs/mine.txt", "metrics.jsonl.old", "notes.txt"}) {
      fs::create_directories((out() / name).parent_path());
      write_file(out() / name, std::string("mine: ") + name);
      mine[name] = std::string("mine: ") + name;
    }
    fs::create_directory_symlink(temporary_ / "model", out() / "link");
    return mine;
  }
  void expect_there(const std::map<std::string, std::string>& mine) const {
    for (const auto& [name, text] : mine) {
      ASSERT_TRUE(fs::exists(out() / name)) << name;
      EXPECT_EQ(read_file(out() / name), text);
    }
    EXPECT_TRUE(fs::is_symlink(out() / "link"));
    EXPECT_TRUE(fs::exists(weights()));
  }
};

TEST_F(Overwriting, TrainReplacesItsOwnFilesOnly) {
  finish(training().words());
  ASSERT_TRUE(fs::exists(out() / "checkpoint-2"));
  const auto mine = put_users_files();
  const Outcome second = run_words(training().set("max_steps", "1").flag("overwrite_output_dir").words());
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_NE(second.err.find("replacing the earlier run in " + out().string() + ": "), std::string::npos) << second.err;
  expect_there(mine);
  EXPECT_FALSE(fs::exists(out() / "checkpoint-2")) << "of the earlier run";
  EXPECT_TRUE(fs::exists(out() / "checkpoint-1"));
  EXPECT_EQ(read_metrics(out()).size(), 1u);
}

// A run that cannot begin leaves the earlier one as it is, however late that turns out.
TEST_F(Overwriting, NothingGoesBeforeTheNewRunIsPossible) {
  finish(training().words());
  put_users_files();
  const auto before = snapshot(out());
  const TrainCommand again = training().flag("overwrite_output_dir");
  for (const auto& [option, value] : std::vector<std::pair<const char*, const char*>>{{"adam_epsilon", "1e-60"},
                                                                                      {"weight_decay", "1e308"},
                                                                                      {"lr", "1e300"},
                                                                                      {"host_memory", "1MB"},
                                                                                      {"data", "/nowhere"},
                                                                                      {"max_length", "100000000"}}) {
    expect_refusal(run_words(TrainCommand(again).set(option, value).words()), {});
    EXPECT_TRUE(snapshot(out()) == before) << option;
  }
  fs::resize_file(weights(), fs::file_size(weights()) - 1);
  expect_refusal(run_words(again.words()), {"model.safetensors"});
  EXPECT_TRUE(snapshot(out()) == before);
}

// Files that a user put into a checkpoint are not lost to a run that would write there again.
TEST_F(Overwriting, ACheckpointWithForeignFilesIsRefused) {
  finish(training().words());
  write_file(out() / "checkpoint-1" / "notes.txt", "mine");
  const auto before = snapshot(out());
  expect_refusal(run_words(training().flag("overwrite_output_dir").words()),
                 {"checkpoint-1/notes.txt", "move it away"});
  expect_refusal(run_words(training().flag("overwrite_output_dir").flag("dry_run").words()),
                 {"checkpoint-1/notes.txt"});
  EXPECT_TRUE(snapshot(out()) == before);
  // Nor to one that goes on: rotation passes it over.
  finish(training()
             .set("max_steps", "2")
             .set("save_total_limit", "1")
             .set("resume", (out() / "checkpoint-1").string())
             .words());
  EXPECT_EQ(read_file(out() / "checkpoint-1" / "notes.txt"), "mine");
  // A checkpoint that is written again is set aside first, with all that is in it.
  EXPECT_TRUE(fs::exists(out() / "checkpoint-2.kept-1" / "trainer_state.json"));
  write_file(out() / "checkpoint-2" / "notes.txt", "mine");
  finish(training().set("resume", (out() / "checkpoint-1").string()).words());
  EXPECT_EQ(read_file(out() / "checkpoint-2.kept-2" / "notes.txt"), "mine");
  EXPECT_FALSE(fs::exists(out() / "checkpoint-2" / "notes.txt"));
}

TEST_F(Overwriting, InitReplacesItsOwnFilesOnly) {
  finish(init(false));
  const auto mine = put_users_files();
  expect_refusal(run_words(init(false)), {out().string(), "not empty", "--overwrite_output_dir"});
  const std::string weights = read_file(out() / "model.safetensors");
  auto other = init(true);
  other.insert(other.end(), {"--seed", "7"});
  finish(other);
  EXPECT_NE(read_file(out() / "model.safetensors"), weights);
  expect_there(mine);
  // Under other names of the same directory, too.
  fs::create_directory_symlink(out(), temporary_ / "name");
  for (const fs::path& name : {temporary_ / "name", out() / ".", out() / ""}) {
    other[5] = name.string();
    finish(other);
    expect_there(mine);
  }
}

TEST_F(Overwriting, InitLeavesAForeignModelAlone) {
  fs::create_directories(out());
  const auto mine = put_users_files();
  write_file(out() / "model.safetensors", "weeks of work");
  expect_refusal(run_words(init(true)), {"model.safetensors", "move it away"});
  EXPECT_EQ(read_file(out() / "model.safetensors"), "weeks of work");
  expect_there(mine);
  fs::remove(out() / "model.safetensors");
  finish(init(true));
  expect_there(mine);
}

// The whole directory of a run is not init's to remove either, and what it has from the run goes by name.
TEST_F(Overwriting, InitOverARun) {
  finish(training().words());
  const auto mine = put_users_files();
  finish(init(true));
  expect_there(mine);
  for (const char* name : {"metrics.jsonl", "checkpoint-1", "checkpoint-2"})
    EXPECT_FALSE(fs::exists(out() / name)) << name;
  EXPECT_TRUE(fs::exists(out() / "model.safetensors"));
}

// One run a directory: whatever would write there is refused while another holds it, and what reads is not.
TEST_F(Overwriting, ADirectoryInUseIsRefused) {
  finish(training().words());
  const std::string me = "process " + std::to_string(::getpid());
  {
    const RunLock lock(out());
    const auto before = snapshot(out());
    for (const char* flag : {"overwrite_output_dir", "resume", "dry_run"})
      expect_refusal(run_words(training().flag(flag).words()), {out().string(), "in use by another run: " + me});
    expect_refusal(run_words(init(true)), {me});
    EXPECT_TRUE(snapshot(out()) == before);
    finish({test::binary(), "eval", "--model", out().string(), "--data", data().string(), "--cache_dir",
            (temporary_ / "cache").string(), "--device", "cpu"});
  }
  // A killed run's lock file locks nothing.
  write_file(out() / run_lock_file, "process 1 on elsewhere\n");
  finish(training().flag("overwrite_output_dir").words());
  EXPECT_FALSE(fs::exists(out() / run_lock_file));
}

}  // namespace
}  // namespace so::test
