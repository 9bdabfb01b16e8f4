#include "options/deepspeed_config.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "support/generated_text.h"

namespace so {
namespace {

using json = nlohmann::json;

struct Applied {
  TrainOptions options;
  OptionOrigins origins;
  std::string error;  // empty: accepted
};

// `line`: options given on the command line.
Applied read(const std::string& text, int ranks = 1,
             const std::vector<std::pair<std::string, OptionValue>>& line = {}) {
  Applied a;
  for (const auto& [name, value] : line)
    assign(train_option_table().ref(a.options), a.origins, train_option_table().at(name), value, Origin::command_line,
           "");
  try {
    apply_deepspeed_text(text, "ds.json", ranks, a.options, a.origins);
  } catch (const Error& error) {
    a.error = error.what();
  }
  return a;
}

std::string record(const TrainOptions& options) { return to_json(train_option_table().view(options)); }

// What the published recipes write for one GPU, batch size 4.
const char* const superoffload_recipe = R"({
    "train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "bf16": { "enabled": true },
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": false,
        "reduce_bucket_size": 4e8,
        "sub_group_size": 4e8,
        "offload_optimizer": {
            "device": "cpu",
            "pin_memory": true,
            "ratio": 0.90,
            "super_offload": true,
            "cpuadam_cores_perc": 0.90
        }
    },
    "wall_clock_breakdown": true
})";

TEST(DeepSpeedConfig, TakesTheSuperOffloadRecipe) {
  const Applied a = read(superoffload_recipe);
  ASSERT_EQ(a.error, "");
  TrainOptions expected;
  expected.batch_size = 4;
  expected.gradient_accumulation_steps = 1;
  expected.dtype = Precision::bf16;
  expected.mode = OffloadMode::superoffload;
  expected.offload_ratio = 0.9;
  expected.cpuadam_cores_perc = 0.9;
  expected.wall_clock_breakdown = true;
  EXPECT_EQ(record(a.options), record(expected));
  EXPECT_EQ(a.origins.of("offload_ratio").origin, Origin::file);
  EXPECT_EQ(a.origins.of("offload_ratio").where, "ds.json: zero_optimization.offload_optimizer.ratio");
  EXPECT_EQ(a.origins.of("batch_size").where, "ds.json: train_batch_size 4 / (1 x 1 rank)");
}

TEST(DeepSpeedConfig, WithoutSuperOffloadItIsZeroOffload) {
  const Applied a = read(R"({"train_batch_size": 4, "gradient_accumulation_steps": 1, "bf16": {"enabled": true},
      "zero_optimization": {"stage": 3, "overlap_comm": false, "reduce_bucket_size": 4e8, "sub_group_size": 4e8,
      "offload_optimizer": {"device": "cpu", "pin_memory": true}}, "wall_clock_breakdown": true})");
  ASSERT_EQ(a.error, "");
  EXPECT_EQ(a.options.mode, OffloadMode::zerooffload);
  EXPECT_EQ(read("{}").options.mode, OffloadMode::zerooffload);
  EXPECT_EQ(read(R"({"zero_optimization": {"offload_optimizer": {"super_offload": false}}})").options.mode,
            OffloadMode::zerooffload);
}

// The configuration that transformers' documentation gives for ZeRO-3 with offload, but for fp16.
TEST(DeepSpeedConfig, TakesTransformersAutoValues) {
  const Applied a = read(R"({
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                  "warmup_num_steps": "auto", "total_num_steps": "auto", "warmup_type": "linear"}},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true},
      "offload_param": {"device": "cpu", "pin_memory": true}, "overlap_comm": true, "contiguous_gradients": true,
      "sub_group_size": 1e9,
      "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",
      "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9,
      "stage3_gather_16bit_weights_on_model_save": true},
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 2000,
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "wall_clock_breakdown": false})",
                         1, {{"lr", 3e-5}});
  ASSERT_EQ(a.error, "");
  TrainOptions expected;
  expected.lr = 3e-5;
  expected.mode = OffloadMode::zerooffload;
  expected.log_interval = 2000;
  EXPECT_EQ(record(a.options), record(expected));
  EXPECT_TRUE(a.origins.notes.empty());
}

// {"a": {"b": value}} for "a.b".
json nested(const std::string& path, json value) {
  const std::size_t dot = path.rfind('.');
  if (dot == std::string::npos) return {{path, std::move(value)}};
  return nested(path.substr(0, dot), {{path.substr(dot + 1), std::move(value)}});
}

