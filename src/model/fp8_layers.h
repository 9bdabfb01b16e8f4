// Which layers of a run have products in FP8 (LayerSpec::fp8).
#pragma once

#include <cstdint>
#include <string>

#include "model/spec.h"

namespace so {

// Marks all layers but the first and the last ones that are kept, as far as they have products that can be in FP8: of
// attention, and of an MLP that is no expert. Throws Error, which names the tensor, where a size is no multiple of 128;
// and if no layer is left. `model`: as the user called it.
void use_fp8(DecoderSpec& spec, std::int64_t keep_first, std::int64_t keep_last, const std::string& model);

}  // namespace so
