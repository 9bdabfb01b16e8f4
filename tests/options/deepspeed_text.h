// DeepSpeed files as texts, for tests.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "options/deepspeed_config.h"

namespace so {

struct Applied {
  TrainOptions options;
  OptionOrigins origins;
  std::string error;  // empty: accepted
};

// `line`: options given on the command line.
inline Applied read(const std::string& text, int ranks = 1,
                    const std::vector<std::pair<std::string, OptionValue>>& line = {}) {
  Applied a;
  for (const auto& [name, value] : line)
    assign(train_option_table().ref(a.options), a.origins, train_option_table().at(name), value, Origin::command_line,
           "");
  try {
    apply_deepspeed_text(text, "ds.json", ranks, a.options, a.origins);
    resolve_warmup(a.options, a.origins);
  } catch (const Error& error) {
    a.error = error.what();
  }
  return a;
}

// {"a": {"b": value}} for "a.b".
inline nlohmann::json nested(const std::string& path, nlohmann::json value) {
  const std::size_t dot = path.rfind('.');
  if (dot == std::string::npos) return {{path, std::move(value)}};
  return nested(path.substr(0, dot), {{path.substr(dot + 1), std::move(value)}});
}

// `value` at `path`, with what must stand beside it.
inline std::string config_with(const std::string& path, nlohmann::json value) {
  nlohmann::json config = nested(path, std::move(value));
  if (path.rfind("optimizer.params", 0) == 0) config["optimizer"]["type"] = "AdamW";
  if (path.rfind("scheduler.params", 0) == 0) config["scheduler"]["type"] = "WarmupLR";
  return config.dump();
}

// The published recipes write this for one GPU and batch size 4.
inline const char* const superoffload_recipe = R"({
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

}  // namespace so
