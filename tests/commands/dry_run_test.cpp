// --dry_run plans and refuses as a run does, and leaves nothing behind.
#include "support/refusal.h"

namespace so::test {
namespace {

class DryRun : public RefusalTest {
 protected:
  TrainCommand dry() const {
    TrainCommand c = command();
    return c.set("output_dir", (temporary_ / "new").string())
        .set("cache_dir", (temporary_ / "cache").string())
        .flag("dry_run");
  }
  Outcome run_dry(const TrainCommand& c) const { return run(c.words(), temporary_.path()); }
  // The plan, of the settings those that are not the defaults, and at the end the verdict.
  void expect_plan(const Outcome& outcome) const {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    expect_in(outcome.out, {"plan: ", "memory: ", "output: ", "disk: ", "activations kept"});
    EXPECT_EQ(lines_of(outcome.out).back(), "dry run: it fits; nothing was trained");
    expect_in(outcome.out, {"\n  max_steps ", "\n  output_dir "});
    for (const char* part : {"step 1", "log_interval", "lr_scheduler", "memory plan"})
      EXPECT_EQ((outcome.out + outcome.err).find(part), std::string::npos) << part << outcome.out << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(temporary_ / "new"));
  }
  static void expect_in(const std::string& text, const std::vector<std::string>& parts) {
    for (const auto& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
};

TEST_F(DryRun, SaysThePlanAndWritesNoOutput) {
  expect_plan(run_dry(dry()));
  // A run's output directory is as it was, whatever the run would do to it.
  const auto before = snapshot(output());
  const Outcome outcome = run_dry(dry().set("output_dir", output().string()));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(snapshot(output()) == before);
}

TEST_F(DryRun, SaysWhatAnOptionDoesNotChange) {
  const std::string idle = "--mask_history changes nothing in token id records";
  const Outcome given = run_dry(dry().flag("mask_history")), without = run_dry(dry());
  EXPECT_EQ(given.exit_code, 0) << given.err;
  expect_in(given.err, {idle});
  EXPECT_EQ(without.err.find(idle), std::string::npos) << without.err;
}

TEST_F(DryRun, NeedsNoWeights) {
  const Outcome with = run_dry(dry().flag("verbose"));
  std::filesystem::remove(weights());
  expect_plan(run_dry(dry()));
  const Outcome without = run_dry(dry().flag("verbose"));
  expect_in(without.err, {"memory plan", "optimizer state", "activations"});
  expect_in(without.err, {"has no weights: planning by its config.json"});
  const auto table = [](const std::string& err) {
    const std::size_t begin = err.find("pinned"), end = err.find("program and data so far");
    return begin < end ? err.substr(begin, end - begin) : err;
  };
  EXPECT_EQ(table(without.err), table(with.err)) << "the same plan";
  // A run does need them.
  const Outcome real = run(command().set("output_dir", (temporary_ / "new").string()).words(), temporary_.path());
  expect_refusal(real, {"no weights"});
}

TEST_F(DryRun, RefusesWeightsThatARunWouldRefuse) {
  std::filesystem::resize_file(weights(), 1000);
  expect_refusal(run_dry(dry()), {"model.safetensors"});
  std::filesystem::remove(weights());
  write_file(model() / "pytorch_model.bin", "pickle");
  expect_refusal(run_dry(dry()), {"pytorch_model.bin", "convert it"});
}

TEST_F(DryRun, RefusesWhatARunWouldRefuse) {
  const auto resumed = [&](const std::string& from) {
    return dry().set("output_dir", output().string()).set("resume", from);
  };
  const std::string missing = (output() / "missing").string();
  expect_refused(resumed((output() / "earlier").string()), {"is not a complete checkpoint"});
  expect_refused(resumed(missing), {"--resume " + missing, "no such directory", "holds no checkpoint"});
  expect_refused(resumed("true"), {"--resume true", "latest"});
  expect_refusal(run_dry(dry().set("max_length", "1000000")), {"--max_length 1000000"});
  write_file(output() / "metrics.jsonl", R"({"step":1,"reference_tflops":1})"
                                         "\n");
  expect_refusal(run_dry(dry().set("output_dir", output().string())), {"already holds a run"});
  replace_record(2, "{");
  expect_refusal(run_dry(dry()), {"data.jsonl:2"});
  EXPECT_FALSE(std::filesystem::exists(temporary_ / "new"));
}

}  // namespace
}  // namespace so::test
