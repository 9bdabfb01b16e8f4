// A checkpoint's contents, which depend on nothing but the options that affect results: bytes of weights and
// moments, compared exactly, over resumes and over choices that only concern the machine.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "support/files.h"
#include "support/label.h"
#include "support/process.h"
#include "support/refusal.h"
#include "support/stored_tensor.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

int usable_processors() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// The steps of metrics.jsonl in file order.
std::vector<int> steps_of(const fs::path& output) {
  std::vector<int> steps;
  for (const auto& line : read_metrics(output)) steps.push_back(line.at("step"));
  return steps;
}
std::vector<int> count_to(int last) {
  std::vector<int> steps;
  for (int i = 1; i <= last; ++i) steps.push_back(i);
  return steps;
}

class ResumedRun : public testing::Test {
 protected:
  // Every source of state at once: two micro-batches a step, packed rows, a new order each epoch, fp32 weights beside
  // the bf16 ones.
  TrainCommand command(const std::string& output) const {
    TrainCommand c(model_fixture("qwen3-tied") / "model", data_, temporary_ / output);
    c.set("lr", "2e-3").set("warmup", "0.1").set("batch_size", "2").set("gradient_accumulation_steps", "2");
    c.set("max_length", "64").set("packing", "true").set("shuffle", "true").set("num_train_epochs", "2");
    return c.set("dtype", "bf16").set("cache_dir", (temporary_ / "cache").string());
  }
  Outcome finish(const TrainCommand& c) const {
    Outcome o = run(c.words(), temporary_.path());
    EXPECT_EQ(o.signal, 0);
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return o;
  }
  std::vector<int> checkpoints_of(const std::string& output) const {
    std::vector<int> steps;
    for (const auto& entry : fs::directory_iterator(temporary_ / output)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("checkpoint-")) steps.push_back(std::stoi(name.substr(11)));
    }
    std::sort(steps.begin(), steps.end());
    return steps;
  }
  fs::path checkpoint(const std::string& output, int step) const {
    return temporary_ / output / ("checkpoint-" + std::to_string(step));
  }
  // A copy of a finished run as it was after its checkpoint of `step`, its records of later steps left in place as a
  // killed process leaves them.
  void rewind(const std::string& output, const std::string& copy, int step) const {
    fs::copy(temporary_ / output, temporary_ / copy, fs::copy_options::recursive);
    for (const int later : checkpoints_of(copy))
      if (later > step) fs::remove_all(checkpoint(copy, later));
    fs::remove(temporary_ / copy / "model.safetensors");
  }
  void expect_same_end(const std::string& got, const std::string& want) const {
    const int last = checkpoints_of(want).back();
    ASSERT_EQ(checkpoints_of(got).back(), last);
    std::vector<std::string> files{"model.safetensors"};
    for (const char* name : {"model", "master", "exp_avg", "exp_avg_sq"})
      files.push_back("checkpoint-" + std::to_string(last) + "/" + name + ".safetensors");
    for (const auto& file : files)
      EXPECT_TRUE(read_file(temporary_ / got / file) == read_file(temporary_ / want / file)) << file << " of " << got;
  }

  TemporaryDirectory temporary_;
  fs::path data_ = model_fixture("qwen3-tied") / "data.jsonl";
};