// `value` at `path`, with what must stand beside it.
std::string config_with(const std::string& path, json value) {
  json config = nested(path, std::move(value));
  if (path.rfind("optimizer.params", 0) == 0) config["optimizer"]["type"] = "AdamW";
  if (path.rfind("scheduler.params", 0) == 0) config["scheduler"]["type"] = "WarmupLR";
  return config.dump();
}

json sample(JsonKind kind) {
  switch (kind) {
    case JsonKind::boolean:
      return true;
    case JsonKind::integer:
      return 4e8;
    case JsonKind::number:
      return 0.25;
    case JsonKind::text:
      return "something";
    case JsonKind::list:
      return json::array();
    case JsonKind::object:
    case JsonKind::any:
      return {{"a", 1}};
  }
  return nullptr;
}

json of_another_kind(JsonKind kind) { return kind == JsonKind::text ? json(7) : json("something"); }

// Every key, by its own row: an unused one changes nothing, a limited one takes what it lists and refuses the rest by
// name, all refuse another type, all take "auto" and null.
TEST(DeepSpeedConfig, EveryKeyKeepsItsRow) {
  // Options whose value is the file's even when it says nothing about them.
  const std::string untouched = record(read(R"({"optimizer": {"type": "AdamW"}})").options);
  for (const DeepSpeedKey& key : deepspeed_keys()) {
    SCOPED_TRACE(key.path);
    if (key.path.find('[') != std::string::npos) continue;  // an element of optimizer.params.betas, tested below
    if (key.kind != JsonKind::any) {
      const Applied wrong = read(config_with(key.path, of_another_kind(key.kind)));
      EXPECT_EQ(wrong.error.rfind("ds.json: " + key.path + " must be ", 0), 0u) << wrong.error;
    }
    EXPECT_EQ(read(config_with(key.path, nullptr)).error, "");
    if (key.kind != JsonKind::object) {
      EXPECT_EQ(read(config_with(key.path, "auto")).error, "");
    }
    switch (key.use) {
      case KeyUse::section:
        EXPECT_EQ(read(config_with(key.path, json::object())).error, "");
        break;
      case KeyUse::unused: {
        const Applied a = read(config_with(key.path, sample(key.kind)));
        EXPECT_EQ(a.error, "");
        EXPECT_FALSE(key.why.empty());
        EXPECT_EQ(record(a.options), untouched);
        break;
      }
      case KeyUse::limited: {
        EXPECT_FALSE(key.why.empty());
        for (const std::string& accepted : key.accepted)
          EXPECT_EQ(read(config_with(key.path, json::parse(accepted))).error, "") << accepted;
        json other = sample(key.kind);
        if (key.kind == JsonKind::boolean)
          other = std::find(key.accepted.begin(), key.accepted.end(), "true") == key.accepted.end();
        const std::string error = read(config_with(key.path, other)).error;
        EXPECT_EQ(error.rfind("ds.json: " + key.path + " is ", 0), 0u) << error;
        EXPECT_NE(error.find(key.why), std::string::npos) << error;
        break;
      }
      case KeyUse::feature: {
        EXPECT_EQ(read(config_with(key.path, {{"enabled", false}, {"more", 3}})).error, "");
        const std::string error = read(config_with(key.path, {{"enabled", true}})).error;
        EXPECT_EQ(error.rfind("ds.json: " + key.path + ".enabled is true: ", 0), 0u) << error;
        break;
      }
      case KeyUse::option:
      case KeyUse::special:
        break;  // each has its case below
    }
  }
}

struct OptionCase {
  const char* path;
  json value;
  const char* option;
  OptionValue expected;
};

