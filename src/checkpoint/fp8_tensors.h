// The FP8 tensors of a model directory, and the tensors that only they have beside them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "io/fp8.h"
#include "io/hf_directory.h"
#include "offload/schedule/parameter_layout.h"

namespace so {

// A matrix NAME is in FP8 if its tensor's elements are F8_E4M3. NAME_scale_inv has what they are multiplied by, in f32
// or bf16: one number, or one for each block of weight_block_size in quantization_config ([128, 128] without the key).
class Fp8Tensors {
 public:
  explicit Fp8Tensors(const HfDirectory& directory);

  // Reads the scales of a parameter whose tensor has that name; null if it is not in FP8. Throws Error that names file
  // and tensor if the scales are missing, of another shape or dtype, or not finite.
  std::shared_ptr<const ByteCodes> codes_of(const Parameter& parameter, const std::string& name) const;

  // The matrix whose scales a tensor has, or whose input's scale it has, by their names; empty: neither. An input's
  // scale is for computing in FP8, and nothing else.
  static std::string matrix_of_scales(std::string_view tensor);
  static std::string matrix_of_input_scale(std::string_view tensor);

 private:
  std::vector<float> read_scales(const std::string& name) const;

  const HfDirectory& directory_;
  std::int64_t block_rows_ = 128, block_columns_ = 128;
};

}  // namespace so