SO_LABEL(sweep, "ResumedRun.FromAnyCheckpointEndsInTheSameBytes");
SO_LABEL(tsan, "ResumedRun.MachineOptionsDoNotChangeTheResult");
SO_LABEL(tsan, "ResumedRun.NarrowMomentsAreSteppedAndResumedAlike");
SO_LABEL(tsan, "ResumedRun.SaveTotalLimitKeepsTheNewest");
TEST_F(ResumedRun, FromAnyCheckpointEndsInTheSameBytes) {
  finish(command("reference").set("save_steps", "1"));
  const auto steps = steps_of(temporary_ / "reference");
  const int last = static_cast<int>(steps.size());
  ASSERT_GE(last, 8);
  ASSERT_EQ(last % 2, 0);
  ASSERT_EQ(steps, count_to(last));
  ASSERT_EQ(checkpoints_of("reference"), steps);
  const auto epoch_at = [&](int step) {
    return read_json(checkpoint("reference", step) / "trainer_state.json").at("epoch").get<int>();
  };
  ASSERT_EQ(epoch_at(2), 0);
  ASSERT_EQ(epoch_at(last - 2), 1);

  // Within each epoch, and where one ends and the next begins.
  for (const int step : {2, last / 2, last - 2}) {
    const std::string copy = "from-" + std::to_string(step);
    rewind("reference", copy, step);
    const Outcome o = finish(command(copy).set("resume", checkpoint(copy, step).string()));
    EXPECT_NE(o.err.find("resumed from " + checkpoint(copy, step).string()), std::string::npos) << o.err;
    EXPECT_EQ(steps_of(temporary_ / copy), count_to(last)) << "each step once";
    expect_same_end(copy, "reference");
  }

  // An output directory of its own has the steps that were run in it.
  finish(command("elsewhere").set("resume", checkpoint("reference", last - 2).string()));
  EXPECT_EQ(steps_of(temporary_ / "elsewhere"), (std::vector<int>{last - 1, last}));
  expect_same_end("elsewhere", "reference");
}

TEST_F(ResumedRun, LeavesEventFiles) {
  const auto event_bytes = [&](const std::string& output) {
    std::uintmax_t bytes = 0;
    for (const auto& entry : fs::recursive_directory_iterator(temporary_ / output / "runs")) {
      if (!entry.is_regular_file()) continue;
      EXPECT_NE(entry.path().filename().string().find("tfevents"), std::string::npos) << entry.path();
      EXPECT_GT(entry.file_size(), 0u) << entry.path();
      bytes += entry.file_size();
    }
    return bytes;
  };
  finish(command("run").set("save_steps", "2").set("max_steps", "4"));
  const auto whole = event_bytes("run");
  EXPECT_GT(whole, 0u);
  rewind("run", "again", 2);
  finish(command("again").set("max_steps", "4").flag("resume"));
  EXPECT_GE(event_bytes("again"), whole) << "the steps after the checkpoint are missing";
}

TEST_F(ResumedRun, SaveTotalLimitKeepsTheNewest) {
  const auto kept = [&](const std::string& limit) {
    finish(command("keep-" + limit).set("save_steps", "2").set("max_steps", "7").set("save_total_limit", limit));
    return checkpoints_of("keep-" + limit);
  };
  EXPECT_EQ(kept("0"), (std::vector<int>{2, 4, 6, 7}));
  EXPECT_EQ(kept("3"), (std::vector<int>{4, 6, 7}));
  EXPECT_EQ(kept("1"), (std::vector<int>{7}));
}

// Options that only concern memory and time must not change a bit. Owners and schedules are EverySchedule's.
TEST_F(ResumedRun, MachineOptionsDoNotChangeTheResult) {
  const auto with = [&](const char* output) { return command(output).set("max_steps", "6").set("cpu_threads", "1"); };
  finish(with("plain").set("activation_checkpointing", "false"));
  finish(with("recompute").set("activation_checkpointing", "true"));
  finish(with("buckets").set("bucket_size", "4096"));
  for (const char* output : {"recompute", "buckets"}) expect_same_end(output, "plain");
  if (usable_processors() < 2) return;
  finish(with("threads").set("cpu_threads", "2"));
  expect_same_end("threads", "plain");
}