std::vector<OptionCase> option_cases() {
  const std::string offload = "zero_optimization.offload_optimizer.";
  static const std::vector<std::string> paths = {offload + "ratio", offload + "device", offload + "super_offload",
                                                 offload + "pin_memory", offload + "cpuadam_cores_perc"};
  using namespace std::string_literals;
  return {
      {"train_micro_batch_size_per_gpu", 7, "batch_size", std::int64_t{7}},
      {"gradient_accumulation_steps", 3, "gradient_accumulation_steps", std::int64_t{3}},
      {"gradient_clipping", 0.5, "max_grad_norm", 0.5},
      {"gradient_clipping", 0, "max_grad_norm", 0.0},
      {"steps_per_print", 25, "log_interval", std::int64_t{25}},
      {"wall_clock_breakdown", true, "wall_clock_breakdown", true},
      {"bf16.enabled", true, "dtype", "bf16"s},
      {"bf16.enabled", false, "dtype", "fp32"s},
      {"bfloat16.enabled", true, "dtype", "bf16"s},
      {"optimizer.params.lr", 2e-4, "lr", 2e-4},
      {"optimizer.params.eps", 1e-6, "adam_epsilon", 1e-6},
      {"optimizer.params.weight_decay", 0.1, "weight_decay", 0.1},
      {"scheduler.type", "WarmupLR", "lr_scheduler", "constant"s},
      {"scheduler.type", "WarmupDecayLR", "lr_scheduler", "linear"s},
      {"scheduler.type", "WarmupCosineLR", "lr_scheduler", "cosine"s},
      {"scheduler.params.warmup_max_lr", 3e-4, "lr", 3e-4},
      {"scheduler.params.warmup_num_steps", 100, "warmup_num_steps", std::int64_t{100}},
      {"scheduler.params.warmup_num_steps", 1, "warmup_num_steps", std::int64_t{2}},         // DeepSpeed's max(2, n)
      {"zero_optimization.reduce_bucket_size", 4096, "bucket_size", std::int64_t{16384}},    // elements of fp32
      {"zero_optimization.reduce_bucket_size", 5e8, "bucket_size", std::int64_t{16} << 20},  // an upper limit only
      {"zero_optimization.cpu_offload", true, "offload_optimizer", "cpu"s},
      {"zero_optimization.cpu_offload_use_pin_memory", false, "pin_memory", false},
      {paths[0].c_str(), 0.25, "offload_ratio", 0.25},
      {paths[1].c_str(), "none", "offload_optimizer", "none"s},
      {paths[2].c_str(), true, "mode", "superoffload"s},
      {paths[3].c_str(), false, "pin_memory", false},
      {paths[4].c_str(), 0.5, "cpuadam_cores_perc", 0.5},
  };
}

TEST(DeepSpeedConfig, SetsOptions) {
  std::set<std::string> covered;
  for (const OptionCase& c : option_cases()) {
    SCOPED_TRACE(c.path);
    covered.insert(c.path);
    const Applied a = read(config_with(c.path, c.value));
    ASSERT_EQ(a.error, "");
    EXPECT_EQ(train_option_table().view(a.options).get(c.option), c.expected);
  }
  for (const DeepSpeedKey& key : deepspeed_keys())  // a new mapping needs its case here
    EXPECT_TRUE(key.use != KeyUse::option || key.path.find('[') != std::string::npos || covered.contains(key.path))
        << key.path;
}

TEST(DeepSpeedConfig, Betas) {
  const Applied a = read(config_with("optimizer.params.betas", {0.8, 0.95}));
  EXPECT_EQ(a.options.adam_beta1, 0.8);
  EXPECT_EQ(a.options.adam_beta2, 0.95);
  EXPECT_EQ(a.origins.of("adam_beta2").where, "ds.json: optimizer.params.betas[1]");
  EXPECT_EQ(read(config_with("optimizer.params.betas", {0.8})).error,
            "ds.json: optimizer.params.betas has 1 elements; it must have two");
  EXPECT_EQ(read(config_with("optimizer.params.betas", {0.8, 1})).error,
            "ds.json: optimizer.params.betas[1]: 1 is out of range; it must be a number >= 0 and <= 0.9999999");
  EXPECT_EQ(read(config_with("optimizer.params.betas", {0.8, "x"})).error,
            "ds.json: optimizer.params.betas[1] must be a number, is \"x\"");
}

