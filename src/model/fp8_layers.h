// Which layers of a run have products in FP8 (LayerSpec::fp8).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "model/spec.h"

namespace so {

// Marks all layers but the first and the last ones that are kept, as far as they have products that can be in FP8: of
// attention, and of an MLP that is no expert. Throws Error, which names the tensor, where a size is no multiple of 128;
// and if no layer is left. `model`: as the user called it.
void use_fp8(DecoderSpec& spec, std::int64_t keep_first, std::int64_t keep_last, const std::string& model);

// Columns of the products of a layer that are in FP8, beside those of the stream; all 0 where none is.
struct Fp8Widths {
  std::int64_t projected = 0, mixed = 0;  // what attention's first product makes and its last reads
  std::int64_t dense = 0;                 // what an MLP's last product reads
  double weights = 0;                     // elements of their weights
};
Fp8Widths fp8_widths(const DecoderSpec& spec, std::int64_t layer);

// Returns the share that products in FP8 have of the FLOPs that model_flops() counts where all is trained.
double fp8_share(const DecoderSpec& spec, std::span<const std::int32_t> cu_seqlens);

}  // namespace so
