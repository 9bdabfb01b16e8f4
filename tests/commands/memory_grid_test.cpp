// A plan's promise about memory, over a grid of what a run may have: what the plan accepts runs, with the device
// refusing every byte beyond it; what it refuses runs with each change that the refusal names.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/log.h"
#include "commands/command.h"
#include "commands/program/parse.h"
#include "options/train_options.h"
#include "plan/refusal.h"
#include "support/files.h"
#include "support/io.h"
#include "support/label.h"
#include "support/on_gpu.h"
#include "support/training_run.h"

namespace so::test {
namespace {

using OptionValues = std::vector<std::pair<std::string, std::string>>;

std::string described(const OptionValues& words) {
  std::string text;
  for (const auto& [name, value] : words) text += " --" + name + " " + value;
  return text;
}

// A run: a model's config, in some places changed, and options.
struct Setting {
  const char* name;
  const char* fixture;
  nlohmann::json config;
  OptionValues options;
};

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all{
      {"fp32",
       "qwen3-tied",
       {{"hidden_size", 64}, {"intermediate_size", 192}, {"num_hidden_layers", 4}},
       {{"batch_size", "6"}}},
      {"everything kept, in bf16",
       "llama-untied",
       {{"hidden_size", 64}, {"intermediate_size", 256}, {"num_hidden_layers", 3}},
       {{"dtype", "bf16"}, {"activation_checkpointing", "false"}, {"batch_size", "8"}}},
      {"accumulated, packed",
       "qwen3-tied",
       {{"hidden_size", 96}, {"num_hidden_layers", 2}, {"intermediate_size", 128}},
       {{"gradient_accumulation_steps", "2"}, {"packing", "true"}, {"dtype", "bf16"}}},
      {"split, synchronous, moments in 8 bits",
       "qwen3-tied",
       {{"hidden_size", 64}, {"intermediate_size", 128}, {"num_hidden_layers", 3}},
       {{"offload_ratio", "0.5"}, {"mode", "zerooffload"}, {"optimizer_state_dtype", "fp8"}}},
      {"all with the weights",
       "llama-untied",
       {{"hidden_size", 64}, {"intermediate_size", 128}},
       {{"offload_optimizer", "none"}, {"activation_checkpointing", "true"}}},
      {"experts",
       "gpt-oss",
       {{"hidden_size", 64}, {"intermediate_size", 64}},
       {{"optimizer_state_dtype", "bf16"}, {"adam_beta2", "0.99"}, {"batch_size", "3"}}},
      {"norms of what blocks add, and of projections",
       "olmo3",
       {{"hidden_size", 64}, {"intermediate_size", 128}},
       {{"dtype", "bf16"}, {"batch_size", "4"}}},
      {"norms before and after, two rotations",
       "gemma3-v4",
       {{"hidden_size", 64}, {"intermediate_size", 96}},
       {{"batch_size", "4"}}},
      {"heads of two sizes, scales of layers",
       "gemma4",
       {{"hidden_size", 64}, {"intermediate_size", 96}},
       {{"dtype", "bf16"}, {"batch_size", "4"}}},
      {"inputs of layers, keys and values of others",
       "gemma4-e",
       {{"hidden_size", 64}, {"intermediate_size", 96}},
       {{"dtype", "bf16"}, {"batch_size", "3"}}},
      {"an MLP beside experts",
       "gemma4-moe",
       {{"hidden_size", 64}, {"intermediate_size", 96}},
       {{"dtype", "bf16"}, {"batch_size", "3"}}},
      {"gated delta layers",
       "qwen3-5",
       {{"hidden_size", 64}, {"intermediate_size", 96}},
       {{"dtype", "bf16"}, {"batch_size", "3"}}},
      {"a shared expert, with a gate",
       "qwen3-5-moe",
       {{"hidden_size", 64}, {"shared_expert_intermediate_size", 96}},
       {{"batch_size", "3"}}},
      {"projections by key head",
       "qwen3-next",
       {{"hidden_size", 64}, {"intermediate_size", 96}},
       {{"dtype", "bf16"}, {"batch_size", "3"}}},
      {"attention by latents, a shared expert without a gate",
       "glm4-moe-lite",
       {{"hidden_size", 64}, {"moe_intermediate_size", 32}},
       {{"dtype", "bf16"}, {"batch_size", "3"}}},
      {"layers of one block, state spaces, experts without a gate",
       "nemotron-h",
       {{"hidden_size", 64}, {"intermediate_size", 96}},
       {{"dtype", "bf16"}, {"batch_size", "3"}}},
      {"loading takes the most",
       "llama-untied",
       {{"hidden_size", 128}, {"intermediate_size", 512}, {"num_hidden_layers", 4}},
       {{"batch_size", "1"}, {"max_length", "4"}, {"dtype", "bf16"}}},
      {"weights that stream, gradients that move",
       "qwen3-tied",
       {{"hidden_size", 64}, {"num_hidden_layers", 5}},
       {{"streamed_layers", "3"}, {"dtype", "bf16"}, {"batch_size", "2"}, {"move_gradients", "true"}}},
      {"layers that keep nothing",
       "qwen3-tied",
       {{"hidden_size", 64}, {"num_hidden_layers", 11}, {"intermediate_size", 96}},
       {{"batch_size", "12"}}},
      {"small buckets, moments in 8 bits",
       "qwen3-tied",
       {{"hidden_size", 64}},
       {{"bucket_size", "16384"}, {"dtype", "bf16"}, {"optimizer_state_dtype", "fp8"}}},
  };
  return all;
}

class Runs {
 public:
  explicit Runs(const Setting& setting) : setting_(setting) {
    set_log_level(LogLevel::error);
    const auto fixture = model_fixture(setting.fixture) / "model";
    nlohmann::json config = read_json(fixture / "config.json");
    config.update(setting.config);
    config["max_position_embeddings"] = 256;
    if (config.contains("layer_types")) {
      const nlohmann::json types = config["layer_types"];
      config["layer_types"] = nlohmann::json::array();
      for (int i = 0; i < config.at("num_hidden_layers").get<int>(); ++i)
        config["layer_types"].push_back(types[static_cast<std::size_t>(i) % types.size()]);
    }
    write_file(directory_ / "config.json", config.dump());
    const ParsedCommand init = parse_command_line({"init", "--config", (directory_ / "config.json").string(),
                                                   "--output_dir", (directory_ / "model").string(), "--quiet"});
    EXPECT_EQ(init.command->run(init.options.get(), init.origins, *make_single_communicator()), exit_ok);
    set_log_level(LogLevel::error);
    // Documents of many lengths, up to the limit.
    const int vocab = config.at("vocab_size").get<int>();
    for (const char* file : {"train.jsonl", "eval.jsonl"}) {
      std::string text;
      for (int i = 0; i < 24; ++i) {
        std::vector<int> ids;
        for (int t = 0; t < 3 + (i * 37) % 190; ++t) ids.push_back(3 + (i * 31 + t * 7) % (vocab - 3));
        text += nlohmann::json{{"input_ids", ids}, {"labels", ids}}.dump() + "\n";
      }
      write_file(directory_ / file, text);
    }
  }
  ~Runs() { set_log_level(LogLevel::info); }