TEST(DeepSpeedConfig, RefusesByNameWithReasonAndFix) {
  const auto error = [](const char* path, json value) { return read(config_with(path, std::move(value))).error; };
  EXPECT_EQ(error("fp16.enabled", true),
            "ds.json: fp16.enabled is true: fp16 is not implemented, "
            "only bf16 and fp32; set it to false and bf16.enabled to true");
  EXPECT_EQ(error("zero_optimization.offload_optimizer.device", "nvme"),
            "ds.json: zero_optimization.offload_optimizer.device is "
            "\"nvme\": offload to NVMe is not implemented; set it to \"cpu\"");
  EXPECT_EQ(error("zero_optimization.offload_param.device", "cpu"), "");
  EXPECT_EQ(
      error("zero_optimization.offload_param.device", "nvme"),
      "ds.json: zero_optimization.offload_param.device is \"nvme\": offload to NVMe is not implemented; set it to "
      "\"cpu\" (which layers' weights wait in host memory follows from the memory there is and does not change "
      "results; --streamed_layers sets it)");
  EXPECT_EQ(error("optimizer.type", "Lamb"),
            "ds.json: optimizer.type is \"Lamb\": only AdamW is implemented; set it to \"AdamW\"");
  EXPECT_EQ(error("optimizer.type", "adam"), "");
  EXPECT_EQ(error("scheduler.type", "OneCycle"),
            "ds.json: scheduler.type is \"OneCycle\": it is not implemented; use WarmupLR (constant), WarmupDecayLR "
            "(linear) or WarmupCosineLR (cosine)");
  EXPECT_EQ(error("zero_optimization.stage", 4).rfind("ds.json: zero_optimization.stage is 4: ", 0), 0u);
  EXPECT_EQ(error("zero_optimization", true), "ds.json: zero_optimization must be an object, is true");
  EXPECT_EQ(error("gradient_clipping", -1.0),
            "ds.json: gradient_clipping: -1 is out of range; it must be a number >= 1e-30 (0: no clipping)");
  EXPECT_EQ(error("gradient_accumulation_steps", 0),
            "ds.json: gradient_accumulation_steps is 0; it must be a whole number from 1 to 9223372036854775807");
  EXPECT_EQ(read(R"({"optimizer": {"params": {"lr": 1}}})").error,
            "ds.json: optimizer.params has no effect without optimizer.type; add the type");
}

TEST(DeepSpeedConfig, UnknownKeysNameTheNearest) {
  EXPECT_EQ(read(R"({"gradient_cliping": 1})").error,
            "ds.json: unknown key \"gradient_cliping\"; did you mean gradient_clipping?");
  EXPECT_EQ(read(R"({"zero_optimization": {"offload_optimiser": {}}})").error,
            "ds.json: unknown key \"offload_optimiser\" in zero_optimization; did you mean "
            "zero_optimization.offload_optimizer?");
  EXPECT_EQ(read(R"({"offload_optimizer": {}})").error,
            "ds.json: unknown key \"offload_optimizer\"; did you mean zero_optimization.offload_optimizer?");
  EXPECT_EQ(read(R"({"zzz": 1})").error,
            "ds.json: unknown key \"zzz\"; remove it (docs/deepspeed-config.md lists the known keys)");
  // A path is no key.
  EXPECT_EQ(read(R"({"fp16.enabled": true})").error.rfind("ds.json: unknown key \"fp16.enabled\"", 0), 0u);
  EXPECT_EQ(
      read(R"({"optimizer": {"type": "AdamW", "params": {"betas[0]": 0.5}}})").error.rfind("ds.json: unknown key", 0),
      0u);
}

// DeepSpeed's rule, written out anew: of the three, what is missing follows from the others; the three must agree.
struct Triple {
  std::optional<int> total, batch, accumulation;
};
std::optional<Triple> deepspeed_rule(Triple t, int ranks) {
  if (t.total && t.batch && !t.accumulation)
    t.accumulation = *t.total / *t.batch / ranks;
  else if (t.total && !t.batch && t.accumulation)
    t.batch = *t.total / ranks / *t.accumulation;
  else if (t.total && !t.batch && !t.accumulation)
    t.accumulation = 1, t.batch = *t.total / ranks;
  if (!t.total) return t;
  if (*t.batch < 1 || *t.accumulation < 1 || *t.total != *t.batch * *t.accumulation * ranks) return std::nullopt;
  return t;
}

TEST(DeepSpeedConfig, BatchSizesFollowDeepSpeedsRule) {
  const std::vector<std::optional<int>> values = {std::nullopt, 1, 2, 3, 4, 8, 12};
  int accepted = 0, refused = 0;
  for (const int ranks : {1, 2, 3}) {
    for (const auto total : values) {
      for (const auto batch : values) {
        for (const auto accumulation : values) {
          json config = json::object();
          if (total) config["train_batch_size"] = *total;
          if (batch) config["train_micro_batch_size_per_gpu"] = *batch;
          if (accumulation) config["gradient_accumulation_steps"] = *accumulation;
          SCOPED_TRACE(config.dump() + " ranks " + std::to_string(ranks));
          const Applied a = read(config.dump(), ranks);
          const std::optional<Triple> expected = deepspeed_rule({total, batch, accumulation}, ranks);
          EXPECT_EQ(a.error.empty(), expected.has_value()) << a.error;
          if (!expected || !a.error.empty()) {
            ++refused;
            continue;
          }
          ++accepted;
          EXPECT_EQ(a.options.batch_size, expected->batch.value_or(TrainOptions().batch_size));
          EXPECT_EQ(a.options.gradient_accumulation_steps, expected->accumulation.value_or(1));
        }
      }
    }
  }
  EXPECT_GT(accepted, 150);  // both outcomes must have been tried
  EXPECT_GT(refused, 150);
}

