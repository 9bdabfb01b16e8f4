// Each key of a DeepSpeed file means something or is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "options/deepspeed_text.h"
#include "support/generated_text.h"

namespace so {
namespace {

using json = nlohmann::json;

std::string record(const TrainOptions& options) { return to_json(train_option_table().view(options)); }

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

TEST(DeepSpeedConfig, AStageIsALimitOfWhatIsGathered) {
  for (const char* stage : {"0", "1", "2"}) {
    const Applied a = read(fmt::format(R"({{"zero_optimization": {{"stage": {}}}}})", stage), 4);
    ASSERT_EQ(a.error, "");
    EXPECT_EQ(a.options.gathered_layers, 0);
    EXPECT_EQ(a.origins.of("gathered_layers").where, "ds.json: zero_optimization.stage");
  }
  EXPECT_EQ(read(R"({"zero_optimization": {"stage": 3}})", 4).options.gathered_layers, std::nullopt);
  EXPECT_EQ(read("{}", 4).options.gathered_layers, std::nullopt);
  const Applied given = read(R"({"zero_optimization": {"stage": 2}})", 4, {{"gathered_layers", std::int64_t{7}}});
  ASSERT_EQ(given.error, "");
  EXPECT_EQ(given.options.gathered_layers, 7) << "the command line goes before the file";
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
      {"sequence_parallel_size", 2, "sequence_parallel_size", std::int64_t{2}},
      {"gradient_clipping", 0.5, "max_grad_norm", 0.5},
      {"gradient_clipping", 0, "max_grad_norm", 0.0},
      {"steps_per_print", 25, "log_interval", std::int64_t{25}},
      {"wall_clock_breakdown", true, "wall_clock_breakdown", true},
      {"data_types.grad_accum_dtype", "bf16", "grad_accum_dtype", "bf16"s},
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
            "ds.json: fp16.enabled is true: fp16 is not implemented, only bf16 and fp32; "
            "set it to false and bf16.enabled to true");
  EXPECT_EQ(error("zero_optimization.offload_optimizer.device", "nvme"),
            "ds.json: zero_optimization.offload_optimizer.device is \"nvme\": "
            "offload to NVMe is not implemented; set it to \"cpu\"");
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
  EXPECT_EQ(error("zero_optimization.stage", 4), "ds.json: zero_optimization.stage is 4: stages are 0 to 3");
  EXPECT_EQ(error("zero_optimization.stage", -1), "ds.json: zero_optimization.stage is -1: stages are 0 to 3");
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

TEST(Docs, DeepSpeedKeysMatchTheTable) {
  expect_generated_text("deepspeed-config.md", "keys", deepspeed_keys_markdown());
}

}  // namespace
}  // namespace so
