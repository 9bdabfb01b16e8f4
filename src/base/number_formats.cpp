#include "base/number_formats.h"

#include <utility>

#include "base/error.h"

namespace so {

NumberFormats model_formats(DType dtype) { return {.weights = dtype, .activations = dtype, .exported = dtype}; }

void check_formats(const NumberFormats& formats) {
  for (const auto& [role, dtype] :
       {std::pair{"weights", formats.weights}, std::pair{"activations", formats.activations},
        std::pair{"gradients", formats.gradients}, std::pair{"sums over ranks", formats.rank_sums},
        std::pair{"exported weights", formats.exported}})
    SO_CHECK(dtype == DType::f32 || dtype == DType::bf16, "{} in {}: only fp32 and bf16 are implemented", role,
             name_of(dtype));
  SO_CHECK(formats.moments == DType::f32 || formats.moments == DType::bf16 || formats.moments == DType::u8,
           "moments in {}: only fp32, bf16 and 8-bit codes are implemented", name_of(formats.moments));
  SO_CHECK(formats.weights == formats.activations,
           "weights in {} and activations in {}: an operation takes both in one format", name_of(formats.weights),
           name_of(formats.activations));
  SO_CHECK(formats.gradients == DType::f32 || formats.gradients == formats.weights,
           "gradients in {} of weights in {}: operations write them in fp32 or in the weights' format",
           name_of(formats.gradients), name_of(formats.weights));
  SO_CHECK(formats.rank_sums == DType::f32 || formats.rank_sums == formats.gradients,
           "sums over ranks in {} of gradients in {}", name_of(formats.rank_sums), name_of(formats.gradients));
}

}  // namespace so
