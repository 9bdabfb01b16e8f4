// Runs of several ranks as a user starts them: train --gpus N, or mpirun. Not under sanitizers: Open MPI is not
// instrumented, and leaks.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

#include "base/cpus.h"
#include "support/files.h"
#include "support/label.h"
#include "support/mpirun.h"
#include "support/process.h"
#include "support/refusal.h"
#include "support/terminal.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

constexpr int endless = 1'000'000;  // steps; a run that is never stopped meets the time limit of Process::wait()

class Ranks : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = why_no_ranks(); !reason.empty()) GTEST_SKIP() << reason;
  }
  // The fixture's run, whose steps have 2 micro-batches of 3 rows, shared by so many ranks.
  TrainCommand command(const std::string& output, int ranks, int rows = 3, int micro_batches = 1) const {
    TrainCommand c(fixture_ / "model", fixture_ / "data.jsonl", temporary_ / output);
    c.set(read_json(fixture_ / "expected.json").at("train").at("options"));
    c.set("batch_size", std::to_string(rows)).set("gradient_accumulation_steps", std::to_string(micro_batches));
    return c.set("gpus", std::to_string(ranks)).set("save_steps", "0");
  }
  Outcome run_it(const TrainCommand& c) const { return run(c.words(), temporary_.path()); }
  void finish(const TrainCommand& c) const {
    const Outcome o = run_it(c);
    ASSERT_EQ(o.exit_code, 0) << o.err;
  }
  std::string weights(const std::string& output) const { return read_file(temporary_ / output / "model.safetensors"); }
  std::ptrdiff_t steps_done(const std::string& output) const { return steps_recorded(temporary_ / output); }
  void await_steps(Process& process, const std::string& output, std::ptrdiff_t steps) const {
    while (!process.ended() && steps_done(output) < steps) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // The processes of a run that writes to `output`, by rank.
  std::map<int, pid_t> processes(const std::string& output) const {
    std::map<int, pid_t> found;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string pid = entry.path().filename().string();
      if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
      const auto text = [&](const char* name) {
        std::ifstream in(entry.path() / name);
        return '\0' + std::string(std::istreambuf_iterator<char>(in), {});
      };
      if (text("cmdline").find((temporary_ / output).string() + '\0') == std::string::npos) continue;
      const std::string environment = text("environ"), name = std::string("\0OMPI_COMM_WORLD_RANK=", 22);
      if (const auto at = environment.find(name); at != std::string::npos)
        found[std::atoi(environment.c_str() + at + name.size())] = std::atoi(pid.c_str());
    }
    return found;
  }

  const fs::path fixture_ = model_fixture("qwen3-tied");
  TemporaryDirectory temporary_;
};

// 20 steps of AdamW against PyTorch's, which had one device.
TEST_F(Ranks, LossesAreThoseOfPyTorch) {
  const auto steps = read_json(fixture_ / "expected.json").at("train").at("steps");
  for (const auto& [ranks, rows] : {std::pair{2, 3}, {3, 2}}) {
    SCOPED_TRACE(ranks);
    const std::string output = "on" + std::to_string(ranks);
    ASSERT_NO_FATAL_FAILURE(finish(command(output, ranks, rows)));
    const auto metrics = read_metrics(temporary_ / output);
    ASSERT_EQ(metrics.size(), steps.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      for (const char* name : {"loss", "grad_norm"}) {
        const double got = metrics[i].at(name), want = steps[i].at(name);
        EXPECT_LE(std::abs(got - want), 1e-5 * std::abs(want)) << "step " << i + 1 << " " << name;
      }
      EXPECT_EQ(metrics[i].at("tokens"), read_metrics(temporary_ / "on2")[i].at("tokens"));
    }
  }
}

// The same where two ranks split each row's tokens.
TEST_F(Ranks, LossesOfSplitRowsAreThoseOfPyTorch) {
  const auto steps = read_json(fixture_ / "expected.json").at("train").at("steps");
  ASSERT_NO_FATAL_FAILURE(finish(command("split", 2, 6).set("sequence_parallel_size", "2")));
  const auto metrics = read_metrics(temporary_ / "split");
  ASSERT_EQ(metrics.size(), steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i)
    for (const char* name : {"loss", "grad_norm"}) {
      const double got = metrics[i].at(name), want = steps[i].at(name);
      EXPECT_LE(std::abs(got - want), 1e-5 * std::abs(want)) << "step " << i + 1 << " " << name;
    }
  const Outcome refused = run_it(command("split", 3, 6).set("sequence_parallel_size", "3"));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(
      refused.err.find("superoffload: --sequence_parallel_size 3: each rank attends with as many heads as any "
                       "other, and " +
                       (fixture_ / "model").string() + " has 4 query and 2 key and value heads; use one of 1, 2, 4\n"),
      std::string::npos)
      << refused.err;
}

