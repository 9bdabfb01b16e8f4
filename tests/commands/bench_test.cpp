// superoffload bench step and bench ops. What they measure depends on the machine; what they report about must not.
#include <gtest/gtest.h>

#include <cmath>

#include "plan/step_figures.h"
#include "support/label.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/refusal.h"
#include "support/trace_reader.h"
#include "support/training_run.h"

namespace so::test {
namespace {

using Words = std::vector<std::string>;

nlohmann::json result_of(const Words& words, const TemporaryDirectory& directory) {
  Words all{test::binary()};
  all.insert(all.end(), words.begin(), words.end());
  const Outcome outcome = run(all, directory.path());
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return nlohmann::json::parse(outcome.out);
}

Words step_of(const std::string& config, const Words& more) {
  Words words{"bench",        "step", "--config", config, "--device", "cpu", "--batch_size", "2",
              "--max_length", "40",   "--steps",  "2",    "--warmup", "1",   "--json"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}
Words step(const std::string& fixture, const Words& more) {
  return step_of((model_fixture(fixture) / "model").string(), more);
}

TEST(BenchStep, ReportsOfEveryOptimizerAndDtype) {
  const TemporaryDirectory directory;
  for (const char* fixture : {"qwen3-tied", "llama-bias"}) {
    const double vocabulary = read_json(model_fixture(fixture) / "model" / "config.json")["vocab_size"];
    for (const Words& more :
         {Words{"--no_optimizer"}, Words{"--no_optimizer", "--activation_checkpointing"}, Words{},
          Words{"--offload_optimizer", "none"}, Words{"--dtype", "bf16"}, Words{"--no_optimizer", "--dtype", "bf16"}}) {
      SCOPED_TRACE(testing::PrintToString(more));
      const auto result = result_of(step(fixture, more), directory);
      const std::string first = more.empty() ? "" : more[0];
      EXPECT_EQ(result["optimizer"], first == "--no_optimizer"        ? "none"
                                     : first == "--offload_optimizer" ? "device"
                                                                      : "cpu");
      EXPECT_EQ(result["keep"],
                more.size() == 2 && more[1] == "--activation_checkpointing" ? "layer inputs only" : "all");
      const double median = result["step_seconds"]["median"];
      EXPECT_GE(median, result["step_seconds"]["min"].get<double>());
      EXPECT_LE(median, result["step_seconds"]["max"].get<double>());
      EXPECT_NEAR(result["tokens_per_s"].get<double>() * median, 80, 1e-6);
      EXPECT_NEAR(result["share_of_gemm_limit"].get<double>(),
                  result["model_tflops"].get<double>() / result["gemm_tflops"].get<double>(), 1e-9);
      ASSERT_EQ(result.contains("overlap"), first != "--no_optimizer");
      if (first != "--no_optimizer") {
        std::vector<MeasuredStep> steps;
        for (const auto& seconds : result["step_seconds"]["all"]) {
          steps.push_back({.model_flops = 1});  // the same work each time
          steps.back().overlap.seconds = seconds.template get<double>();
        }
        double parts = 0;
        for (const auto& [name, part] : result["overlap"]["host_seconds"].items()) parts += part.template get<double>();
        if (first == "--offload_optimizer")
          EXPECT_EQ(parts, 0) << "no optimizer state is the host's";
        else
          EXPECT_NEAR(parts, figures_of(steps).seconds(), 1e-9);
        EXPECT_GT(result["overlap"]["efficiency"], 0);
      }
      const auto& summary = result["summary"];
      EXPECT_FALSE(summary.contains("step_seconds")) << "nothing is planned from rates on the CPU device";
      EXPECT_GT(summary["host_bytes"]["planned"], 0);
      EXPECT_GT(summary["host_bytes"]["measured"], 0);
      EXPECT_NEAR(summary["device_bytes"]["difference"].get<double>(), 0, 0.01);
      // Random weights know nothing: the loss is that of a uniform guess, give or take what the logits spread.
      EXPECT_NEAR(result["first_loss"].get<double>(), std::log(vocabulary), 0.1);
      double shares = 0;
      for (const auto& [name, category] : result["time"]["categories"].items())
        shares += category["share"].get<double>();
      EXPECT_NEAR(shares, 1, 1e-9);
      EXPECT_GT(result["time"]["categories"]["matrix products"]["share"], 0);
      EXPECT_GT(result["time"]["categories"]["attention"]["share"], 0);
      EXPECT_EQ(result["time"]["categories"]["other kernels"]["count"], 0);
    }
  }
}

// Routing, products of experts and the loss of their load among them.
TEST(BenchStep, KnowsEveryOperationOfExperts) {
  const TemporaryDirectory directory;
  for (const char* fixture : {"gpt-oss", "qwen3-moe-balance"})
    for (const char* dtype : {"fp32", "bf16"}) {
      SCOPED_TRACE(testing::Message() << fixture << " " << dtype);
      const auto result = result_of(step(fixture, {"--dtype", dtype}), directory);
      EXPECT_EQ(result["time"]["categories"]["other kernels"]["count"], 0);
      EXPECT_GT(result["time"]["categories"]["matrix products"]["count"], 0);
    }
}

TEST(BenchStep, SplitsTheStateAsAsked) {
  const TemporaryDirectory directory;
  EXPECT_EQ(result_of(step("qwen3-tied", {}), directory)["host_share"], 1);
  const auto split = result_of(step("qwen3-tied", {"--offload_ratio", "0.5", "--mode", "zerooffload"}), directory);
  EXPECT_GT(split["host_share"], 0);
  EXPECT_LE(split["host_share"], 0.5);
  EXPECT_EQ(split["mode"], "zerooffload");
  EXPECT_EQ(split["spare_buckets"], 0);
  EXPECT_EQ(result_of(step("qwen3-tied", {"--offload_ratio", "0"}), directory)["host_share"], 0);
}

TEST(BenchStep, TheCpuHasNoQuickerOrder) {
  for (const char* state : {"", "--no_optimizer"}) {
    Words words = step("qwen3-tied", {"--deterministic", "false"});
    words.insert(words.begin(), test::binary());
    if (*state != 0) words.push_back(state);
    const TemporaryDirectory directory;
    const Outcome o = run(words, directory.path());
    EXPECT_EQ(o.exit_code, 2);
    EXPECT_NE(o.err.find("--deterministic false: the CPU has no quicker way"), std::string::npos) << o.err;
  }
}

// A step returns before the device's last updates are done: neither the trace nor the program may end before they are.
SO_LABEL(sweep, "BenchStep.WaitsForTheDevicesLastUpdates");
TEST(BenchStep, WaitsForTheDevicesLastUpdates) {
  const TemporaryDirectory directory;
  for (int round = 0; round < 8; ++round)
    EXPECT_EQ(result_of(step("gpt-oss", {"--offload_optimizer", "none"}), directory)["host_share"], 0);
}

// Those of the device's buckets, here hundreds, that lie one behind the other are updated in one launch a step.
TEST(BenchStep, UpdatesAdjacentBucketsOfTheDeviceAtOnce) {
  const TemporaryDirectory directory;
  const auto result =
      result_of(step("qwen3-tied", {"--offload_optimizer", "none", "--bucket_size", "4096"}), directory);
  ASSERT_EQ(result["time"]["traced_steps"], 2);
  int launches = 0;
  for (const auto& kernel : result["time"]["kernels"])
    if (kernel["name"] == "AdamW") launches += kernel["count"].get<int>();
  EXPECT_EQ(launches, 2);
}

TEST(BenchStep, StreamsWeightsAsAsked) {
  const TemporaryDirectory directory;
  const auto resident = result_of(step("qwen3-moe", {"--streamed_layers", "0"}), directory),
             streamed = result_of(step("qwen3-moe", {"--streamed_layers", "1000"}), directory);
  EXPECT_EQ(streamed["last_loss"], resident["last_loss"]);
  EXPECT_EQ(resident["streamed_units"], 0);
  EXPECT_EQ(streamed["streamed_units"], 3) << "all layers";
}

SO_LABEL(sweep, "BenchStep.KeepsMomentsAsAsked");
TEST(BenchStep, KeepsMomentsAsAsked) {
  const TemporaryDirectory directory;
  // Large enough that what the process itself takes, which differs by half a megabyte, does not count.
  const std::string config = test::source_tree() + "/configs/quickstart.json";
  const auto full = result_of(step_of(config, {}), directory),
             half = result_of(step_of(config, {"--optimizer_state_dtype", "bf16"}), directory),
             quarter = result_of(step_of(config, {"--optimizer_state_dtype", "fp8"}), directory);
  EXPECT_EQ(full["optimizer_state_dtype"], "float32");
  EXPECT_EQ(half["optimizer_state_dtype"], "bfloat16");
  EXPECT_EQ(quarter["optimizer_state_dtype"], "fp8");
  const auto planned = [](const auto& result) {
    return result["summary"]["host_bytes"]["planned"].template get<double>();
  };
  const double saved = 4 * full["parameters"].get<double>();  // two moments, two bytes of each
  EXPECT_LT(planned(half), planned(full) - 0.9 * saved);
  EXPECT_LT(planned(quarter), planned(half) - 0.4 * saved);
  for (const auto& narrow : {half, quarter}) EXPECT_EQ(narrow["first_loss"], full["first_loss"]);
}

TEST(BenchStep, AddsUpMicroBatches) {
  const TemporaryDirectory directory;
  const auto once = result_of(step("qwen3-tied", {"--breakdown", "false"}), directory),
             thrice = result_of(step("qwen3-tied", {"--gradient_accumulation_steps", "3"}), directory);
  EXPECT_FALSE(once.contains("time"));
  EXPECT_EQ(thrice["gradient_accumulation_steps"], 3);
  EXPECT_EQ(thrice["first_loss"], once["first_loss"]) << "of the same rows";
  const double tokens = thrice["tokens_per_s"].get<double>() * thrice["step_seconds"]["median"].get<double>();
  EXPECT_NEAR(tokens, 240, 1e-6);
  const auto flops = [](const auto& r) {
    return r["model_tflops"].template get<double>() * r["step_seconds"]["median"].template get<double>();
  };
  EXPECT_NEAR(flops(thrice) / flops(once), 3, 1e-9);
}

SO_LABEL(sweep, "BenchStep.LeavesOutWhatIsFrozen");
TEST(BenchStep, LeavesOutWhatIsFrozen) {
  const TemporaryDirectory directory;
  const auto flops = [](const auto& r, const char* count) {
    return r[count].template get<double>() * r["step_seconds"]["median"].template get<double>();
  };
  const auto bytes = [](const auto& r) { return r["summary"]["device_bytes"]["planned"].template get<double>(); };
  for (const Words& optimizer : {Words{}, Words{"--no_optimizer"}, Words{"--offload_ratio", "0.5"}}) {
    SCOPED_TRACE(testing::PrintToString(optimizer));
    const auto frozen = [&](const std::string& patterns) {
      Words more = optimizer;
      if (!patterns.empty()) more.insert(more.end(), {"--freeze", patterns});
      return result_of(step("qwen3-untied-v4", more), directory);
    };
    const auto all = frozen(""), low = frozen("model.embed_tokens.*,model.layers.0.*"), mlp = frozen("*.mlp.*");
    EXPECT_EQ(all["trained_parameters"], all["parameters"]);
    for (const auto& some : {low, mlp}) {
      EXPECT_EQ(some["parameters"], all["parameters"]);
      EXPECT_LT(some["trained_parameters"], all["parameters"]);
      EXPECT_EQ(some["first_loss"], all["first_loss"]);
      for (const char* count : {"model_tflops", "reference_tflops"}) EXPECT_LT(flops(some, count), flops(all, count));
      EXPECT_LT(bytes(some), bytes(all)) << "no gradients";
      EXPECT_NEAR(some["summary"]["device_bytes"]["difference"].get<double>(), 0, 0.01);
    }
  }
}

TEST(BenchStep, WritesATraceOfTwoSteps) {
  const TemporaryDirectory directory;
  // The host's work of a step ends with it, and there is some.
  const Words options = {"--trace", (directory / "t.json").string(), "--offload_ratio", "1", "--mode", "zerooffload"};
  result_of(step("qwen3-tied", options), directory);
  const WrittenTrace trace = read_trace(directory / "t.json");
  EXPECT_TRUE(trace.streams.contains("compute"));
  const auto names = trace.names(trace.threads);
  EXPECT_TRUE(
      std::any_of(names.begin(), names.end(), [](const auto& name) { return name.starts_with("AdamW: update "); }));
  const auto& main = trace.threads.at("main");
  EXPECT_EQ(std::count_if(main.begin(), main.end(), [](const auto& span) { return span.name == "step"; }), 2);
}

TEST(BenchStep, ForPeopleSaysTheSame) {
  const TemporaryDirectory directory;
  Words words = step("qwen3-tied", {"--freeze", "*norm.weight"});
  std::erase(words, "--json");
  words.insert(words.begin(), test::binary());
  const Outcome outcome = run(words, directory.path());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part : {"tokens/s", "TFLOP/s", "peak host memory", "planned", "matrix products", "attention",
                           "memory-bound kernels", "idle", "frozen: "})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part;
}

SO_LABEL(sweep, "BenchStep.RefusesWhatDoesNotFitBeforeAnyWork");
TEST(BenchStep, RefusesWhatDoesNotFitBeforeAnyWork) {
  const TemporaryDirectory directory;
  const auto refused = [&](const Words& more, const Words& needles) {
    Words words{test::binary(), "bench", "step", "--device", "cpu"};
    words.insert(words.end(), more.begin(), more.end());
    expect_refusal(run(words, directory.path()), needles);
  };
  // Of a size whose memory is planned well within the two seconds that the search for advice has, on a slow CPU too.
  refused({"--config", "seed-oss-36b", "--batch_size", "4", "--no_optimizer"}, {"not enough memory", "of host memory"});
  refused({"--config", "llama-3.3-70b", "--batch_size", "64"}, {"not enough memory", "of host memory"});
  refused({"--config", "qwen3-0.6b", "--batch_size", "50000", "--max_length", "50000"}, {"too many tokens"});
  refused({"--config", "seed-oss-36b"}, {"not enough memory"});
  refused({"--config", "qwen3-0.6b", "--no_optimizer", "--offload_optimizer", "cpu"}, {"there is no optimizer"});
  refused({"--config", "qwen3-0.6b", "--no_optimizer", "--mode", "zerooffload"}, {"there is no optimizer"});
  refused({"--config", "qwen3-0.6b", "--no_optimizer", "--optimizer_state_dtype", "bf16"}, {"there is no optimizer"});
  refused({"--config", "qwen3-0.6b", "--offload_optimizer", "none", "--offload_ratio", "0.5"}, {"nothing", "to split"});
  refused({"--config", "qwen3-0.6b", "--cpu_threads", "100000"}, {"--cpu_threads 100000", "CPUs"});
  refused({"--config", "qwen3-0.6b", "--trace", "/proc/none/t.json"}, {"/proc/none"});
  refused({"--config", "qwen3-0.6b", "--freeze", "model.layer.*"}, {"--freeze model.layer.*", "no parameter"});
}

TEST(BenchOps, TimesEveryOperation) {
  const TemporaryDirectory directory;
  for (const auto& [fixture, dtype] : {std::pair("qwen3-tied", "bf16"), std::pair("llama-bias", "fp32")}) {
    const auto result = result_of({"bench", "ops", "--config", (model_fixture(fixture) / "model").string(), "--device",
                                   "cpu", "--tokens", "50", "--max_length", "20", "--dtype", dtype, "--json"},
                                  directory);
    EXPECT_EQ(result["tokens"], 50);
    EXPECT_EQ(result["max_length"], 20);
    std::set<std::string> names;
    for (const auto& row : result["ops"]) {
      names.insert(row["op"].get<std::string>());
      EXPECT_GT(row["seconds"], 0) << row;
      EXPECT_NEAR(row["share"].get<double>() * row["seconds"].get<double>(), row["floor_seconds"].get<double>(), 1e-12);
      EXPECT_NE(row.contains("bytes"), row.contains("flops")) << row;
    }
    for (const char* name :
         {"embedding", "embedding_grad", "add_rms_norm", "rms_norm_grad", "rotary q", "rotary_grad k", "attention",
          "attention_grad", "swiglu", "swiglu_grad", "swiglu_grad, activated", "linear qkv", "linear_grad_input o",
          "linear_grad_weight down", "linear_cross_entropy", "grad_stats", "cast fp32 to bf16", "AdamW"})
      EXPECT_TRUE(names.contains(name)) << name;
    EXPECT_EQ(names.contains("linear_grad_bias qkv"), std::string(fixture) == "llama-bias");
    EXPECT_FALSE(names.contains("expert_linear gate_up"));
  }
}

SO_LABEL(sweep, "BenchOps.TimesTheExpertsThatAModelHas");
TEST(BenchOps, TimesTheExpertsThatAModelHas) {
  const TemporaryDirectory directory;
  for (const char* fixture : {"qwen3-moe", "gpt-oss"}) {
    const auto result = result_of({"bench", "ops", "--config", (model_fixture(fixture) / "model").string(), "--device",
                                   "cpu", "--tokens", "50", "--max_length", "20", "--json"},
                                  directory);
    std::set<std::string> names;
    for (const auto& row : result["ops"]) names.insert(row["op"].get<std::string>());
    for (const char* name :
         {"expert_linear gate_up", "expert_linear_grad_input down", "expert_linear_grad_weight down"})
      EXPECT_TRUE(names.contains(name)) << fixture << ": " << name;
  }
}

TEST(BenchOps, TimesProductsInFp8AndTheOpsThatLeaveTheirOperands) {
  const TemporaryDirectory directory;
  const auto result = result_of({"bench", "ops", "--config", (model_fixture("fp8-products") / "model").string(),
                                 "--device", "cpu", "--tokens", "50", "--max_length", "20", "--fp8", "true", "--json"},
                                directory);
  std::set<std::string> names;
  for (const auto& row : result["ops"]) names.insert(row["op"].get<std::string>());
  for (const char* name :
       {"fp8 linear qkv", "fp8 linear_grad_input o", "fp8 linear_grad_weight down", "fp8_quantise x gate_up",
        "fp8_quantise x by column o", "fp8_quantise dy, both, qkv", "fp8_quantise w down", "add_rms_norm to fp8",
        "fp8_quantise_norm", "swiglu to fp8", "fp8_swiglu_grad"})
    EXPECT_TRUE(names.contains(name)) << name;
}

TEST(BenchOps, TimesTheStateSpacesThatAModelHas) {
  const TemporaryDirectory directory;
  const auto result = result_of({"bench", "ops", "--config", (model_fixture("nemotron-h") / "model").string(),
                                 "--device", "cpu", "--tokens", "50", "--max_length", "20", "--json"},
                                directory);
  std::set<std::string> names;
  for (const auto& row : result["ops"]) names.insert(row["op"].get<std::string>());
  for (const char* name :
       {"causal_conv", "causal_conv_grad", "step_gates", "step_gates_grad", "state_space", "state_space_grad",
        "gate_then_norm", "gate_then_norm_grad", "linear space in", "linear_grad_weight space out"})
    EXPECT_TRUE(names.contains(name)) << name;
}

TEST(BenchLoad, TimesReadingCopyingAndLoading) {
  const TemporaryDirectory directory;
  for (const char* dtype : {"fp32", "bf16"}) {
    const std::string model = (model_fixture("llama-sharded") / "model").string();
    const auto result = result_of(
        {"bench", "load", "--model", model, "--device", "cpu", "--dtype", dtype, "--rounds", "3", "--json"}, directory);
    EXPECT_EQ(result["dtype"], std::string(dtype) == "fp32" ? "float32" : "bfloat16");
    EXPECT_GT(result["bytes"], 50'000);
    const double read = result["read_seconds"], copy = result["copy_seconds"], load = result["load_seconds"];
    EXPECT_GT(std::min({read, copy, load}), 0);
    EXPECT_NEAR(result["ratio_to_read_plus_copy"].get<double>(), load / (read + copy), 1e-9);
    EXPECT_NEAR(result["share_of_limit"].get<double>(), std::max(read, copy) / load, 1e-9);
  }
}

}  // namespace
}  // namespace so::test
