// The dtype that a model is computed in.
#pragma once

#include <string>

#include "base/dtype.h"
#include "options/train_options.h"

namespace so {

// bf16 or f32: what was asked for, or what config.json says ("dtype", "torch_dtype"); that fp16 becomes bf16 is logged.
DType resolve_dtype(Precision precision, const std::string& config_json, const std::string& origin);

}  // namespace so