TEST_F(Ranks, TheSameRunTwiceGivesTheSameBytes) {
  ASSERT_NO_FATAL_FAILURE(finish(command("a", 2)));
  ASSERT_NO_FATAL_FAILURE(finish(command("b", 2)));
  EXPECT_TRUE(weights("a") == weights("b"));
}

TEST_F(Ranks, CheckpointsOfTheModelAlone) {
  for (const bool only : {false, true}) {
    TrainCommand c = command(only ? "only" : "whole", 2);
    c.set("max_steps", "4").set("save_steps", "2");
    ASSERT_NO_FATAL_FAILURE(finish(only ? c.flag("save_only_model") : c));
  }
  for (const char* checkpoint : {"checkpoint-2", "checkpoint-4"}) {
    EXPECT_EQ(read_file(temporary_ / "only" / checkpoint / "model.safetensors"),
              read_file(temporary_ / "whole" / checkpoint / "model.safetensors"));
    EXPECT_FALSE(fs::exists(temporary_ / "only" / checkpoint / "exp_avg.safetensors"));
    EXPECT_TRUE(fs::exists(temporary_ / "whole" / checkpoint / "exp_avg.safetensors"));
  }
  EXPECT_TRUE(weights("only") == weights("whole"));
  EXPECT_EQ(run({binary(), "verify", (temporary_ / "only").string()}, temporary_.path()).exit_code, 0);
}

TEST_F(Ranks, EvaluationIsThatOfOneRank) {
  for (const int ranks : {1, 2, 3}) {
    TrainCommand c = command("eval" + std::to_string(ranks), ranks, 6 / ranks);
    ASSERT_NO_FATAL_FAILURE(
        finish(c.set("max_steps", "2").set("eval_steps", "1").set("eval_data", (fixture_ / "data.jsonl").string())));
  }
  const auto one = read_metrics(temporary_ / "eval1");
  for (const char* other : {"eval2", "eval3"}) {
    const auto several = read_metrics(temporary_ / other);
    ASSERT_EQ(several.size(), one.size());
    for (std::size_t i = 0; i < one.size(); ++i) {
      if (!one[i].contains("eval_loss")) continue;
      const double want = one[i].at("eval_loss");
      EXPECT_NEAR(several[i].at("eval_loss").get<double>(), want, 1e-6 * want) << other;
    }
  }
}

// One terminal, one voice: what a run of one process says, once.
TEST_F(Ranks, TheFirstAloneSpeaks) {
  const Outcome o = run_it(command("run", 2).set("max_steps", "2"));
  ASSERT_EQ(o.exit_code, 0) << o.err;
  std::size_t models = 0;
  for (const std::string& line : lines_of(o.err)) models += line.starts_with("model: ") ? 1 : 0;
  EXPECT_EQ(models, 1u) << "at the start; the one at the end is a result:\n" << o.err;
  EXPECT_EQ(o.err.find("mpirun"), std::string::npos) << o.err;
  EXPECT_TRUE(o.out.starts_with("trained: ")) << o.out;
  EXPECT_EQ(o.out.find("trained: ", 1), std::string::npos) << "one rank has results: " << o.out;
}

TEST_F(Ranks, ASignalSavesAndStopsAllAndResumingChangesNothing) {
  ASSERT_NO_FATAL_FAILURE(finish(command("whole", 2).set("max_steps", "40")));
  for (const int signal : {SIGTERM, SIGINT}) {
    const std::string output = "run" + std::to_string(signal);
    Process process(command(output, 2).set("max_steps", "40").words(), temporary_.path());
    await_steps(process, output, 3);
    process.send(signal);
    const Outcome o = process.wait();
    ASSERT_EQ(o.signal, 0) << o.err;
    if (o.exit_code == 0) continue;  // it was quicker
    ASSERT_EQ(o.exit_code, 130) << o.err;
    EXPECT_NE(o.err.find("interrupted by SIG"), std::string::npos) << o.err;
    ASSERT_NO_FATAL_FAILURE(finish(command(output, 2).set("max_steps", "40").flag("resume")));
    EXPECT_TRUE(weights(output) == weights("whole"));
  }
}