TEST_F(ResumedRun, NarrowMomentsAreSteppedAndResumedAlike) {
  for (const std::string format : {"bf16", "fp8"}) {
    SCOPED_TRACE(format);
    const auto narrow = [&](const std::string& output) {
      return command(format + output)
          .set("max_steps", "6")
          .set("adam_beta2", "0.99")
          .set("optimizer_state_dtype", format);
    };
    finish(narrow("reference").set("save_steps", "3").set("mode", "superoffload"));
    rewind(format + "reference", format + "resumed", 3);
    finish(narrow("resumed").set("mode", "zerooffload").flag("resume"));
    EXPECT_EQ(steps_of(temporary_ / (format + "resumed")), count_to(6));
    expect_same_end(format + "resumed", format + "reference");

    // The files hold them in that format, not all zeros.
    for (const char* file : {"exp_avg.safetensors", "exp_avg_sq.safetensors"}) {
      std::int64_t filled = 0;
      for (const auto& [name, tensor] : read_safetensors(checkpoint(format + "reference", 6) / file)) {
        const bool scales = name.ends_with(".moment_scales");
        EXPECT_EQ(tensor.dtype, scales ? "F32" : format == "bf16" ? "BF16" : "U8") << name;
        if (scales) continue;
        filled += std::count_if(tensor.values.begin(), tensor.values.end(), [](float value) { return value != 0; });
      }
      EXPECT_GT(filled, 0) << file;
    }

    // Another format from here on is asked for, or it was a mistake.
    rewind(format + "reference", format + "other", 3);
    const auto wide = [&] { return narrow("other").set("optimizer_state_dtype", "fp32").flag("resume"); };
    expect_refusal(run(wide().words(), temporary_.path()),
                   {fmt::format("optimizer_state_dtype: \"{}\" recorded, \"fp32\" now", format)});
    finish(wide().set("allow_changed", "optimizer_state_dtype"));
    EXPECT_EQ(steps_of(temporary_ / (format + "other")), count_to(6));
  }
}

TEST_F(ResumedRun, RefusesOtherOptions) {
  finish(command("run").set("save_steps", "2").set("max_steps", "4"));
  rewind("run", "again", 2);
  const auto before = snapshot(temporary_ / "again");
  const TrainCommand again = command("again").set("max_steps", "4").flag("resume");
  expect_refusal(run(TrainCommand(again).set("lr", "1e-3").words(), temporary_.path()),
                 {"lr: 0.002 recorded, 0.001 now"});
  expect_refusal(run(TrainCommand(again).set("packing", "false").set("dtype", "fp32").words(), temporary_.path()),
                 {"packing: true recorded, false now", "dtype: \"bf16\" recorded, \"fp32\" now"});
  EXPECT_TRUE(snapshot(temporary_ / "again") == before) << "a refusal changes nothing";
  // Those that do not affect results are free.
  finish(TrainCommand(again).set("save_steps", "3").set("bucket_size", "8192").set("activation_checkpointing", "true"));
  expect_same_end("again", "run");
}

TEST_F(ResumedRun, RefusesOtherData) {
  data_ = temporary_ / "data.jsonl";
  const std::string text = read_file(model_fixture("qwen3-tied") / "data.jsonl");
  write_file(data_, text);
  finish(command("run").set("save_steps", "2").set("max_steps", "4"));
  rewind("run", "again", 2);
  const auto before = snapshot(temporary_ / "again");
  write_file(data_, text.substr(text.find('\n') + 1));
  expect_refusal(run(command("again").set("max_steps", "4").flag("resume").words(), temporary_.path()),
                 {data_.string(), "changed", "trainer_state.json"});
  EXPECT_TRUE(snapshot(temporary_ / "again") == before) << "a refusal changes nothing";
  write_file(data_, text);
  finish(command("again").set("max_steps", "4").flag("resume"));
  expect_same_end("again", "run");
}

