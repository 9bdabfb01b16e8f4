// Signals to a running program, and a terminal that goes away.
#include <gtest/gtest.h>
#include <sys/file.h>

#include <algorithm>

#include "support/files.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/speaking_model.h"
#include "support/training_run.h"

namespace so::test {
namespace {

constexpr int endless_run = 1'000'000;  // steps; a run that is never stopped meets the time limit of Process::wait()

class Signals : public testing::Test {
 protected:
  TrainCommand command(const std::string& output, int steps) const {
    TrainCommand c(fixture_ / "model", fixture_ / "data.jsonl", temporary_ / output);
    c.set(read_json(fixture_ / "expected.json").at("train").at("options"));
    return c.set("max_steps", std::to_string(steps)).set("save_steps", "0");
  }
  std::ptrdiff_t steps_done(const std::string& output) const { return steps_recorded(temporary_ / output); }
  // Returns once the run has recorded so many steps, or has ended.
  void await_steps(Process& process, const std::string& output, std::ptrdiff_t steps) const {
    while (!process.ended() && steps_done(output) < steps) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::string weights(const std::string& output) const { return read_file(temporary_ / output / "model.safetensors"); }
  // The weights after so many steps of a run that nothing happened to.
  std::string reference_weights(int steps) const {
    const Outcome o = run(command("reference", steps).words(), temporary_.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return weights("reference");
  }
  static std::string through_shell(const std::vector<std::string>& words, const std::string& redirections) {
    std::string line = "exec";
    for (const std::string& word : words) line += " '" + word + "'";
    return line + " " + redirections;
  }

  const std::filesystem::path fixture_ = model_fixture("qwen3-tied");
  TemporaryDirectory temporary_;
};

struct Named {
  int signal;
  const char* name;
};

void PrintTo(const Named& named, std::ostream* out) { *out << named.name; }

class EachSignal : public Signals, public testing::WithParamInterface<Named> {};

TEST_P(EachSignal, SavesAndStops) {
  Process process(command("run", endless_run).words(), temporary_.path());
  await_steps(process, "run", 3);
  process.send(GetParam().signal);
  process.send(GetParam().signal);  // as `timeout`, a closing terminal and the kernel (SIGXCPU) do
  const Outcome o = process.wait();
  ASSERT_EQ(o.signal, 0) << GetParam().name << " ended it instead of being handled";
  ASSERT_EQ(o.exit_code, 130) << o.err;
  EXPECT_NE(o.err.find(std::string("interrupted by ") + GetParam().name + ": saved "), std::string::npos) << o.err;
  const auto steps = read_metrics(temporary_ / "run").size();
  EXPECT_GE(steps, 3u);
  EXPECT_TRUE(
      std::filesystem::exists(temporary_ / "run" / ("checkpoint-" + std::to_string(steps)) / "trainer_state.json"))
      << o.err;
}

INSTANTIATE_TEST_SUITE_P(All, EachSignal,
                         testing::Values(Named{SIGINT, "SIGINT"}, Named{SIGTERM, "SIGTERM"}, Named{SIGHUP, "SIGHUP"},
                                         Named{SIGUSR1, "SIGUSR1"}, Named{SIGXCPU, "SIGXCPU"}),
                         [](const auto& i) { return i.param.name; });

// Under nohup the end of the terminal is not the end of the run.
TEST_F(Signals, AnIgnoredHangupStaysIgnored) {
  Limits nohup;
  nohup.ignored_signals = {SIGHUP};
  Process process(command("run", endless_run).words(), temporary_.path(), nohup);
  await_steps(process, "run", 3);
  process.send(SIGHUP);
  const auto then = steps_done("run");
  await_steps(process, "run", then + 10);
  ASSERT_FALSE(process.ended()) << process.wait().err;
  process.send(SIGTERM);
  const Outcome o = process.wait();
  EXPECT_EQ(o.exit_code, 130);
  EXPECT_NE(o.err.find("interrupted by SIGTERM"), std::string::npos) << o.err;
}

// Before the first step there is nothing to save: the run ends, and the same command line with --resume does it all.
TEST_F(Signals, AtTheStartLeaveNothingInTheWay) {
  constexpr int steps = 12;
  const std::string expected = reference_weights(steps);
  const char* const moments[] = {"", "run", "run/cache", "run/metrics.jsonl"};
  for (const char* moment : moments) {
    SCOPED_TRACE(moment);
    std::filesystem::remove_all(temporary_ / "run");
    const TrainCommand c = command("run", steps).flag("resume");
    {
      Process process(c.words(), temporary_.path());
      while (!process.ended() && !std::filesystem::exists(temporary_ / moment))
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      process.send(SIGTERM);
      const Outcome o = process.wait();
      EXPECT_TRUE(o.signal == SIGTERM || o.exit_code == 130 || o.exit_code == 0) << o.exit_code << ": " << o.err;
    }
    const Outcome again = run(c.words(), temporary_.path());
    EXPECT_EQ(again.exit_code, 0) << again.err;
    EXPECT_TRUE(weights("run") == expected);
  }
}

// A dry run has nothing to save, and what it was making is no one's.
TEST_F(Signals, EndADryRunWithoutLeavingAnything) {
  std::string content;
  for (int i = 0; i < 200'000; ++i) content += "{\"input_ids\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}\n";
  write_file(temporary_ / "data.jsonl", content);
  const auto cache = temporary_ / "cache";
  TrainCommand c = command("run", 3);
  c.set("data", (temporary_ / "data.jsonl").string()).set("cache_dir", cache.string()).flag("dry_run");
  // Made when the data is about to be tokenised; it stays, empty (io/cache_directory.h).
  const auto locks = [&] {
    std::vector<std::filesystem::path> names;
    std::error_code not_there_yet;
    for (const auto& entry : std::filesystem::directory_iterator(cache, not_there_yet)) names.push_back(entry.path());
    return names;
  };
  for (const int signal : {SIGINT, SIGTERM}) {
    std::filesystem::remove_all(cache);
    Process process(c.words(), temporary_.path());
    while (!process.ended() && locks().empty()) std::this_thread::sleep_for(std::chrono::microseconds(50));
    process.send(signal);
    const Outcome o = process.wait();
    EXPECT_EQ(o.signal, signal) << o.exit_code << ": " << o.err;
    ASSERT_EQ(locks().size(), 1u);
    EXPECT_EQ(locks().front().extension(), ".lock");
    EXPECT_TRUE(std::filesystem::is_empty(locks().front()));
    EXPECT_FALSE(std::filesystem::exists(temporary_ / "run"));
  }
}

// The same while it waits for another process to make the cache.
TEST_F(Signals, EndADryRunThatWaits) {
  const auto cache = temporary_ / "cache";
  TrainCommand c = command("run", 3);
  c.set("cache_dir", cache.string()).flag("dry_run");
  ASSERT_EQ(run(c.words(), temporary_.path()).exit_code, 0);
  std::filesystem::path lock;
  for (const auto& entry : std::filesystem::directory_iterator(cache))
    if (entry.path().extension() == ".lock") lock = entry.path();
  ASSERT_FALSE(lock.empty());
  std::filesystem::remove(lock.parent_path() / lock.stem());
  const int held = ::open(lock.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(held, LOCK_EX), 0);
  for (const int signal : {SIGINT, SIGTERM}) {
    const auto log = temporary_ / "stderr.txt";
    write_file(log, "");
    Process process(c.words(), temporary_.path());
    while (!process.ended() && read_file(log).find("waiting for another process") == std::string::npos)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    process.send(signal);
    EXPECT_EQ(process.wait().signal, signal);
    EXPECT_FALSE(std::filesystem::exists(temporary_ / "run"));
  }
  ::close(held);
}

TEST_F(Signals, EndPlanAtOnce) {
  const auto where = temporary_ / "plan";
  std::filesystem::create_directory(where);
  for (const char* name : {"stdout.txt", "stderr.txt"}) write_file(temporary_ / name, "");
  int ended_by_signal = 0;
  for (const int signal : {SIGINT, SIGTERM}) {
    for (const int microseconds : {1'000, 3'000, 10'000, 30'000, 100'000}) {
      Process process({test::binary(), "plan", "--model", "qwen3-14b", "--json"}, temporary_.path(),
                      {.directory = where});
      std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
      process.send(signal);
      const Outcome o = process.wait();
      EXPECT_TRUE(o.signal == signal || o.exit_code == 0) << o.exit_code << ": " << o.err;
      ended_by_signal += o.signal == signal ? 1 : 0;
      EXPECT_TRUE(std::filesystem::is_empty(where));
    }
  }
  EXPECT_GE(ended_by_signal, 1) << "no signal met a plan under way";
}

// A command that has nothing to save ends as any program does.
TEST_F(Signals, EndGenerateAtOnce) {
  const std::string model = make_speaking_model(temporary_.path()).string();
  std::filesystem::remove(temporary_ / "stdout.txt");
  Process process({test::binary(), "generate", "--model", model, "--prompt", "a", "--max_new_tokens", "90000",
                   "--stop_at_eos", "false", "--temperature", "1", "--device", "cpu"},
                  temporary_.path());
  const auto output = temporary_ / "stdout.txt";
  while (!process.ended() && (!std::filesystem::exists(output) || std::filesystem::file_size(output) == 0))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  process.send(SIGINT);
  const Outcome o = process.wait();
  EXPECT_EQ(o.signal, SIGINT) << o.exit_code << ": " << o.err;
}

// Whoever reads the log may go away: `superoffload train ... 2>&1 | head`.
TEST_F(Signals, ABrokenPipeDoesNotStopTraining) {
  constexpr int steps = 60;
  const std::string expected = reference_weights(steps);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Limits piped;
  piped.output = ends[1];
  Process process(command("run", steps).set("log_interval", "1").words(), temporary_.path(), piped);
  ::close(ends[1]);
  char first = 0;
  EXPECT_EQ(::read(ends[0], &first, 1), 1);
  ::close(ends[0]);
  const Outcome o = process.wait();
  EXPECT_EQ(o.signal, 0);
  EXPECT_EQ(o.exit_code, 0);
  EXPECT_EQ(read_metrics(temporary_ / "run").size(), static_cast<std::size_t>(steps));
  EXPECT_TRUE(weights("run") == expected);
}

// No file of the run may get the number of a standard stream, and with it the log.
TEST_F(Signals, ClosedStandardStreamsReceiveNothing) {
  constexpr int steps = 5;
  const std::string expected = reference_weights(steps);
  const Outcome o =
      run({"/bin/sh", "-c", through_shell(command("run", steps).set("log_interval", "1").words(), "<&- >&- 2>&-")},
          temporary_.path());
  EXPECT_EQ(o.exit_code, 0);
  EXPECT_EQ(read_metrics(temporary_ / "run").size(), static_cast<std::size_t>(steps));
  EXPECT_TRUE(weights("run") == expected);
}

}  // namespace
}  // namespace so::test
