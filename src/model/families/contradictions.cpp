#include "model/families/contradictions.h"

#include <algorithm>
#include <array>

#include "base/file.h"

namespace so {
namespace {

constexpr std::array stored_types = {"float32", "bfloat16", "float16"};

void require_known_type(const ConfigReader& config, std::string_view key) {
  const std::string type = config.text(key, stored_types.front());
  if (std::find(stored_types.begin(), stored_types.end(), type) == stored_types.end())
    config.refuse(key, fmt::format("'{}' is not supported, only float32, bfloat16 and float16; use the model as it was "
                                   "before it was converted",
                                   printable(type)));
}

}  // namespace

void require_consistent(const ConfigReader& config, std::string_view architecture, std::string_view expected_type) {
  for (const char* key : {"dtype", "torch_dtype"}) require_known_type(config, key);
  const std::string type = config.text("dtype", ""), old_type = config.text("torch_dtype", type);
  if (!type.empty() && old_type != type)
    config.refuse("torch_dtype", fmt::format("is '{}', but dtype is '{}'; remove the one that is not meant",
                                             printable(old_type), printable(type)));
  if (config.has("num_experts") && config.has("num_local_experts")) {
    const std::int64_t experts = config.positive_int("num_experts"), local = config.positive_int("num_local_experts");
    if (experts != local)
      config.refuse("num_local_experts",
                    fmt::format("is {}, but num_experts is {}; remove the one that is not meant", local, experts));
  }
  const std::string model_type = config.text("model_type", expected_type);
  if (model_type != expected_type)
    config.refuse("model_type", fmt::format("is '{}', but architectures has {}, "
                                            "whose model_type is '{}'; correct the one that is wrong",
                                            printable(model_type), architecture, expected_type));
}

}  // namespace so