TEST_F(Ranks, HaveCoresOfTheirOwn) {
  const auto cpus_of_ranks = [&](const std::string& output, const std::string& bind) {
    Process process(
        command(output, 2).set("max_steps", std::to_string(endless)).set("bind_cores_to_rank", bind).words(),
        temporary_.path());
    await_steps(process, output, 1);
    std::vector<std::string> lists;
    for (const auto& [rank, pid] : processes(output)) {
      std::ifstream status("/proc/" + std::to_string(pid) + "/status");
      for (std::string line; std::getline(status, line);)
        if (line.starts_with("Cpus_allowed_list:")) lists.push_back(line);
    }
    process.send(SIGUSR1);
    const Outcome o = process.wait();
    EXPECT_EQ(o.exit_code, 130) << o.err;
    EXPECT_EQ(lists.size(), 2u) << o.err;
    std::string said;
    for (const std::string& line : lines_of(o.err))
      if (line.find("cores: ") != std::string::npos) said += line;
    lists.push_back(said);
    return lists;
  };
  const auto free = cpus_of_ranks("free", "false");
  EXPECT_EQ(free[0], free[1]);
  EXPECT_NE(free[2].find("not bound to any (--bind_cores_to_rank false)"), std::string::npos) << free[2];
  const auto bound = cpus_of_ranks("bound", "true");
  if (usable_cores().size() < 2) {
    EXPECT_NE(bound[2].find("there are fewer cores than ranks"), std::string::npos) << bound[2];
    return;
  }
  EXPECT_NE(bound[0], bound[1]);
  EXPECT_NE(bound[2].find("each of 2 ranks is bound to its share of CPUs "), std::string::npos) << bound[2];
}

TEST_F(Ranks, ASignalToAnotherRankStopsAll) {
  Process process(command("run", 2).set("max_steps", std::to_string(endless)).words(), temporary_.path());
  await_steps(process, "run", 3);
  const auto ranks = processes("run");
  ASSERT_EQ(ranks.size(), 2u);
  ::kill(ranks.at(1), SIGUSR1);
  const Outcome o = process.wait();
  EXPECT_EQ(o.exit_code, 130) << o.err;
  EXPECT_NE(o.err.find("interrupted by SIGUSR1: saved "), std::string::npos) << o.err;
}

// Whichever is lost, one sentence names it, nothing is left running, and the last checkpoint resumes.
TEST_F(Ranks, OneThatIsKilledEndsAll) {
  ASSERT_NO_FATAL_FAILURE(finish(command("whole", 3, 2).set("max_steps", "150")));
  for (const int lost : {0, 1, 2}) {
    const std::string output = "lost" + std::to_string(lost);
    TrainCommand c = command(output, 3, 2).set("max_steps", "150").set("save_steps", "10").set("save_total_limit", "1");
    Process process(c.words(), temporary_.path());
    await_steps(process, output, 12);
    const auto ranks = processes(output);
    ASSERT_EQ(ranks.size(), 3u) << process.wait().err;
    ::kill(ranks.at(lost), SIGKILL);
    const Outcome o = process.wait(std::chrono::seconds(60));
    EXPECT_EQ(o.exit_code, 1) << o.err;
    const std::string last = lines_of(o.err).back();
    EXPECT_TRUE(last.starts_with("superoffload: rank " + std::to_string(lost) + " was ended by SIGKILL")) << o.err;
    EXPECT_TRUE(processes(output).empty());
    ASSERT_NO_FATAL_FAILURE(finish(c.flag("resume")));
    EXPECT_TRUE(weights(output) == weights("whole"));
  }
}

// A process that is stopped answers as little as one that hangs. Both runs wait for theirs at once.
TEST_F(Ranks, OneThatHangsEndsAll) {
  const auto begun = [&](const std::string& output) {
    finish(command(output, 2).set("max_steps", "5"));
    return command(output, 2).flag("resume");
  };
  ASSERT_NO_FATAL_FAILURE(finish(begun("whole").set("max_steps", "8")));
  std::vector<std::unique_ptr<Process>> runs;
  for (const int lost : {0, 1}) {
    const std::string output = "lost" + std::to_string(lost);
    TrainCommand c = begun(output).set("max_steps", std::to_string(endless));
    fs::create_directory(temporary_ / (output + "-log"));
    runs.push_back(std::make_unique<Process>(c.words(), temporary_ / (output + "-log")));
    // So many steps are measured that the time limit is a short one.
    await_steps(*runs.back(), output, 20);
    const auto ranks = processes(output);
    ASSERT_EQ(ranks.size(), 2u) << runs.back()->wait().err;
    ::kill(ranks.at(lost), SIGSTOP);
  }
  for (const int lost : {0, 1}) {
    const std::string output = "lost" + std::to_string(lost);
    const Outcome o = runs[static_cast<std::size_t>(lost)]->wait();
    EXPECT_EQ(o.exit_code, 1) << o.err;
    const std::string sentence = "superoffload: lost rank " + std::to_string(lost) + ": no answer within ";
    EXPECT_TRUE(lines_of(o.err).back().starts_with(sentence)) << o.err;
    EXPECT_NE(o.err.find("--resume"), std::string::npos) << o.err;
    EXPECT_TRUE(processes(output).empty()) << "one is left";
    ASSERT_NO_FATAL_FAILURE(finish(command(output, 2).set("max_steps", "8").flag("resume")));
    EXPECT_TRUE(weights(output) == weights("whole"));
  }
}

