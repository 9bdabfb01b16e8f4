// Training under every schedule and split of the optimizer state, with evaluations and saves in between, left alone and
// resumed under another: the same bytes in every checkpoint and in the end.
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "support/files.h"
#include "support/label.h"
#include "support/process.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Manner {
  const char* mode;
  const char* ratio;
  const char* streamed = "0";  // layers, at most
  const char* moves_gradients = "auto";
};

struct Run {
  const char* model;
  int micro_batches;        // a step
  const char* rarely = "";  // a norm above most of this run's; empty: every step is clipped
  const char* sums = "fp32";
  const char* most() const { return *rarely ? rarely : "1e-3"; }
};

class EverySchedule : public testing::TestWithParam<Run> {
 protected:
  fs::path train(const std::string& output, const Manner& manner, bool resume = false) const {
    const fs::path fixture = model_fixture(GetParam().model);
    TrainCommand c(fixture / "model", fixture / "data.jsonl", temporary_ / output);
    c.set("dtype", "bf16").set("shuffle", "true").set("batch_size", "2").set("max_length", "48").set("max_steps", "20");
    c.set("gradient_accumulation_steps", std::to_string(GetParam().micro_batches)).set("num_train_epochs", "2");
    c.set("grad_accum_dtype", GetParam().sums).set("lr", "2e-3").set("max_grad_norm", GetParam().most());
    c.set("save_steps", "6").set("eval_steps", "5").set("eval_data", evaluation_data_.string());
    c.set("bucket_size", "16384").set("cache_dir", (temporary_ / "cache").string());
    c.set("offload_ratio", manner.ratio);
    // Where the host has no state there is nothing to schedule, and these are refused.
    if (std::string_view(manner.ratio) != "0")
      c.set("mode", manner.mode).set("streamed_layers", manner.streamed).set("move_gradients", manner.moves_gradients);
    if (resume) c.flag("resume");
    const Outcome o = run(c.words(), temporary_.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return temporary_ / output;
  }
  // The run as it was when its checkpoint of step 6 had just been made; its log has later steps, as after a kill.
  fs::path rewound(const fs::path& whole) const {
    const fs::path copy = whole.string() + "-resumed";
    fs::copy(whole, copy, fs::copy_options::recursive);
    for (const char* step : {"12", "18", "20"}) fs::remove_all(copy / (std::string("checkpoint-") + step));
    fs::remove(copy / "model.safetensors");
    return copy;
  }

  // All but times and memory.
  static std::vector<json> results_of(const fs::path& output) {
    std::vector<json> all;
    for (const json& line : read_metrics(output)) {
      json kept;
      for (const auto& [key, value] : line.items())
        if (key == "step" || key.find("loss") != std::string::npos || key == "grad_norm" || key == "lr")
          kept[key] = value;
      all.push_back(kept);
    }
    return all;
  }

  static void expect_same(const fs::path& got, const fs::path& want) {
    std::vector<std::string> files{"model.safetensors"};
    for (const char* step : {"6", "12", "18", "20"})
      for (const char* name : {"model", "master", "exp_avg", "exp_avg_sq"})
        files.push_back(std::string("checkpoint-") + step + "/" + name + ".safetensors");
    for (const auto& file : files)
      EXPECT_TRUE(read_file(got / file) == read_file(want / file)) << file << " of " << got;
    EXPECT_EQ(results_of(got), results_of(want));
  }

  TemporaryDirectory temporary_;
  fs::path evaluation_data_ = [&] {
    std::istringstream lines(read_file(model_fixture(GetParam().model) / "data.jsonl"));
    std::string first, line;
    for (int i = 0; i < 4 && std::getline(lines, line); ++i) first += line + "\n";
    write_file(temporary_ / "evaluation.jsonl", first);
    return temporary_ / "evaluation.jsonl";
  }();
};

SO_LABEL(sweep, "Runs/EverySchedule.*");
TEST_P(EverySchedule, EndsInTheSameBytes) {
  const fs::path reference = train("reference", {"zerooffload", "1"});
  const auto metrics = read_metrics(reference);
  const double most = std::stod(GetParam().most());
  const auto clipped = std::count_if(metrics.begin(), metrics.end(),
                                     [&](const json& line) { return line.value("grad_norm", 0.0) > most; });
  EXPECT_GT(clipped, 0);
  EXPECT_TRUE(*GetParam().rarely ? clipped < 10 : clipped == 20) << clipped;

  struct Case {
    const char* name;
    Manner first, resumed;
  };
  for (const Case& c : {Case{"host", {"superoffload", "1"}, {"superoffload", "1", "0", "true"}},
                        Case{"streamed", {"superoffload", "1", "1000"}, {"zerooffload", "0.7", "1", "true"}},
                        Case{"split", {"superoffload", "0.5", "0", "true"}, {"zerooffload", "0.5"}},
                        Case{"device", {"superoffload", "0"}, {"superoffload", "0.5"}}}) {
    SCOPED_TRACE(c.name);
    const fs::path whole = train(c.name, c.first);
    expect_same(whole, reference);
    const fs::path copy = rewound(whole);
    train(copy.filename().string(), c.resumed, true);
    expect_same(copy, reference);
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, EverySchedule,
                         testing::Values(Run{"qwen3-tied", 1, "4.1"}, Run{"qwen3-tied", 3, "1.95"},
                                         Run{"qwen3-tied", 1}, Run{"qwen3-tied", 3}, Run{"gpt-oss", 1, "8"},
                                         Run{"gpt-oss", 3, "", "bf16"}),
                         [](const auto& i) {
                           std::string model = i.param.model;
                           std::replace(model.begin(), model.end(), '-', '_');
                           return model + (*i.param.rarely ? "_clipped_rarely" : "_clipped_always") +
                                  "_micro_batches_" + std::to_string(i.param.micro_batches);
                         });

}  // namespace
}  // namespace so::test
