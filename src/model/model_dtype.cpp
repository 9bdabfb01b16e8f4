#include "model/model_dtype.h"

#include "base/file.h"
#include "base/log.h"
#include "model/config.h"

namespace so {

DType model_dtype(std::optional<DType> asked, const std::string& config_json, const std::string& origin) {
  if (asked) return *asked;
  const ConfigReader config(config_json, origin);
  // Weights that are published quantised are widened to bf16, and their config often says no dtype.
  const char* const usual = config.has("quantization_config") ? "bfloat16" : "float32";
  const std::string stored = config.text("dtype", config.text("torch_dtype", usual));
  // fp16 weights train in bf16: same size, and no loss scaling is needed.
  if (stored == "float16")
    log_info(
        "{}: the weights are stored in float16; computed, and written, is in bfloat16, which keeps 3 bits fewer of "
        "each (--dtype fp32 keeps them all)",
        printable_path(origin));
  return stored == "bfloat16" || stored == "float16" ? DType::bf16 : DType::f32;
}

}  // namespace so