TEST(DeepSpeedConfig, BatchSizeErrorsStateTheThree) {
  EXPECT_EQ(
      read(R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1})", 2)
          .error,
      "ds.json: train_batch_size 8 is not batch_size 2 (ds.json) x gradient_accumulation_steps 1 (ds.json) x 2 ranks "
      "= 4; make it 4, or \"auto\"");
  EXPECT_EQ(
      read(R"({"train_batch_size": 8, "gradient_accumulation_steps": 1})", 1, {{"batch_size", std::int64_t{4}}}).error,
      "ds.json: train_batch_size 8 is not batch_size 4 (command line) x gradient_accumulation_steps 1 (ds.json) x 1 "
      "rank = 4; make it 4, or \"auto\"");
  EXPECT_EQ(
      read(R"({"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2})", 1).error,
      "ds.json: train_batch_size 7 is not a multiple of batch_size 2 (ds.json) x 1 rank; make it one, or \"auto\"");
  // The command line's batch size takes part in the derivation.
  const Applied a = read(R"({"train_batch_size": 8})", 1, {{"batch_size", std::int64_t{2}}});
  EXPECT_EQ(a.error, "");
  EXPECT_EQ(a.options.gradient_accumulation_steps, 4);
}

TEST(DeepSpeedConfig, CommandLineWinsAndTheConflictIsKept) {
  const Applied a = read(R"({"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "gradient_clipping": 1.0})", 1,
                         {{"lr", 2e-5}, {"max_grad_norm", 1.0}});
  EXPECT_EQ(a.options.lr, 2e-5);
  EXPECT_EQ(a.origins.of("lr").overridden, "ds.json: optimizer.params.lr says 0.001");
  EXPECT_EQ(a.origins.of("max_grad_norm").overridden, "");
}

TEST(DeepSpeedConfig, WarmupOnTheCommandLineBeatsTheFilesSteps) {
  const std::string config = config_with("scheduler.params.warmup_num_steps", 100);
  EXPECT_EQ(resolve_warmup_steps(read(config).options, 1000), 100);
  const Applied a = read(config, 1, {{"warmup", 0.02}});
  EXPECT_EQ(resolve_warmup_steps(a.options, 1000), 20);
  EXPECT_EQ(a.origins.of("warmup").overridden, "ds.json: scheduler.params.warmup_num_steps says 100 steps");
}

TEST(DeepSpeedConfig, TwoKeysOfOneOptionMustAgree) {
  const auto with = [](double max_lr) {
    return read(fmt::format(R"({{"optimizer": {{"type": "AdamW", "params": {{"lr": 1e-4}}}},
        "scheduler": {{"type": "WarmupLR", "params": {{"warmup_max_lr": {}}}}}}})",
                            max_lr))
        .error;
  };
  EXPECT_EQ(with(1e-4), "");
  EXPECT_EQ(with(2e-4),
            "ds.json: optimizer.params.lr and scheduler.params.warmup_max_lr both set lr, to 0.0001 and 0.0002; "
            "make them equal or remove one");
}

TEST(DeepSpeedConfig, TotalStepsAreTheRuns) {
  const std::string config = config_with("scheduler.params.total_num_steps", 500);
  EXPECT_EQ(read(config, 1, {{"max_steps", std::int64_t{500}}}).error, "");
  EXPECT_EQ(
      read(config).error,
      "ds.json: scheduler.params.total_num_steps is 500, but the schedule ends with the run; set it to \"auto\" or "
      "give --max_steps 500");
  EXPECT_EQ(
      read(config, 1, {{"max_steps", std::int64_t{400}}}).error,
      "ds.json: scheduler.params.total_num_steps is 500, but the schedule ends with the run at step 400; set it to "
      "\"auto\" or give --max_steps 500");
}

