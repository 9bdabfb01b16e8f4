// A run that is killed at any moment and resumed must end in the same bytes as one that was left alone.
#include <gtest/gtest.h>
#include <sys/inotify.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>

#include "support/files.h"
#include "support/label.h"
#include "support/process.h"
#include "support/training_run.h"

namespace so::test {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

// Counts what happens to the files below a directory, new subdirectories included, without waiting.
class Watcher {
 public:
  explicit Watcher(const std::filesystem::path& root) : fd_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    if (fd_ < 0) throw std::runtime_error("inotify_init1 failed");
    add(root);
  }
  ~Watcher() { ::close(fd_); }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  // Events so far of making, writing, renaming and removing, those of metrics.jsonl aside: what is left is saving.
  int saving_events() {
    alignas(inotify_event) char buffer[16384];
    for (ssize_t n; (n = ::read(fd_, buffer, sizeof buffer)) > 0;) {
      for (const char* p = buffer; p < buffer + n;) {
        const auto* event = reinterpret_cast<const inotify_event*>(p);
        p += sizeof(inotify_event) + event->len;
        const std::string name = event->len > 0 ? event->name : "";
        if (name.starts_with("metrics.jsonl")) continue;
        ++count_;
        if ((event->mask & IN_ISDIR) != 0 && (event->mask & IN_CREATE) != 0) add(directories_[event->wd] / name);
      }
    }
    return count_;
  }

 private:
  void add(const std::filesystem::path& directory) {
    const int wd = ::inotify_add_watch(
        fd_, directory.c_str(), IN_CREATE | IN_MODIFY | IN_CLOSE_WRITE | IN_MOVED_FROM | IN_MOVED_TO | IN_DELETE);
    if (wd >= 0) directories_[wd] = directory;  // else it is gone already
  }

  int fd_;
  int count_ = 0;
  std::map<int, std::filesystem::path> directories_;
};

// Step, loss, norm and learning rate of each line; times differ from run to run.
std::vector<json> results_of_steps(const std::filesystem::path& output) {
  std::vector<json> all;
  for (const json& m : read_metrics(output)) all.push_back({m.at("step"), m.at("loss"), m.at("grad_norm"), m.at("lr")});
  return all;
}

void expect_no_leftovers(const std::filesystem::path& output) {
  for (const auto& entry : std::filesystem::directory_iterator(output))
    EXPECT_EQ(entry.path().filename().string().find(".tmp"), std::string::npos) << entry.path() << " was left behind";
}

class KillResume : public testing::Test {
 protected:
  // Shuffled, over several epochs, so that the sampler's place counts too.
  TrainCommand command(const std::string& output, int steps) const {
    TrainCommand c(fixture_ / "model", fixture_ / "data.jsonl", temporary_ / output);
    c.set(read_json(fixture_ / "expected.json").at("train").at("options"));
    c.set("max_steps", std::to_string(steps)).set("num_train_epochs", std::to_string((steps + 19) / 20));
    return c.set("shuffle", "true").set("save_steps", "3").set("save_total_limit", "2");
  }
  static TrainCommand resumed(TrainCommand c) { return c.flag("resume"); }

  void finish(const TrainCommand& c) const {
    const Outcome o = run(c.words(), temporary_.path());
    ASSERT_EQ(o.exit_code, 0) << o.err;
  }
  void expect_same_end(const std::string& output, const std::string& reference) const {
    EXPECT_TRUE(read_file(temporary_ / output / "model.safetensors") ==
                read_file(temporary_ / reference / "model.safetensors"))
        << "the weights differ from those of the uninterrupted run";
    EXPECT_EQ(results_of_steps(temporary_ / output), results_of_steps(temporary_ / reference));
    expect_no_leftovers(temporary_ / output);
  }
  std::filesystem::path latest_checkpoint(const std::string& output) const {
    std::filesystem::path latest;
    int step = -1;
    for (const auto& entry : std::filesystem::directory_iterator(temporary_ / output)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("checkpoint-") || name.find_first_not_of("0123456789", 11) != std::string::npos) continue;
      if (std::stoi(name.substr(11)) > step) {
        step = std::stoi(name.substr(11));
        latest = entry.path();
      }
    }
    return latest;
  }

  const std::filesystem::path fixture_ = model_fixture("qwen3-tied");
  TemporaryDirectory temporary_;
};

