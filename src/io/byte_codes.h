// How a file's bytes become numbers, where each is a code that means something by scales that lie beside the tensor.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace so {

class ByteCodes {
 public:
  virtual ~ByteCodes() = default;
  // Elements [begin, begin + codes.size()) of the tensor, in row-major order, as fp32, and as that rounded to bf16
  // (nearest even). `wide` and `narrow`: each may be null. Any thread.
  virtual void decode(std::int64_t begin, std::span<const std::uint8_t> codes, float* wide, bf16* narrow) const = 0;
};

}  // namespace so
