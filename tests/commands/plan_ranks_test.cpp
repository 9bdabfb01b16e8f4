// superoffload plan --gpus: what one of several ranks and its host take.
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/files.h"
#include "support/label.h"
#include "support/paths.h"
#include "support/planned.h"
#include "support/process.h"
#include "support/refusal.h"

namespace so::test {
namespace {

using nlohmann::json;

// By name, of one rank.
double state_of(const Planned& p) {
  double bytes = 0;
  for (const json& entry : p.result.at("memory"))
    for (const char* name : {"master weights", "first moments", "second moments"})
      if (entry.at("name") == name) bytes += entry.at("bytes").get<double>();
  return bytes;
}

SO_LABEL(sweep, "PlanRanks.EachHasItsSliceOfTheStateAndAllOfTheWeights");
TEST(PlanRanks, EachHasItsSliceOfTheStateAndAllOfTheWeights) {
  const auto with = [](const char* gpus) {
    return plan(
        {"--model", "qwen3-4b", "--offload_ratio", "1", "--batch_size", "1", "--bucket_size", "16MiB", "--gpus", gpus});
  };
  const Planned one = with("1"), two = with("2"), four = with("4");
  EXPECT_FALSE(one.result.contains("ranks"));
  EXPECT_LT(four.expected("step_seconds"), two.expected("step_seconds")) << "AdamW bounds it, on half of the elements";
  // Slices begin at cache lines, and the places of spare state are those of the largest bucket.
  EXPECT_NEAR(state_of(two) / state_of(one), 0.5, 0.01);
  EXPECT_NEAR(state_of(four) / state_of(one), 0.25, 0.01);
  for (const Planned* p : {&two, &four}) {
    const json& ranks = p->result.at("ranks");
    const auto gpus = ranks.at("gpus").get<double>();
    EXPECT_EQ(ranks.at("hosts"), 1);
    EXPECT_EQ(p->result.at("host_share"), 1);
    EXPECT_EQ(p->result.at("streamed_units"), 0);
    for (const char* bytes : {"planned_bytes", "available_bytes"})
      EXPECT_EQ(ranks.at("memory_of_a_host").at(bytes).get<double>(),
                gpus * p->result.at("host_memory").at(bytes).get<double>());
    EXPECT_NEAR(ranks.at("tokens_per_s").get<double>(), gpus * p->expected("tokens_per_s"), 1);
    EXPECT_EQ(ranks.at("longest_work"), "host_adamw");
    EXPECT_GT(ranks.at("collective_seconds").get<double>(), 0);
    EXPECT_LE(ranks.at("collective_waiting_seconds").get<double>(), p->expected("waiting_seconds") + 1e-9);
  }
}

// With room for it the plan puts state on the GPUs; all of it there leaves nothing to the hosts.
SO_LABEL(sweep, "PlanRanks.TheDeviceOwnsStateToo");
TEST(PlanRanks, TheDeviceOwnsStateToo) {
  const auto with = [](const std::vector<std::string>& more) {
    std::vector<std::string> words{"--model", "qwen3-4b", "--batch_size", "1", "--bucket_size", "16MiB", "--gpus", "4"};
    words.insert(words.end(), more.begin(), more.end());
    return plan(words);
  };
  const Planned host = with({"--offload_ratio", "1"}), device = with({"--offload_optimizer", "none"}), best = with({});
  EXPECT_EQ(device.result.at("host_share"), 0);
  EXPECT_NEAR(state_of(device), 4.02e9 / 4 * 12, 0.01 * state_of(device)) << "a quarter, wherever it is";
  EXPECT_NEAR(state_of(host), state_of(device), 0.04 * state_of(device)) << "places are as large as the largest slice";
  EXPECT_GT(device.total("device"), host.total("device") + static_cast<std::size_t>(0.95 * state_of(device)));
  EXPECT_LT(best.result.at("host_share"), 1);
  EXPECT_LE(best.expected("step_seconds"), 1.001 * host.expected("step_seconds"));
  // The device's own update: 12 bytes of state read and written, gradient and weight, of its slice.
  const double update = 4.02e9 / 4 * (2 * 12 + 4 + 2) / (0.94 * 4150e9);
  const Planned ten = with({"--offload_optimizer", "none", "--gradient_accumulation_steps", "10", "--grad_accum_dtype",
                            "bf16"});  // as one micro-batch has them
  const double each = (ten.expected("step_seconds") - device.expected("step_seconds")) / 9;
  const double waits = device.result.at("ranks").at("collective_waiting_seconds");
  EXPECT_NEAR(device.expected("step_seconds") - each - waits, update, 0.05 * update);
}

// The arithmetic of Qwen3-14B, 14.77 billion parameters, on four H200: a quarter of the state is 44 GB; AdamW on it,
// 32 bytes a parameter at a quarter of 204 GB/s; reductions and gathers of 29.5 GB in bf16, of which each GPU receives
// three quarters at 395 GB/s.
SO_LABEL(sweep, "PlanRanks.FourGpusAreAsTheArithmeticSays");
TEST(PlanRanks, FourGpusAreAsTheArithmeticSays) {
  const std::vector<std::string> arguments{
      "--model",           "qwen3-14b", "--gpus",           "4",    "--offload_ratio", "1",
      "--gathered_layers", "0",         "--move_gradients", "false"};
  std::vector<std::string> host_alone = arguments;
  host_alone.insert(host_alone.end(), {"--update_over_link", "false"});
  const Planned p = plan(host_alone);
  EXPECT_NEAR(state_of(p), 14.77e9 / 4 * 12, 0.02 * 44.3e9);
  double gradients = 0, weights = 0;
  for (const json& entry : p.result.at("memory")) {
    if (entry.at("name") == "gradients") gradients += entry.at("bytes").get<double>();
    if (entry.at("name") == "weights") weights += entry.at("bytes").get<double>();
  }
  EXPECT_NEAR(gradients, 14.77e9 * 2, 0.01 * 29.5e9);
  EXPECT_NEAR(weights, 14.77e9 * 2, 0.01 * 29.5e9);
  const double adamw = p.result.at("expected").at("host_seconds").at("adamw");
  EXPECT_GT(adamw, 14.77e9 / 4 * 30 / (204e9 / 4));
  EXPECT_LT(adamw, p.expected("step_seconds"));
  const json& ranks = p.result.at("ranks");
  EXPECT_NEAR(ranks.at("collective_seconds").get<double>(), 0.75 * 59.1e9 / 395e9, 0.35 * 0.112);
  EXPECT_LT(ranks.at("collective_waiting_seconds").get<double>(), 0.05 * p.expected("step_seconds"));
  EXPECT_LE(p.total("device"), 149.4e9);
  EXPECT_LT(plan(arguments).expected("step_seconds"), 0.95 * p.expected("step_seconds")) << "each GPU updates too";
}

// Llama-3.3-70B on four H200: 68.5 of its 70.6 billion parameters lie in 80 layers, of which each GPU keeps a quarter,
// gradients in fp32, and in bf16 weights of those that the host updates. Of a micro-batch it receives three quarters of
// the weights twice, but for what backward finds there, and of the gradients once, at 395 GB/s. A call takes 18.6 us:
// one for each of 4,080 buckets of gradients, and one for a layer's weights.
SO_LABEL(sweep, "PlanRanks.WhatIsTooLargeForAGpuIsGathered");
TEST(PlanRanks, WhatIsTooLargeForAGpuIsGathered) {
  const Planned p = plan({"--model", "llama-3.3-70b", "--gpus", "4", "--optimizer_state_dtype", "bf16", "--batch_size",
                          "1", "--gradient_accumulation_steps", "4", "--move_gradients", "false"});
  const json& ranks = p.result.at("ranks");
  EXPECT_EQ(ranks.at("gathered_units"), 80);
  const auto slices = [&](const char* name) {
    double bytes = 0;
    for (const json& entry : p.result.at("memory"))
      if (entry.at("name") == name) bytes += entry.at("bytes").get<double>();
    return bytes;
  };
  EXPECT_NEAR(slices("gradient slices"), 68.5e9 / 4 * 4, 0.01 * 68.5e9);
  // The embedding, which the device updates, and the head, which the host does, are no slices: 1.05 billion each.
  const double of_host = p.result.at("host_share").get<double>() * 70.6e9 - 1.05e9;
  EXPECT_EQ(p.result.at("transient_weights"), true);
  EXPECT_NEAR(slices("weight slices"), of_host / 4 * 2, 0.01 * 27.8e9);
  EXPECT_NEAR(state_of(p), 70.6e9 / 4 * 8, 0.02 * 141e9);
  const double received = 4 * 0.75 * 68.5e9 * (2 + 2 + 4) / 395e9, latency = 4 * (4080 + 2 * 80) * 18.6e-6;
  EXPECT_NEAR(ranks.at("collective_seconds").get<double>(), received + latency, 0.03 * (received + latency));
  EXPECT_LT(ranks.at("collective_waiting_seconds").get<double>(), 0.03 * p.expected("step_seconds"));
  EXPECT_LE(p.total("device"), 149.4e9);
}

SO_LABEL(sweep, "PlanRanks.MoreHostsMeanSlowerCollectivesAndLessStateForEach");
TEST(PlanRanks, MoreHostsMeanSlowerCollectivesAndLessStateForEach) {
  const auto with = [](const char* gpus) { return plan({"--model", "qwen3-4b", "--batch_size", "1", "--gpus", gpus}); };
  const Planned four = with("4"), many = with("64"), most = with("1024");
  EXPECT_EQ(most.result.at("ranks").at("hosts"), 256);
  EXPECT_NEAR(state_of(many) / state_of(four), 1.0 / 16, 0.01);
  const auto seconds = [](const Planned& p) { return p.result.at("ranks").at("collective_seconds").get<double>(); };
  EXPECT_GT(seconds(many), seconds(four));
  EXPECT_GT(seconds(most), seconds(many));
}

SO_LABEL(sweep, "PlanRanks.TheHostsMemoryIsThatOfAllItsRanks");
TEST(PlanRanks, TheHostsMemoryIsThatOfAllItsRanks) {
  const Planned p = plan({"--model", "qwen3-4b", "--batch_size", "1", "--gpus", "4", "--host_memory", "400GB"});
  EXPECT_EQ(p.result.at("host_memory").at("available_bytes"), 100e9);
  EXPECT_EQ(p.result.at("ranks").at("memory_of_a_host").at("available_bytes"), 400e9);
}

SO_LABEL(no_asan, "PlanRanks.ArePrinted");
TEST(PlanRanks, ArePrinted) {
  const TemporaryDirectory directory;
  const Outcome o =
      run({test::binary(), "plan", "--model", "qwen3-4b", "--batch_size", "1", "--gpus", "8", "--verbose"},
          directory.path());
  ASSERT_EQ(o.exit_code, 0) << o.err;
  for (const char* part : {"on each of 8 GPUs, 4 a host", "\nhost memory  ", "\nlimits  ", "\ncollectives: ", "\nRED |",
                           "\nGTH |", " a GPU)", "docs/performance/ranks.md"})
    EXPECT_NE(o.out.find(part), std::string::npos) << part;
}

SO_LABEL(sweep, "PlanRanks.RefuseWhatTheyCannotDo");
TEST(PlanRanks, RefuseWhatTheyCannotDo) {
  const TemporaryDirectory directory;
  const auto refused = [&](std::vector<std::string> words, const std::vector<std::string>& needles) {
    words.insert(words.begin(), {test::binary(), "plan", "--model"});
    expect_refusal(run(words, directory.path()), needles);
  };
  refused({"llama-3.3-70b", "--gpus", "4", "--optimizer_state_dtype", "bf16", "--gathered_layers", "0"},
          {"not enough memory", "each of several GPUs holds all weights", "--gathered_layers 0"});
  refused({"llama-3.3-70b", "--gpus", "2"}, {"not enough memory"});
  refused({"qwen3-4b", "--gathered_layers", "3"}, {"--gathered_layers 3: there is one rank"});
  refused({"qwen3-4b", "--explain", "gathering"}, {"--explain gathering", "1 GPU"});
  refused({"qwen3-4b", "--gpus", "2", "--hardware", "rtx4090"}, {"--gpus 2", "rtx4090", "between_gpus: missing"});
  refused({"qwen3-4b", "--gpus", "2", "--streamed_layers", "3"}, {"--streamed_layers 3"});
  refused({"qwen3-4b", "--gpus", "2", "--explain", "streaming"}, {"--explain streaming"});
  refused({"qwen3-4b", "--gpus", "2", "--gpus_per_host", "4"}, {"--gpus_per_host 4"});
  refused({"qwen3-4b", "--gpus_per_host", "2"}, {"--gpus_per_host 2", "1 (--gpus)"});
  refused({"qwen3-4b", "--gpus_per_host", "0"}, {"--gpus_per_host: 0", "100000"});
}

}  // namespace
}  // namespace so::test