SO_LABEL(tsan, "Ranks.AnotherNumberOfThemResumes");
TEST_F(Ranks, AnotherNumberOfThemResumes) {
  ASSERT_NO_FATAL_FAILURE(finish(command("run", 2).set("max_steps", "4")));
  // As many rows a step: 1 rank with 2 micro-batches, where 2 ranks had one each.
  ASSERT_NO_FATAL_FAILURE(finish(command("run", 1, 3, 2).set("max_steps", "6").flag("resume")));
  EXPECT_EQ(read_metrics(temporary_ / "run").size(), 6u);
  const Outcome other = run_it(command("run", 2, 3, 2).set("max_steps", "8").flag("resume"));
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(other.err.find("which are other rows"), std::string::npos) << other.err;
}

// Each rank's slice of the state is the host's or the device's, and a run goes on with another split and another number
// of ranks.
TEST_F(Ranks, ResumeWithTheStateElsewhere) {
  const auto with = [&](const std::string& output, int ranks, const char* steps) {
    // No rate depends on the run's length.
    TrainCommand c = command(output, ranks, 1, 4 / ranks).without("warmup").without("warmup_num_steps");
    return c.set("max_steps", steps).set("lr_scheduler", "constant").set("warmup", "0");
  };
  ASSERT_NO_FATAL_FAILURE(finish(with("whole", 2, "6")));
  ASSERT_NO_FATAL_FAILURE(finish(with("none", 2, "3").set("offload_optimizer", "none")));
  ASSERT_NO_FATAL_FAILURE(finish(with("none", 2, "6").set("offload_ratio", "0.5").flag("resume")));
  EXPECT_TRUE(weights("none") == weights("whole"));
  // Ranks add their gradients up in their order, as one rank its micro-batches, whoever owned what before.
  for (const auto& [from, to] : {std::pair{2, 4}, {4, 1}}) {
    const std::string output = "from" + std::to_string(from);
    ASSERT_NO_FATAL_FAILURE(finish(with(output, from, "3").set("offload_ratio", "0.5")));
    ASSERT_NO_FATAL_FAILURE(finish(with(output, to, "6").set("offload_ratio", "0").flag("resume")));
    const auto metrics = read_metrics(temporary_ / output), whole = read_metrics(temporary_ / "whole");
    ASSERT_EQ(metrics.size(), 6u);
    for (std::size_t i = 0; i < metrics.size(); ++i) {
      const double want = whole[i].at("loss");
      EXPECT_NEAR(metrics[i].at("loss").get<double>(), want, 1e-6 * want) << output << ", step " << i + 1;
    }
  }
}

// Slices of weights and gradients instead of whole ones: with a micro-batch a step, gradients are added up in the same
// order.
TEST_F(Ranks, GatheredWeightsChangeNoBit) {
  const auto with = [&](const std::string& output, const char* gathered, const char* steps = "6") {
    TrainCommand c = command(output, 2, 2).without("warmup").set("warmup", "0");
    c.set("max_steps", steps).set("lr_scheduler", "constant").set("gathered_layers", gathered);
    return c.set("eval_steps", "2").set("eval_data", (fixture_ / "data.jsonl").string());
  };
  const auto says = [&](const std::string& output, const std::string& what) {
    return read_file(temporary_ / output / "run.log").find(what) != std::string::npos;
  };
  const auto losses = [&](const std::string& output) {
    std::vector<double> all;
    for (const auto& record : read_metrics(temporary_ / output))
      if (record.contains("eval_loss")) all.push_back(record.at("eval_loss"));
    return all;
  };
  ASSERT_NO_FATAL_FAILURE(finish(with("whole", "-1")));
  EXPECT_FALSE(says("whole", "gathered from all ranks")) << "whole ones fit";
  ASSERT_NO_FATAL_FAILURE(finish(with("some", "1").set("offload_ratio", "0.5")));
  EXPECT_TRUE(says("some", "weights of 1 layer gathered from all ranks"));
  EXPECT_TRUE(weights("some") == weights("whole"));
  EXPECT_EQ(losses("some"), losses("whole"));
  EXPECT_GE(losses("whole").size(), 3u);
  ASSERT_NO_FATAL_FAILURE(finish(with("all", "100", "3").set("move_gradients", "true").set("offload_ratio", "1")));
  ASSERT_NO_FATAL_FAILURE(finish(with("all", "0", "6").set("offload_ratio", "0").flag("resume")));
  EXPECT_TRUE(weights("all") == weights("whole")) << "a checkpoint knows nothing of it";
}

