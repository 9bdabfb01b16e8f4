#include "options/deepspeed_optimizer.h"

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <utility>

#include "options/deepspeed_config.h"
#include "options/deepspeed_json.h"

namespace so {
namespace {

using json = nlohmann::json;

void keep_keys(const json& from, json& to, std::initializer_list<const char*> keys) {
  for (const char* key : keys)
    if (const auto value = from.find(key); value != from.end()) to[key] = *value;
}

json optimizer_part(const json& config) {
  json part = json::object();
  keep_keys(config, part, {"optimizer", "gradient_clipping", "zero_optimization", "fp16", "bf16", "bfloat16"});
  if (const auto zero = part.find("zero_optimization"); zero != part.end() && zero->is_object()) {
    const json all = std::exchange(*zero, json::object());
    keep_keys(all, *zero, {"offload_optimizer", "cpu_offload"});
  }
  return part;
}

}  // namespace

std::string deepspeed_optimizer(std::string_view text, std::string_view name, int cpus) {
  const json config = optimizer_part(parse_deepspeed(text, name));
  TrainOptions options;
  OptionOrigins origins;
  apply_deepspeed_text(config.dump(-1, ' ', true, json::error_handler_t::replace), name, 1, options, origins);
  const auto says = [&](const char* pointer) { return config.contains(json::json_pointer(pointer)); };
  json arguments = json::object();
  if (origins.given("lr")) arguments["lr"] = options.lr;
  if (origins.given("adam_beta1") || origins.given("adam_beta2"))
    arguments["betas"] = {options.adam_beta1, options.adam_beta2};
  if (origins.given("adam_epsilon")) arguments["eps"] = options.adam_epsilon;
  if (origins.given("weight_decay"))
    arguments["weight_decay"] = options.weight_decay;
  else if (says("/optimizer/type") && !says("/optimizer/params/weight_decay"))
    arguments["weight_decay"] = 0.0;
  if (origins.given("max_grad_norm") || !says("/gradient_clipping"))
    arguments["max_grad_norm"] = says("/gradient_clipping") ? options.max_grad_norm.value_or(0) : 0.0;
  if (says("/zero_optimization/offload_optimizer/device") || says("/zero_optimization/cpu_offload")) {
    const bool on_cpu = options.offload_optimizer == OptimizerDevice::cpu;
    if (options.offload_ratio || !on_cpu || !says("/zero_optimization/offload_optimizer/ratio"))
      arguments["offload_ratio"] = on_cpu ? options.offload_ratio.value_or(1) : 0.0;
  } else {
    arguments["offload_ratio"] = 0.0;
  }
  if (origins.given("cpuadam_cores_perc")) arguments["threads"] = resolve_cpu_threads(options, cpus);
  return arguments.dump();
}

}  // namespace so