  // Two steps with an evaluation, a checkpoint beside the second and an export at the end. What did not fit, if so.
  std::optional<PlanRefusal> run(const OptionValues& more) {
    TrainOptions options;
    OptionOrigins origins;
    const OptionTable<TrainOptions>& table = train_option_table();
    const auto set = [&](const std::string& name, const std::string& value) {
      const OptionSpec& spec = table.at(name);
      assign(table.ref(options), origins, spec, parse_value(spec, value, "--" + name), Origin::command_line, {});
    };
    const auto output = directory_ / "out";
    for (const auto& [name, value] : OptionValues{{"model", (directory_ / "model").string()},
                                                  {"data", (directory_ / "train.jsonl").string()},
                                                  {"eval_data", (directory_ / "eval.jsonl").string()},
                                                  {"output_dir", output.string()},
                                                  {"cache_dir", (directory_ / "cache").string()},
                                                  {"device", on_gpu() ? "cuda" : "cpu"},
                                                  {"cpu_threads", "2"},
                                                  {"max_length", "128"},
                                                  {"max_steps", "2"},
                                                  {"eval_steps", "1"},
                                                  {"save_steps", "1"},
                                                  {"log_interval", "100"}})
      set(name, value);
    for (const auto& [name, value] : setting_.options) set(name, value);
    for (const auto& [name, value] : more) set(name, value);
    if (on_gpu()) std::cout << "train" << described(more) << std::endl;  // each takes seconds
    check_train_options(options, origins);
    std::filesystem::remove_all(output);
    try {
      EXPECT_EQ(find_command("train")->run(&options, origins, *make_single_communicator()), exit_ok);
      if (options.dry_run) return std::nullopt;
    } catch (const PlanRefusal& refusal) {
      EXPECT_FALSE(std::filesystem::exists(output)) << "a refusal wrote something";
      return refusal;
    }
    for (const char* written : {"model.safetensors", "checkpoint-1/exp_avg.safetensors",
                                "checkpoint-2/exp_avg_sq.safetensors", "checkpoint-2/model.safetensors"})
      EXPECT_TRUE(std::filesystem::exists(output / written)) << written;
    return std::nullopt;
  }