TEST_F(Ranks, UnderMpirunTheSame) {
  const auto under = [&](const std::vector<std::string>& command) {
    return run(under_mpirun({command, command}), temporary_.path());
  };
  ASSERT_NO_FATAL_FAILURE(finish(command("own", 2)));
  const Outcome o = under(command("mpirun", 2).without("gpus").words());
  ASSERT_EQ(o.exit_code, 0) << o.err;
  EXPECT_TRUE(weights("own") == weights("mpirun"));

  const Outcome other = under(command("other", 3).words());
  EXPECT_NE(other.err.find("superoffload: --gpus 3, but the launcher has started 2 ranks"), std::string::npos);
  const Outcome alone =
      under({test::binary(), "generate", "--model", (fixture_ / "model").string(), "--prompt", "text"});
  EXPECT_NE(alone.err.find("superoffload: generate runs on one rank, and mpirun has started 2"), std::string::npos);
}

// Each with one sentence, from one rank, and nothing that hangs.
TEST_F(Ranks, Refusals) {
  const auto refusal = [&](const TrainCommand& c) {
    const Outcome o = run_it(c);
    EXPECT_EQ(o.exit_code, 2) << o.err;
    std::string said;
    for (const std::string& line : lines_of(o.err))
      if (line.starts_with("superoffload: ")) said += line;
    return said;
  };
  const std::string rows = R"({"train_batch_size": 5, "train_micro_batch_size_per_gpu": 1})";
  write_file(temporary_ / "ds.json", rows);
  EXPECT_NE(refusal(command("a", 2)
                        .without("batch_size")
                        .without("gradient_accumulation_steps")
                        .set("deepspeed_config", (temporary_ / "ds.json").string()))
                .find("2 ranks"),
            std::string::npos);
  const std::string memory = refusal(command("b", 2).set("host_memory", "1000000"));
  EXPECT_EQ(memory.find("superoffload: ", 1), std::string::npos) << memory;
  // The option is a host's, for all its ranks, and so is the one that is proposed.
  const std::string option = "it would fit with --host_memory ";
  const auto at = memory.find(option);
  ASSERT_NE(at, std::string::npos) << memory;
  std::istringstream proposed(memory.substr(at + option.size()));
  std::string bytes;
  std::getline(proposed >> std::ws, bytes, ',');
  ASSERT_NO_FATAL_FAILURE(finish(command("fits", 2).set("max_steps", "2").set("host_memory", bytes)));
  fs::create_directory(temporary_ / "empty");
  EXPECT_NE(refusal(command("c", 2).set("model", (temporary_ / "empty").string())).find("config.json"),
            std::string::npos);
  EXPECT_NE(refusal(command("d", 1).set("gathered_layers", "1")).find("--gathered_layers 1: there is one rank"),
            std::string::npos);
  EXPECT_NE(refusal(command("d", 2).set("streamed_layers", "1")).find("--streamed_layers 1: "), std::string::npos);
  EXPECT_FALSE(fs::exists(temporary_ / "b"));
}

TEST_F(Ranks, ATerminalStaysOne) {
  std::vector<std::string> words{"/usr/bin/env", "TERM=xterm"};
  for (const std::string& word : command("run", 2).set("max_steps", "3").words()) words.push_back(word);
  const TerminalOutcome o = run_on_terminal(words, temporary_.path(), 80);
  const std::string text = o.screen.text();
  EXPECT_EQ(o.exit_code, 0) << text;
  for (const char* line : {"\nstep 1/3 | ", "\nstep 2/3 | ", "\nstep 3/3 | "}) {
    EXPECT_NE(text.find(line), std::string::npos) << text;
    EXPECT_EQ(text.find(line), text.rfind(line)) << "rank 0 alone says it: " << text;
  }
}

}  // namespace
}  // namespace so::test
