// Checksums of checkpoints and models: what is damaged or mixed is named, and which checkpoint there is instead.
#include "checkpoint/directory_checks.h"

#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "checkpoint/export.h"
#include "engine_of_model.h"
#include "support/errors.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

class DirectoryChecks : public testing::Test {
 protected:
  // checkpoint-2, -4 and -6 of an engine whose state is another one at each.
  DirectoryChecks() : model_(model_directory("llama-sharded"), DType::bf16) {
    for (const int step : {2, 4, 6}) {
      model_.fill(static_cast<unsigned>(step));
      TrainerState state;
      state.step = state.updates = step;
      state.options = "{}";
      CheckpointWriter writer(model_.engine(), model_.files(), CheckpointDirectory(temporary_.path()), 0);
      writer.start(state);
      writer.wait();
    }
  }
  fs::path at(int step, const std::string& file = "") const {
    const fs::path directory = temporary_ / ("checkpoint-" + std::to_string(step));
    return file.empty() ? directory : directory / file;
  }
  static void flip(const fs::path& file, std::size_t where) {
    std::string bytes = read_file(file);
    bytes.at(where) ^= 4;
    write_file(file, bytes);
  }
  static std::string refusal_of(const fs::path& checkpoint) {
    return refusal([&] { ResumeCheck(checkpoint).require_whole(); });
  }

  TemporaryDirectory temporary_;
  EngineOfModel model_;
};

TEST_F(DirectoryChecks, WholeOnesPass) {
  for (const int step : {2, 4, 6}) {
    const DirectoryCheck check = check_directory(at(step));
    EXPECT_TRUE(check.whole()) << check.damage.front().what;
    EXPECT_TRUE(check.is_checkpoint && check.has_checksums);
    EXPECT_EQ(check.step, step);
    EXPECT_GT(check.bytes, 100'000u);
    EXPECT_NO_THROW(ResumeCheck(at(step)).require_whole());
  }
  EXPECT_EQ(directories_to_check(temporary_.path()), (std::vector{at(2), at(4), at(6)}));
}

TEST_F(DirectoryChecks, ResumingReadsTheListOnce) {
  const int watch = ::inotify_init1(IN_NONBLOCK);
  ASSERT_GE(::inotify_add_watch(watch, at(4, checksums_file).c_str(), IN_OPEN), 0);
  const ResumeCheck check(at(4));
  check.require_whole_state();
  check.require_whole();
  alignas(inotify_event) char events[16 * sizeof(inotify_event)];
  EXPECT_EQ(::read(watch, events, sizeof events), static_cast<ssize_t>(sizeof(inotify_event)));
  ::close(watch);
}

// One flipped bit in any file, where no parser would see it.
TEST_F(DirectoryChecks, OneFlippedBitInAnyFileIsNamed) {
  int files = 0;
  for (const auto& entry : fs::directory_iterator(at(4))) {
    const std::string name = entry.path().filename().string(), bytes = read_file(entry.path());
    flip(entry.path(), bytes.size() - 2);
    expect_in(refusal_of(at(4)), {name, "damaged", "--resume " + at(2).string()});
    if (name == trainer_state_file || name == checksums_file)
      expect_in(refusal([&] { ResumeCheck(at(4)).require_whole_state(); }), {name, "--resume " + at(2).string()});
    else
      EXPECT_NO_THROW(ResumeCheck(at(4)).require_whole_state());
    write_file(entry.path(), bytes);
    ++files;
  }
  EXPECT_GE(files, 8);
  EXPECT_TRUE(check_directory(at(4)).whole());
}

TEST_F(DirectoryChecks, FilesOfAnotherStepAreRefused) {
  for (const auto& entry : fs::directory_iterator(at(6))) {
    const std::string name = entry.path().filename().string(), own = read_file(entry.path());
    const std::string other = read_file(at(4, name));
    if (own == other) continue;
    write_file(entry.path(), other);
    const std::string message = refusal_of(at(6) / "");
    expect_in(message, {at(6).string(), "damaged", "--resume " + at(4).string()});
    if (name != checksums_file) expect_in(message, {at(6, name).string()});
    if (name.starts_with("exp_avg") || name == "master.safetensors") expect_in(message, {"is of step 4", "of step 6"});
    write_file(entry.path(), own);
  }
  // The whole state of another step, its list with it: the moments still tell.
  for (const char* name : {"trainer_state.json", "checksums.json", "master.safetensors"})
    fs::copy_file(at(4, name), at(6, name), fs::copy_options::overwrite_existing);
  const DirectoryCheck check = check_directory(at(6));
  EXPECT_FALSE(check.whole());
}

TEST_F(DirectoryChecks, TheNewestWholeOneIsTheOneNamed) {
  flip(at(6, "exp_avg.safetensors"), 5000);
  expect_in(refusal_of(at(6)), {"--resume " + at(4).string()});
  fs::remove(at(4, "master.safetensors"));
  expect_in(refusal_of(at(6)), {"--resume " + at(2).string()});
  fs::remove(at(2, "exp_avg_sq.safetensors"));
  expect_in(refusal_of(at(6)), {"no whole checkpoint before it"});
  expect_in(refusal_of(at(2)), {"is missing", "no whole checkpoint before it"});
}

TEST_F(DirectoryChecks, WithoutChecksumsOnlyOldOnesPass) {
  fs::remove(at(4, checksums_file));
  expect_in(refusal_of(at(4)), {checksums_file, "is missing"});  // its files say that there was one

  // As a version wrote them that had none: no step in the moments.
  for (const char* name : {"master.safetensors", "exp_avg.safetensors", "exp_avg_sq.safetensors"}) {
    std::vector<RawTensor> tensors;
    for (const Parameter& p : model_.layout().parameters())
      tensors.push_back({p.name, "F32", p.shape, std::string(static_cast<std::size_t>(p.size()) * 4, '\0')});
    write_safetensors(at(4, name), tensors);
  }
  EXPECT_NO_THROW(ResumeCheck(at(4)).require_whole());
  const DirectoryCheck check = check_directory(at(4));
  EXPECT_TRUE(check.whole());
  EXPECT_FALSE(check.has_checksums);
  fs::remove(at(4, "exp_avg.safetensors"));
  EXPECT_FALSE(check_directory(at(4)).whole());
}

TEST_F(DirectoryChecks, ExportsCarryChecksumsAndAForeignWeightFileIsFound) {
  const fs::path out = temporary_ / "out";
  fs::create_directory(out);
  write_file(out / "metrics.jsonl", "");
  export_model(model_.engine(), model_.files(), out, 30'000);
  const DirectoryCheck check = check_directory(out);
  EXPECT_TRUE(check.whole()) << check.damage.front().what;
  EXPECT_TRUE(check.has_checksums && !check.is_checkpoint);
  EXPECT_EQ(directories_to_check(out), std::vector{out});
  const auto list = read_checksums(out);
  EXPECT_FALSE(list->files.contains("metrics.jsonl"));
  EXPECT_TRUE(list->files.contains("model.safetensors.index.json"));

  write_safetensors(out / "model-00099-of-00099.safetensors", {{"more", "F32", {1}, std::string(4, '\0')}});
  const DirectoryCheck mixed = check_directory(out);
  ASSERT_EQ(mixed.damage.size(), 1u);
  EXPECT_EQ(mixed.damage[0].file, "model-00099-of-00099.safetensors");
  EXPECT_NE(mixed.damage[0].what.find("not in checksums.json"), std::string::npos);
}

}  // namespace
}  // namespace so::test
