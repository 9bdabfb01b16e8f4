// Training under every schedule and split of the optimizer state, with evaluations and saves in between, left alone and
// resumed under another: the same bytes in every checkpoint and in the end.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "support/files.h"
#include "support/process.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Manner {
  const char* mode;
  const char* ratio;
};

// Whether steps are clipped always or rarely; micro-batches a step.
class EverySchedule : public testing::TestWithParam<std::tuple<bool, int>> {
 protected:
  fs::path train(const std::string& output, const Manner& manner, bool resume = false) const {
    const fs::path fixture = model_fixture("qwen3-tied");
    const auto [always, micro_batches] = GetParam();
    TrainCommand c(fixture / "model", fixture / "data.jsonl", temporary_ / output);
    c.set("dtype", "bf16").set("shuffle", "true").set("batch_size", "2").set("max_length", "48").set("max_steps", "20");
    c.set("gradient_accumulation_steps", std::to_string(micro_batches)).set("num_train_epochs", "2");
    c.set("lr", "2e-3").set("max_grad_norm", always ? "1e-3" : rare_norm(micro_batches));
    c.set("save_steps", "6").set("eval_steps", "5").set("eval_data", evaluation_data_.string());
    c.set("bucket_size", "16384").set("cache_dir", (temporary_ / "cache").string());
    c.set("mode", manner.mode).set("offload_ratio", manner.ratio);
    if (resume) c.flag("resume");
    const Outcome o = run(c.words(), temporary_.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return temporary_ / output;
  }
  // Above most of this fixture's norms.
  static const char* rare_norm(int micro_batches) { return micro_batches == 1 ? "4.1" : "1.95"; }

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
    std::istringstream lines(read_file(model_fixture("qwen3-tied") / "data.jsonl"));
    std::string first, line;
    for (int i = 0; i < 4 && std::getline(lines, line); ++i) first += line + "\n";
    write_file(temporary_ / "evaluation.jsonl", first);
    return temporary_ / "evaluation.jsonl";
  }();
};

TEST_P(EverySchedule, EndsInTheSameBytes) {
  const fs::path reference = train("reference", {"zerooffload", "1"});
  const auto [always, micro_batches] = GetParam();
  const auto metrics = read_metrics(reference);
  const double most = always ? 1e-3 : std::stod(rare_norm(micro_batches));
  const auto clipped = std::count_if(metrics.begin(), metrics.end(),
                                     [&](const json& line) { return line.value("grad_norm", 0.0) > most; });
  EXPECT_GT(clipped, 0);
  EXPECT_TRUE(always ? clipped == 20 : clipped < 10) << clipped;

  struct Case {
    const char* name;
    Manner first, resumed;
  };
  for (const Case& c : {Case{"host", {"superoffload", "1"}, {"superoffload", "1"}},
                        Case{"split", {"superoffload", "0.5"}, {"zerooffload", "0.5"}},
                        Case{"device", {"superoffload", "0"}, {"superoffload", "0.5"}}}) {
    SCOPED_TRACE(c.name);
    const fs::path whole = train(c.name, c.first);
    expect_same(whole, reference);
    const fs::path copy = rewound(whole);
    train(copy.filename().string(), c.resumed, true);
    expect_same(copy, reference);
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, EverySchedule, testing::Combine(testing::Bool(), testing::Values(1, 3)),
                         [](const auto& i) {
                           return std::string(std::get<0>(i.param) ? "clipped_always" : "clipped_rarely") +
                                  "_micro_batches_" + std::to_string(std::get<1>(i.param));
                         });

}  // namespace
}  // namespace so::test