TEST(DeepSpeedConfig, NotesWhereItsDefaultsAreNotDeepSpeeds) {
  const auto notes = [](const char* text) { return read(text).origins.notes; };
  EXPECT_EQ(notes(R"({"scheduler": {"type": "WarmupDecayLR", "params": {}}})").size(), 1u);
  EXPECT_EQ(notes(R"({"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_type": "linear"}}})").size(), 0u);
  EXPECT_EQ(notes(R"({"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_type": "linear"}}})").size(), 2u);
  EXPECT_EQ(notes(R"({"scheduler": {"type": "WarmupCosineLR"}})").size(), 3u);
}

TEST(DeepSpeedConfig, Comments) {
  const Applied a = read(
      "// head\n{ # a \"quoted\" remark\n \"steps_per_print\": /* not 4 */ 5, // rest\n"
      " \"optimizer\": {\"type\": \"AdamW\"} /* end\n */ }\n# tail");
  EXPECT_EQ(a.error, "");
  EXPECT_EQ(a.options.log_interval, 5);
  // Comment signs within a string are text.
  EXPECT_EQ(read(R"({"zero_optimization": {"offload_optimizer": {"nvme_path": "/a//b#c/*d"}}})").error, "");
  EXPECT_EQ(read(R"({"zero_optimization": {"offload_optimizer": {"nvme_path": "a\"// b"}}})").error, "");
  EXPECT_EQ(read("{}\n  /* never closed").error, "ds.json:2:3: this comment has no end; add */");
}

TEST(DeepSpeedConfig, MalformedJsonHasLineAndColumn) {
  const auto place = [](const std::string& text) {
    const std::string error = read(text).error;
    const std::size_t end = error.find(": not valid JSON");
    return end == std::string::npos ? "none: " + error : error.substr(0, end);
  };
  EXPECT_EQ(place("{\n  \"steps_per_print\": 1,\n  oops\n}"), "ds.json:3:3");
  EXPECT_EQ(place("{\n  \"steps_per_print\": 1,\n}"), "ds.json:3:1");
  EXPECT_EQ(place("{\"a\": 1"), "ds.json:1:8");  // just past the end
  EXPECT_EQ(place(""), "ds.json:1:1");
  EXPECT_EQ(place("// c\n{\"a\" 1}"), "ds.json:2:6");
  EXPECT_EQ(place("{} {}"), "ds.json:1:4");
  EXPECT_EQ(place("{\"a\": \"\xff\"}").rfind("ds.json:1:", 0), 0u);
  EXPECT_EQ(read("[]").error, "ds.json: must be a JSON object, is array");
  // Too large for any number type, or none: their keys refuse them.
  for (const char* number : {"1e999", "NaN", "1000000000000000019884624838656"})
    EXPECT_NE(read(std::string("{\"train_batch_size\": ") + number + "}").error.find("train_batch_size"),
              std::string::npos);
}

TEST(DeepSpeedConfig, RefusesHostileStructure) {
  EXPECT_EQ(read(R"({"steps_per_print": 1, "steps_per_print": 2})").error,
            "ds.json: key \"steps_per_print\" is given twice in one object");
  EXPECT_EQ(read(std::string(100000, '[')).error, "ds.json: nested deeper than 32 levels");
  EXPECT_EQ(read(std::string((1 << 20) + 1, ' ')).error,
            "ds.json: larger than 1048576 bytes: this is no DeepSpeed configuration");
  EXPECT_EQ(read("{\"a\\nb\": 1}").error,
            "ds.json: unknown key \"a\\x0ab\"; remove it (docs/deepspeed-config.md lists the known keys)");
  EXPECT_EQ(read(R"({"train_batch_size": 1e300})").error,
            "ds.json: train_batch_size is 1e+300; it must be a whole number from 1 to 1000000000000");
}

TEST(DeepSpeedConfig, ReadsAFile) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "so_deepspeed_config_test.json";
  std::ofstream(file) << superoffload_recipe;
  TrainOptions options;
  OptionOrigins origins;
  apply_deepspeed_config(file.string(), 1, options, origins);
  EXPECT_EQ(options.offload_ratio, 0.9);
  std::filesystem::remove(file);
  for (const std::string& bad : {file.string(), std::string(testing::TempDir())}) {  // gone; a directory
    try {
      apply_deepspeed_config(bad, 1, options, origins);
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("cannot open " + bad + ": "), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("; check --deepspeed_config"), std::string::npos) << error.what();
    }
  }
}

TEST(Docs, DeepSpeedKeysMatchTheTable) {
  expect_generated_text("deepspeed-config.md", "keys", deepspeed_keys_markdown());
}

}  // namespace
}  // namespace so