 private:
  const Setting& setting_;
  TemporaryDirectory directory_;
};

struct Tally {
  int accepted = 0, refused = 0, changed = 0;
  std::map<std::string, int> changes;  // by the options they name
};

// Every change of a refusal, then run.
void run_with_changes(Runs& runs, const OptionValues& cap, const PlanRefusal& refusal, Tally& tally) {
  EXPECT_NE(std::string(refusal.what()).find("not enough"), std::string::npos) << refusal.what();
  int of_options = 0;
  for (const PlanChange& change : refusal.changes()) {
    SCOPED_TRACE("changed:" + described(change.options) + " (" + change.text + ")");
    if (change.options.empty()) continue;
    ++of_options;
    OptionValues words = cap;
    std::string names;
    for (const auto& option : change.options) {
      words.push_back(option);
      names += (names.empty() ? "" : ", ") + option.first;
    }
    const auto again = runs.run(words);
    EXPECT_FALSE(again) << again->what();
    ++tally.changes[names];
    ++tally.changed;
  }
  EXPECT_GT(of_options, 0) << "nothing would help: " << refusal.what();
}

// Caps of one memory around the least with which the plan accepts.
void try_caps(Runs& runs, const std::string& option, std::size_t room, int refused_points, int accepted_points,
              Tally& tally) {
  const auto bytes_of = [&](const PlanRefusal& refusal) -> std::size_t {
    for (const PlanChange& change : refusal.changes())
      if (change.options.size() == 1 && change.options[0].first == option)
        return static_cast<std::size_t>(
            std::get<std::int64_t>(parse_value(train_option_table().at(option), change.options[0].second, option)));
    return 0;
  };
  const auto least_refusal = runs.run({{option, std::to_string(room)}});
  ASSERT_TRUE(least_refusal) << room << " bytes are enough";
  const std::size_t said = bytes_of(*least_refusal);
  ASSERT_GT(said, room) << least_refusal->what();
  // To the byte, so that nothing is left over.
  std::size_t least = said, refused = room;
  while (least - refused > (on_gpu() ? least / 200 : 1)) {
    const std::size_t middle = refused + (least - refused) / 2;
    (runs.run({{option, std::to_string(middle)}, {"dry_run", "true"}}) ? refused : least) = middle;
  }
  // One that knows the data; where the state alone is too much, the worst of data was counted on.
  const auto nearest = runs.run({{option, std::to_string(refused)}});
  ASSERT_TRUE(nearest);
  EXPECT_LE(bytes_of(*nearest) - least, least / 50) << "no more than must be";
  for (int i = 0; i < refused_points + accepted_points; ++i) {
    // Below it down to `room`, closer the nearer; above it up to twice what is beyond `room`.
    const double distance = static_cast<double>(least - room);
    const double at = i < refused_points ? -distance * i * i / (refused_points * refused_points)
                                         : distance * (i - refused_points) * (i - refused_points) /
                                               (accepted_points * accepted_points);
    const std::size_t cap = static_cast<std::size_t>(static_cast<double>(least) + at) - (i < refused_points ? 1 : 0);
    const OptionValues words{{option, std::to_string(cap)}};
    SCOPED_TRACE(described(words));
    const auto refusal = runs.run(words);
    if (!refusal) {
      ++tally.accepted;
      continue;
    }
    EXPECT_LT(cap, least) << "as much as was said to be enough: " << refusal->what();
    ++tally.refused;
    // Changes are many, and much the same a little further on.
    if (i % 2 == 0) run_with_changes(runs, words, *refusal, tally);
  }
}

class MemoryGridOf : public testing::TestWithParam<int> {};

SO_LABEL(sweep, "Settings/MemoryGridOf.*");
TEST_P(MemoryGridOf, WhatIsAcceptedRunsAndWhatIsRefusedRunsAsChanged) {
  const Setting& setting = settings()[static_cast<std::size_t>(GetParam())];
  SCOPED_TRACE(setting.name);
  Runs runs(setting);
  Tally tally;
  constexpr int refused = 10, accepted = 8;
  if (on_gpu())
    try_caps(runs, "device_memory", std::size_t{300} << 20, refused, accepted, tally);
  else
    try_caps(runs, "host_memory", std::size_t{14} << 20, refused, accepted, tally);
  std::string changes;
  for (const auto& [names, count] : tally.changes) changes += " " + names + ": " + std::to_string(count) + ";";
  RecordProperty("accepted", tally.accepted);
  RecordProperty("refused", tally.refused);
  std::cout << setting.name << ": " << tally.accepted << " caps accepted, " << tally.refused << " refused, "
            << tally.changed << " changes run:" << changes << "\n";
  EXPECT_GE(tally.accepted, accepted - 2);
  EXPECT_GE(tally.refused, refused - 2);
}

// Where the device has memory of its own, the host's is another.
TEST(MemoryGrid, OfTheHostBesideAGpu) {
  if (!on_gpu()) GTEST_SKIP() << "on the CPU device there is one memory";
  Setting setting = settings()[0];
  setting.options.emplace_back("offload_ratio", "1");
  Runs runs(setting);
  Tally tally;
  try_caps(runs, "host_memory", 306'000'000, 3, 4, tally);
  EXPECT_GE(tally.accepted, 3);
  EXPECT_GE(tally.refused, 2);
}

INSTANTIATE_TEST_SUITE_P(Settings, MemoryGridOf, testing::Range(0, static_cast<int>(settings().size())),
                         [](const testing::TestParamInfo<int>& tested) {
                           std::string name = settings()[static_cast<std::size_t>(tested.param)].name;
                           std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
                           return name;
                         });

}  // namespace
}  // namespace so::test
