#include "model/model_dtype.h"

#include <string_view>

#include "base/file.h"
#include "base/log.h"
#include "model/config.h"

namespace so {

namespace {

// Where the dtype stands. Some models of text and more have it in text_config alone.
ConfigReader part_with_dtype(const ConfigReader& config) {
  return config.has("dtype") || config.has("torch_dtype") ? config : text_part(config);
}

}  // namespace

bool says_no_dtype(const std::string& config_json, const std::string& origin) {
  const ConfigReader config(config_json, origin), part = part_with_dtype(config);
  return !part.has("dtype") && !part.has("torch_dtype") && !config.has("quantization_config");
}

DType model_dtype(std::optional<DType> asked, const std::string& config_json, const std::string& origin,
                  std::optional<DType> stored_in) {
  if (asked) return *asked;
  const ConfigReader config(config_json, origin), part = part_with_dtype(config);
  // Weights that are published quantised are widened to bf16, and their config often says no dtype.
  const std::string_view usual =
      config.has("quantization_config") ? "bfloat16" : name_of(stored_in.value_or(DType::f32));
  const std::string stored = part.text("dtype", part.text("torch_dtype", usual));
  // fp16 weights train in bf16: same size, and no loss scaling is needed.
  if (stored == "float16")
    log_info(
        "{}: the weights are stored in float16; computed, and written, is in bfloat16, which keeps 3 bits fewer of "
        "each (--dtype fp32 keeps them all)",
        printable_path(origin));
  return stored == "bfloat16" || stored == "float16" ? DType::bf16 : DType::f32;
}

}  // namespace so
