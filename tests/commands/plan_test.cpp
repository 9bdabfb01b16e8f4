// superoffload plan: a run planned for a machine that is not there.
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/files.h"
#include "support/label.h"
#include "support/paths.h"
#include "support/planned.h"
#include "support/process.h"
#include "support/refusal.h"
#include "support/trace_reader.h"
#include "support/training_run.h"

namespace so::test {
namespace {

using nlohmann::json;

// The expected times are those measured on one H200 (docs/performance.md), with clipping rare.
SO_LABEL(sweep, "Plan.ExpectsWhatWasMeasured");
TEST(Plan, ExpectsWhatWasMeasured) {
  const Planned qwen = plan({"--model", "qwen3-14b"});
  EXPECT_NEAR(qwen.expected("step_seconds"), 2.724, 0.15 * 2.724);
  EXPECT_NEAR(static_cast<double>(qwen.total("device")), 148.9e9, 0.03 * 148.9e9);
  EXPECT_NEAR(qwen.expected("tokens_per_s") * qwen.expected("step_seconds"), 16384, 1);
  const Planned llama = plan({"--model", "llama-3.1-8b", "--offload_optimizer", "none"});
  EXPECT_NEAR(llama.expected("step_seconds"), 1.526, 0.15 * 1.526);
  EXPECT_EQ(llama.result.at("host_share"), 0);
}

SO_LABEL(sweep, "Plan.StaysWithinTheMachine");
TEST(Plan, StaysWithinTheMachine) {
  for (const char* hardware : {"h200", "h100-pcie", "h100-sxm", "gh200", "gb200", "a100-40g", "mi300a"}) {
    const Planned p =
        plan({"--model", "qwen3-4b", "--hardware", hardware, "--batch_size", "1", "--max_length", "2048"});
    EXPECT_LE(p.total("device"), p.result.at("device_memory").at("available_bytes").get<std::size_t>()) << hardware;
    EXPECT_EQ(p.total("device"), p.result.at("device_memory").at("planned_bytes").get<std::size_t>()) << hardware;
    EXPECT_LE(p.total("pinned") + p.total("pageable"),
              p.result.at("host_memory").at("available_bytes").get<std::size_t>())
        << hardware;
    EXPECT_GT(p.expected("tokens_per_s"), 0);
  }
}

// A GPU that shares the CPU's memory has no other one to move anything to.
TEST(Plan, PlansOneMemoryWhereGpuAndCpuShareIt) {
  const TemporaryDirectory directory;
  const std::vector<std::string> words{test::binary(), "plan",         "--model", "qwen3-4b",     "--hardware",
                                       "mi300a",       "--batch_size", "1",       "--max_length", "2048"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return run(more, directory.path());
  };
  const Outcome answer = with({});
  expect_in(answer.out, {"memory       ", "which GPU and CPU share", "100% in the GPU's memory"});
  EXPECT_EQ(answer.out.find("host memory"), std::string::npos) << answer.out;
  const json most = json::parse(with({"--json"}).out);
  EXPECT_EQ(most.at("host_share"), 0);
  EXPECT_LT(most.at("host_memory").at("available_bytes").get<double>(), 120e9) << "a margin stays free";
  EXPECT_GT(most.at("host_memory").at("planned_bytes"), most.at("device_memory").at("planned_bytes"));
  for (const char* bytes : {"80GB", "300GB"})
    EXPECT_EQ(json::parse(with({"--json", "--host_memory", bytes}).out).at("host_memory").at("available_bytes"),
              std::stod(bytes) * 1e9);
  expect_in(with({"--host_memory", "40GB"}).err, {"not enough memory", "40.0 GB available (--host_memory)"});
  expect_in(with({"--device_memory", "80GB"}).err, {"the GPU shares the CPU's memory", "--host_memory"});
}

// How many units of the placement's rows have this value; the rows are those of all units, in order.
std::int64_t units_with(const Planned& planned, const char* key, const json& value) {
  std::int64_t next = 0, found = 0;
  json before;
  for (json row : planned.result.at("placement")) {
    EXPECT_EQ(row.at("from"), next);
    EXPECT_GE(row.at("to"), row.at("from"));
    const std::int64_t units = row.at("to").get<std::int64_t>() + 1 - next;
    next += units;
    if (row.at(key) == value) found += units;
    row.erase("from"), row.erase("to");
    EXPECT_NE(row, before) << "two rows that could be one";
    before = std::move(row);
  }
  EXPECT_EQ(next, planned.result.at("units"));
  return found;
}

SO_LABEL(sweep, "Plan.TheRowsOfThePlacementAddUpToItsCounts");
TEST(Plan, TheRowsOfThePlacementAddUpToItsCounts) {
  const Planned streams = plan({"--model", "qwen3-4b", "--hardware", "rtx4090", "--host_memory", "64GB", "--max_length",
                                "2048", "--streamed_layers", "5", "--offload_ratio", "0.9"}),
                gathers = plan({"--model", "qwen3-4b", "--gpus", "2", "--gathered_layers", "7", "--move_gradients",
                                "true", "--offload_ratio", "0.7"});
  EXPECT_EQ(streams.result.at("units"), 36 + 2);
  EXPECT_EQ(units_with(streams, "weights", "streamed"), 5);
  EXPECT_EQ(units_with(gathers, "weights", "gathered") + units_with(gathers, "weights", "gathered_from_masters"), 7);
  EXPECT_GT(units_with(gathers, "gradients_moved", true), 0);
  for (const Planned* p : {&streams, &gathers}) {
    EXPECT_EQ(units_with(*p, "owner", "device"), p->result.at("device_units"));
    EXPECT_EQ(units_with(*p, "weights", "streamed"), p->result.at("streamed_units"));
    EXPECT_EQ(units_with(*p, "gradients_moved", true) > 0, p->result.at("transient_gradients"));
  }
  EXPECT_EQ(units_with(streams, "gradients_sliced", true), 0) << "of one rank";
  EXPECT_EQ(gathers.result.at("ranks").at("gathered_units"), 7);
}

// In place of what the hardware has, whether that is less or more.
SO_LABEL(sweep, "Plan.StaysWithinWhatTheRunMayHave");
TEST(Plan, StaysWithinWhatTheRunMayHave) {
  for (const char* device : {"30GB", "100GiB", "300e9"}) {
    const Planned p = plan({"--model", "qwen3-4b", "--batch_size", "1", "--device_memory", device});
    EXPECT_LE(p.total("device"), p.result.at("device_memory").at("available_bytes").get<std::size_t>()) << device;
  }
  const auto host = [](const char* bytes) {
    return plan({"--model", "qwen3-4b", "--offload_ratio", "1", "--host_memory", bytes});
  };
  const Planned less = host("70GB"), more = host("400GB");
  EXPECT_EQ(less.result.at("host_memory").at("available_bytes"), 70e9);
  EXPECT_EQ(more.result.at("host_memory").at("available_bytes"), 400e9);
  EXPECT_LT(less.result.at("spare_buckets"), more.result.at("spare_buckets"));
}

TEST(Plan, ReadsAHardwareFileAndFollowsIt) {
  const TemporaryDirectory directory;
  json rates{{"gemm_flops", 1e14},      {"device_memory", 1e12},   {"link_to_host", 1e10}, {"link_to_device", 1e10},
             {"host_adamw_bf16", 5e10}, {"host_adamw_fp32", 5e10}, {"host_memory", 6e10},  {"kernel_seconds", 2e-6}};
  json file{{"name", "Mine"},    {"source", "a test"}, {"device_memory_bytes", 40e9}, {"host_memory_bytes", 100e9},
            {"host_threads", 8}, {"rates", rates}};
  const auto step = [&](double flops) {
    file["rates"]["gemm_flops"] = flops;
    write_file(directory / "mine.json", file.dump());
    return plan({"--model", "qwen3-0.6b", "--hardware", (directory / "mine.json").string()});
  };
  const Planned slow = step(1e14), quick = step(4e14);
  EXPECT_EQ(slow.result.at("hardware").at("name"), "Mine");
  EXPECT_LT(quick.expected("step_seconds"), 0.5 * slow.expected("step_seconds"));
}

TEST(Plan, DrawsAStepAndWritesItsTrace) {
  const TemporaryDirectory directory;
  const Outcome o =
      run({test::binary(), "plan", "--model", "qwen3-14b", "--verbose", "--trace", (directory / "t.json").string()},
          directory.path());
  ASSERT_EQ(o.exit_code, 0) << o.err;
  for (const char* lane : {"\nGPU |", "\nD2H |", "\nCPU |", "\nH2D |", "f forward", "b backward", "g gradients"})
    EXPECT_NE(o.out.find(lane), std::string::npos) << lane;
  const WrittenTrace trace = read_trace(directory / "t.json");
  for (const char* lane : {"compute", "to host", "to device"}) EXPECT_TRUE(trace.streams.contains(lane)) << lane;
  EXPECT_TRUE(trace.threads.contains("optimizer"));
  expect_refusal(run({test::binary(), "plan", "--model", "qwen3-4b", "--trace", "/proc/none/t.json"}, directory.path()),
                 {"/proc/none"});
}

SO_LABEL(sweep, "Plan.SaysWhatElseThereWas");
TEST(Plan, SaysWhatElseThereWas) {
  const Planned all = plan({"--model", "qwen3-14b"});
  const json& alternatives = all.result.at("alternatives");
  EXPECT_EQ(alternatives.size(), 6u);
  for (const auto& [choice, ways] : alternatives.items()) {
    int chosen = 0;
    for (const json& way : ways) {
      chosen += way.at("chosen").get<bool>();
      EXPECT_NE(way.at("chosen").get<bool>(), way.contains("why_not"));
    }
    EXPECT_EQ(chosen, 1) << choice;
  }
  const json& expected = all.result.at("expected");
  double waits = 0;
  for (const auto& [reason, seconds] : expected.at("waiting_by_reason").items()) waits += seconds.get<double>();
  EXPECT_NEAR(waits, all.expected("waiting_seconds"), 1e-9);
  for (const char* side : {"device_seconds", "host_seconds"}) {
    double parts = 0;
    for (const auto& [name, seconds] : expected.at(side).items()) parts += seconds.get<double>();
    EXPECT_NEAR(parts, all.expected("step_seconds"), 1e-9) << side;
  }
  EXPECT_NEAR(all.expected("overlap_efficiency"),
              std::max(expected.at("device_seconds").at("work").get<double>(),
                       expected.at("host_seconds").at("adamw").get<double>()) /
                  all.expected("step_seconds"),
              1e-9);

  const Planned one = plan({"--model", "qwen3-14b", "--explain", "split"});
  ASSERT_EQ(one.result.at("alternatives").size(), 1u);
  const json& splits = one.result.at("alternatives").at("split");
  EXPECT_GE(splits.size(), 5u);
  EXPECT_FALSE(splits.back().at("fits").get<bool>()) << "all of 177 GB on the device";
  const TemporaryDirectory directory;
  const Outcome o = run({test::binary(), "plan", "--model", "qwen3-14b", "--explain", "activations"}, directory.path());
  for (const char* part : {"\nactivations\n", "  chosen", "does not fit: ", "  > "})
    EXPECT_NE(o.out.find(part), std::string::npos) << part;
}

// Measured on one H200 (docs/performance/length.md), each once: 44.27 s, and 40.36 s with gradients in any order.
SO_LABEL(sweep, "Plan.LongDocumentsTakeWhatWasMeasured");
TEST(Plan, LongDocumentsTakeWhatWasMeasured) {
  const auto with = [](const char* deterministic) {
    return plan({"--model", "llama-3.1-8b", "--hardware", "h200", "--batch_size", "1", "--max_length", "131072",
                 "--optimizer_state_dtype", "bf16", "--deterministic", deterministic});
  };
  EXPECT_NEAR(with("true").expected("step_seconds"), 44.27, 0.05 * 44.27);
  EXPECT_NEAR(with("false").expected("step_seconds"), 40.36, 0.05 * 40.36);
}

// With many micro-batches sums in fp32 take 59 GB of a GH200's 96, and its link carries them to and fro beside the
// GPU's work; an H200's host has no memory for them, and so little to gain with bf16 that they stay.
SO_LABEL(sweep, "Plan.KeepsSumsOfGradientsWhereTheStepIsShorter");
TEST(Plan, KeepsSumsOfGradientsWhereTheStepIsShorter) {
  const auto with = [](const char* hardware, const char* moves, const char* sums = "fp32") {
    return plan({"--model", "qwen3-14b", "--hardware", hardware, "--gradient_accumulation_steps", "8",
                 "--move_gradients", moves, "--grad_accum_dtype", sums});
  };
  const auto gradients = [](const Planned& p, const char* kind) {
    std::size_t bytes = 0;
    for (const json& entry : p.result.at("memory"))
      if (entry.at("name") == "gradients" && entry.at("kind") == kind) bytes += entry.at("bytes").get<std::size_t>();
    return static_cast<double>(bytes);
  };
  const Planned moved = with("gh200", "auto"), stays = with("gh200", "false");
  EXPECT_EQ(moved.result.at("transient_gradients"), true);
  EXPECT_EQ(stays.result.at("transient_gradients"), false);
  EXPECT_LT(moved.expected("step_seconds"), 0.9 * stays.expected("step_seconds"));
  EXPECT_NEAR(gradients(stays, "device"), 14.77e9 * 4, 1e9);
  EXPECT_EQ(gradients(stays, "pinned"), 0);
  EXPECT_NEAR(gradients(moved, "pinned"), 14.77e9 * 4, 1e9);
  // Embedding and head, and two layers of 330 million parameters.
  EXPECT_NEAR(gradients(moved, "device"), 4 * (2 * 778e6 + 2 * 330e6), 0.1e9);
  EXPECT_EQ(with("gh200", "true").expected("step_seconds"), moved.expected("step_seconds"));
  EXPECT_EQ(with("h200", "auto").result.at("transient_gradients"), false);
  EXPECT_EQ(with("h200", "auto", "bf16").result.at("transient_gradients"), false);
  EXPECT_EQ(with("h200", "true", "bf16").result.at("transient_gradients"), true);
  EXPECT_GE(with("h200", "true").expected("step_seconds"), with("h200", "false").expected("step_seconds"));
}

SO_LABEL(no_asan, "Plan.SaysWhatWasMeasuredOfTheMachine");
TEST(Plan, SaysWhatWasMeasuredOfTheMachine) {
  const auto status = [](const char* hardware) {
    return plan({"--model", "qwen3-0.6b", "--hardware", hardware}).result.at("hardware").at("status");
  };
  EXPECT_EQ(status("h200"), "measured");
  EXPECT_EQ(status("rtx5090"), "planned");
  const TemporaryDirectory directory;
  const Outcome o = run({test::binary(), "plan", "--model", "qwen3-0.6b", "--hardware", "l40s"}, directory.path());
  ASSERT_EQ(o.exit_code, 0) << o.err;
  EXPECT_NE(o.out.find("NVIDIA L40S: planned; nothing was measured on one"), std::string::npos) << o.out;
}

SO_LABEL(sweep, "Plan.ARefusalSaysWhatAPersonCanDo");
TEST(Plan, ARefusalSaysWhatAPersonCanDo) {
  const TemporaryDirectory directory;
  const Outcome o = run({test::binary(), "plan", "--model", "qwen3-14b", "--hardware", "rtx4090"}, directory.path());
  EXPECT_EQ(o.exit_code, 2);
  for (const char* part : {"\n  --host_memory 256GB: ", " tokens/s\n",
                           "\n  --model gemma-4-e2b: ", "GeForce RTX 4090: planned; nothing was measured on one"})
    EXPECT_NE(o.err.find(part), std::string::npos) << part << o.err;
  EXPECT_EQ(o.err.find("--device_memory"), std::string::npos) << "the card has no more";
  // Of the card that is limited, more may be asked for; and where memory is soldered nobody is told to buy any.
  const Outcome less = run({test::binary(), "plan", "--model", "qwen3-4b", "--hardware", "gh200", "--device_memory",
                            "3GB", "--batch_size", "1"},
                           directory.path());
  EXPECT_NE(less.err.find("\n  --device_memory "), std::string::npos) << less.err;
  const Outcome large =
      run({test::binary(), "plan", "--model", "llama-3.3-70b", "--hardware", "gh200"}, directory.path());
  EXPECT_EQ(large.exit_code, 2);
  EXPECT_EQ(large.err.find("--host_memory"), std::string::npos) << large.err;
}

SO_LABEL(sweep, "Plan.SaysWhatChangesBetweenTheRatesThatOthersMeasured");
TEST(Plan, SaysWhatChangesBetweenTheRatesThatOthersMeasured) {
  const json result = plan({"--model", "qwen3-14b", "--hardware", "gh200"}).result;
  const json& other = result.at("other_rates").at(0);
  EXPECT_EQ(other.at("what"), "AdamW at 224 GB/s");
  EXPECT_GE(other.at("step_seconds"), result.at("expected").at("step_seconds"));
  EXPECT_LE(other.at("host_share"), result.at("host_share")) << "a slower host has no more of the state";
  const TemporaryDirectory directory;
  const Outcome o = run({test::binary(), "plan", "--model", "qwen3-14b", "--hardware", "gh200"}, directory.path());
  EXPECT_NE(o.out.find("with AdamW at 224 GB/s: "), std::string::npos) << o.out;
}

// The next larger model fits, or fits with a change, at the rate that a plan for it gives.
SO_LABEL(sweep, "Plan.SaysWhatTheNextLargerModelNeeds");
TEST(Plan, SaysWhatTheNextLargerModelNeeds) {
  const auto larger_than = [](const char* model) {
    return plan({"--model", model, "--next_larger", "true"}).result.at("next_larger");
  };
  const json small = larger_than("qwen3-4b");
  ASSERT_TRUE(small.at("fits")) << small;
  EXPECT_GT(small.at("parameters"), 4.4e9);
  const double rate = plan({"--model", small.at("model")}).expected("tokens_per_s");
  EXPECT_NEAR(small.at("tokens_per_s").get<double>(), rate, 1e-6 * rate);

  const json large = larger_than("qwen3-14b");
  EXPECT_EQ(large.at("model"), "gpt-oss-20b");
  EXPECT_FALSE(large.at("fits"));
  ASSERT_FALSE(large.at("fits_with").empty());
  for (const json& change : large.at("fits_with")) {
    if (change.at("options").empty()) continue;  // another model, or what no option asks for
    std::vector<std::string> words{"--model", large.at("model")};
    for (const auto& [name, value] : change.at("options").items())
      words.insert(words.end(), {"--" + name, value.get<std::string>()});
    const Planned changed = plan(words);
    if (change.at("tokens_per_s").is_null()) continue;  // the search had no time for it
    EXPECT_NEAR(changed.expected("tokens_per_s"), change.at("tokens_per_s").get<double>(),
                1e-6 * changed.expected("tokens_per_s"))
        << change;
  }
  const TemporaryDirectory directory;
  const Outcome o = run({test::binary(), "plan", "--model", "qwen3-14b", "--next_larger", "true"}, directory.path());
  EXPECT_NE(o.out.find("\nlarger       gpt-oss-20b, 20.9 B parameters, fits with "), std::string::npos) << o.out;
  EXPECT_TRUE(plan({"--model", "qwen3-4b"}).result.at("next_larger").is_null());
}

// Each of what is advised for a step that waits for its host is as quick as it says.
SO_LABEL(sweep, "Plan.AdvisesWhatIsQuicker");
TEST(Plan, AdvisesWhatIsQuicker) {
  const std::vector<std::string> words{"--model", "qwen3-4b",     "--hardware", "rtx4090",      "--host_memory",
                                       "64GB",    "--batch_size", "1",          "--max_length", "2048"};
  const json result = plan(words).result;
  ASSERT_FALSE(result.at("quicker").empty());
  for (const json& change : result.at("quicker")) {
    std::vector<std::string> changed = words;
    for (const auto& [name, value] : change.at("options").items()) {
      changed.push_back("--" + name);
      changed.push_back(value.get<std::string>());
    }
    if (change.at("options").contains("host_memory")) changed.erase(changed.begin() + 4, changed.begin() + 6);
    const double rate = plan(changed).expected("tokens_per_s");
    EXPECT_NEAR(rate, change.at("tokens_per_s").get<double>(), 1e-6 * rate);
    EXPECT_GT(rate, 1.05 * result.at("expected").at("tokens_per_s").get<double>());
  }
  EXPECT_TRUE(plan({"--model", "qwen3-4b"}).result.at("quicker").empty()) << "nothing is waited for";
}

SO_LABEL(sweep, "Plan.RefusesWhatCannotBe");
TEST(Plan, RefusesWhatCannotBe) {
  const TemporaryDirectory directory;
  const auto refused = [&](std::vector<std::string> words, const std::vector<std::string>& needles) {
    words.insert(words.begin(), {test::binary(), "plan"});
    expect_refusal(run(words, directory.path()), needles);
  };
  refused({"--model", "llama-3.3-70b"}, {"not enough memory", "optimizer state", "it would fit with --"});
  refused({"--model", "qwen3-14b", "--hardware", "rtx4090"},
          {"not enough memory", "it would fit with --host_memory 256GB, or with"});
  refused({"--model", "qwen3-4b", "--hardware", "tpu"}, {"--hardware tpu", "known are"});
  refused({"--model", "qwen3-4b", "--batch_size", "50000", "--max_length", "50000"}, {"too many tokens"});
  refused({"--model", "qwen3-4b", "--offload_optimizer", "none", "--offload_ratio", "0.5"}, {"--offload_ratio 0.5"});
  refused({"--model", "qwen3-4b", "--next_larger", "true", "--freeze", "*.mlp.*"},
          {"--next_larger", "--freeze is of this model"});
  // Before its own plan, which would be refused too.
  refused({"--model", "qwen3-next-80b-a3b", "--next_larger", "true"}, {"--next_larger: no preset is larger"});
  refused({"--model", "qwen3-0.6b", "--dtype", "fp32", "--cast_side", "device"}, {"--cast_side device", "fp32"});
}

}  // namespace
}  // namespace so::test
