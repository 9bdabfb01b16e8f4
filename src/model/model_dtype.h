// The dtype of a model, from which the number formats of a run follow (base/number_formats.h).
#pragma once

#include <optional>
#include <string>

#include "base/dtype.h"

namespace so {

// bf16 or f32: what was `asked` for, or what config.json says ("dtype", "torch_dtype"), else what the weights are
// `stored` in. That fp16 becomes bf16 is logged.
DType model_dtype(std::optional<DType> asked, const std::string& config_json, const std::string& origin,
                  std::optional<DType> stored = {});

// Whether that depends on how the weights are stored.
bool says_no_dtype(const std::string& config_json, const std::string& origin);

}  // namespace so