// A row a step that is logged, and none without the key.
TEST_F(ResumedRun, DeepSpeedFileAsksForABreakdown) {
  write_file(temporary_ / "ds.json", R"({"wall_clock_breakdown": true, "steps_per_print": 2})");
  const auto rows = [](const Outcome& o) {
    std::vector<std::string> found;
    for (const auto& line : lines_of(o.err))
      if (line.find("s; overlap efficiency ") != std::string::npos) found.push_back(line);
    return found;
  };
  const TrainCommand four = command("run").set("max_steps", "4");
  const auto found = rows(finish(TrainCommand(four).set("deepspeed_config", (temporary_ / "ds.json").string())));
  ASSERT_EQ(found.size(), 2u);
  for (std::size_t i = 0; i < found.size(); ++i)
    for (const auto& part : std::vector<std::string>{"step " + std::to_string(2 * (i + 1)) + ":", "device: work",
                                                     "host: AdamW", "other work", "idle"})
      EXPECT_NE(found[i].find(part), std::string::npos) << part << " in: " << found[i];
  // The log says what the host did with its buckets, of those steps whose updates had begun when they were logged.
  const auto schedule = [](const Outcome& o) {
    const auto log = lines_of(o.err);
    return std::count_if(log.begin(), log.end(), [](const std::string& line) {
      return line.find("step ") != std::string::npos &&
             line.find("AdamW on the host: before the gradient norm was known ") != line.npos &&
             line.find(" weights only") != line.npos && line.find(" in full") != line.npos;
    });
  };
  const TrainCommand host = TrainCommand(four).set("mode", "superoffload").set("offload_ratio", "1");
  const std::string file = (temporary_ / "ds.json").string();
  const Outcome printed = finish(TrainCommand(host).set("deepspeed_config", file).flag("overwrite_output_dir"));
  EXPECT_GT(schedule(printed), 0) << printed.err;
  const Outcome silent = finish(TrainCommand(host).flag("overwrite_output_dir"));
  EXPECT_TRUE(rows(silent).empty());
  EXPECT_EQ(schedule(silent), 0) << silent.err;
}

class NonFinite : public ResumedRun, public testing::WithParamInterface<std::string> {};

// Gradients that are not finite: the step is skipped and leaves no trace in weights and moments.
TEST_P(NonFinite, StepsAreSkipped) {
  const fs::path model = temporary_ / "model";
  fs::copy(model_fixture("llama-untied") / "model", model, fs::copy_options::recursive);
  // Finite in both formats, but its products with anything add up to more than either can hold.
  fill_tensor(model / "model.safetensors", "model.layers.0.mlp.down_proj.weight", 3e38f);
  const auto initial = read_safetensors(model / "model.safetensors");

  TrainCommand c = command("out").set("model", model.string()).set("dtype", GetParam()).set("max_steps", "2");
  c.set("data", (model_fixture("llama-untied") / "data.jsonl").string()).set("max_length", "48").set("warmup", "0");
  const Outcome o = finish(c);

  const auto metrics = read_metrics(temporary_ / "out");
  ASSERT_EQ(metrics.size(), 2u);
  for (const auto& m : metrics) {
    EXPECT_EQ(m.at("skipped"), true);
    const std::string tensor = m.at("skipped_tensor");
    EXPECT_TRUE(initial.contains(tensor)) << tensor;
    EXPECT_GT(m.at("lr").get<double>(), 0) << "a step that would have changed the weights";
    const auto log = lines_of(o.err);
    EXPECT_TRUE(std::any_of(log.begin(), log.end(), [&](const std::string& line) {
      return line.find("step " + m.at("step").dump() + ":") != std::string::npos &&
             line.find("'" + tensor + "'") != std::string::npos && line.find("skipped") != std::string::npos;
    })) << o.err;
  }

  const fs::path saved = checkpoint("out", 2);
  const auto weights = read_safetensors(saved / (GetParam() == "bf16" ? "master.safetensors" : "model.safetensors"));
  ASSERT_EQ(weights.size(), initial.size());
  for (const auto& [name, tensor] : initial)
    EXPECT_EQ(std::memcmp(weights.at(name).values.data(), tensor.values.data(), tensor.values.size() * sizeof(float)),
              0)
        << name;
  for (const char* file : {"exp_avg.safetensors", "exp_avg_sq.safetensors"}) {
    const auto moments = read_safetensors(saved / file);
    ASSERT_EQ(moments.size(), initial.size());
    for (const auto& [name, tensor] : moments)
      EXPECT_TRUE(std::all_of(tensor.values.begin(), tensor.values.end(),
                              [](float v) { return std::bit_cast<std::uint32_t>(v) == 0; }))
          << file << " " << name;
  }
  const auto state = read_json(saved / "trainer_state.json");
  EXPECT_EQ(state.at("global_step"), 2);
  EXPECT_EQ(state.at("updates"), 0) << "AdamW's bias correction counts the updates made";
}

INSTANTIATE_TEST_SUITE_P(DTypes, NonFinite, testing::Values("fp32", "bf16"), [](const auto& i) { return i.param; });

}  // namespace
}  // namespace so::test