SO_LABEL(sweep, "KillResume.KilledTwentyTimesEndsInTheSameBytes");
SO_LABEL(tsan, "KillResume.*");
TEST_F(KillResume, KilledTwentyTimesEndsInTheSameBytes) {
  constexpr int kSteps = 40, kKills = 20;
  const auto start = Clock::now();
  ASSERT_NO_FATAL_FAILURE(finish(command("reference", kSteps)));
  const std::chrono::duration<double> whole = Clock::now() - start;

  // Even kills come at a random moment of the run, odd ones at a random event of saving: the making, writing, renaming
  // and removing of the checkpoints' files.
  std::mt19937 random(20240607);
  int kills = 0, kills_while_saving = 0, resumes = 0, finished = 0;
  for (int attempt = 0; kills < kKills; ++attempt) {
    ASSERT_LT(attempt, 10 * kKills) << "the runs end before they can be killed";
    std::filesystem::create_directories(temporary_ / "killed");
    if (!latest_checkpoint("killed").empty()) ++resumes;
    Watcher watcher(temporary_ / "killed");
    const bool while_saving = kills % 2 == 1;
    const int event = std::uniform_int_distribution(1, 60)(random);
    const auto moment = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           whole * std::uniform_real_distribution(0.0, 0.9)(random));
    Process process(resumed(command("killed", kSteps)).words(), temporary_.path());
    bool killed = false;
    while (!killed && !process.ended()) {
      if (while_saving ? watcher.saving_events() >= event : Clock::now() >= moment) {
        process.send(SIGKILL);
        killed = true;
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
    const Outcome o = process.wait();
    if (o.signal == SIGKILL) {
      ++kills;
      kills_while_saving += while_saving ? 1 : 0;
      continue;
    }
    ASSERT_EQ(o.exit_code, 0) << o.err;  // it was faster; resumed from wherever the last kill left it
    ++finished;
    expect_same_end("killed", "reference");
    std::filesystem::remove_all(temporary_ / "killed");
  }
  ASSERT_NO_FATAL_FAILURE(finish(resumed(command("killed", kSteps))));
  expect_same_end("killed", "reference");
  EXPECT_GT(kills_while_saving, 0);
  EXPECT_GT(resumes, 0) << "no kill left a checkpoint behind, so nothing was resumed";
  RecordProperty("finished_in_between", finished);
  RecordProperty("resumes", resumes);
}

class Interrupt : public KillResume, public testing::WithParamInterface<std::string> {};

// Ctrl-C: save, leave with 130, and go on later as if nothing had been.
SO_LABEL(sweep, "DTypes/Interrupt.*/bf16");
SO_LABEL(tsan, "DTypes/Interrupt.*");
TEST_P(Interrupt, SavesAndResumes) {
  constexpr int kSteps = 400;  // long enough that the signal comes well before the end
  const auto with_dtype = [&](const std::string& output) {
    return command(output, kSteps).set("dtype", GetParam()).set("save_steps", "100000");
  };
  ASSERT_NO_FATAL_FAILURE(finish(with_dtype("reference")));

  {
    Process process(with_dtype("interrupted").words(), temporary_.path());
    while (!process.ended() && steps_recorded(temporary_ / "interrupted") < 5)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    process.send(SIGINT);
    const Outcome o = process.wait();
    ASSERT_EQ(o.signal, 0) << "SIGINT ended it instead of being handled";
    ASSERT_EQ(o.exit_code, 130) << o.err;
  }
  const auto checkpoint = latest_checkpoint("interrupted");
  ASSERT_FALSE(checkpoint.empty()) << "nothing was saved";
  const int step = std::stoi(checkpoint.filename().string().substr(11));
  EXPECT_GE(step, 5);
  EXPECT_LT(step, kSteps);
  EXPECT_EQ(read_metrics(temporary_ / "interrupted").size(), static_cast<std::size_t>(step))
      << "the log and the checkpoint must tell of the same steps";
  expect_no_leftovers(temporary_ / "interrupted");

  ASSERT_NO_FATAL_FAILURE(finish(resumed(with_dtype("interrupted"))));
  expect_same_end("interrupted", "reference");
}

INSTANTIATE_TEST_SUITE_P(DTypes, Interrupt, testing::Values("fp32", "bf16"), [](const auto& i) { return i.param; });

// Each file of a checkpoint, cut in half in turn: the run refuses and names the file, or ends in the right bytes
// because it did not need it. It never goes on with half.
TEST_F(KillResume, DamagedCheckpointIsRefused) {
  constexpr int kSteps = 12;
  ASSERT_NO_FATAL_FAILURE(finish(command("reference", kSteps)));
  // The state as of step 9, which is what a run killed after it leaves.
  std::filesystem::copy(temporary_ / "reference", temporary_ / "source", std::filesystem::copy_options::recursive);
  for (const char* name : {"model.safetensors", "config.json", "checkpoint-12"})
    std::filesystem::remove_all(temporary_ / "source" / name);
  const auto checkpoint = latest_checkpoint("source");
  ASSERT_EQ(checkpoint.filename().string(), "checkpoint-9");

  int refused = 0;
  for (const auto& [name, bytes] : snapshot(checkpoint)) {
    if (bytes == "(directory)" || bytes.size() < 2) continue;
    std::filesystem::remove_all(temporary_ / "damaged");
    std::filesystem::copy(temporary_ / "source", temporary_ / "damaged", std::filesystem::copy_options::recursive);
    write_file(temporary_ / "damaged" / "checkpoint-9" / name, bytes.substr(0, bytes.size() / 2));
    const Outcome o = run(resumed(command("damaged", kSteps)).words(), temporary_.path());
    if (o.exit_code == 0) {
      expect_same_end("damaged", "reference");
      continue;
    }
    ++refused;
    EXPECT_EQ(o.exit_code, 2) << name << ": " << o.err;
    EXPECT_NE(o.err.find(name), std::string::npos) << "the message does not name " << name << ": " << o.err;
  }
  EXPECT_GE(refused, 1) << "cutting the optimizer's state in half must be noticed";
}

}  // namespace
}  // namespace so::test
