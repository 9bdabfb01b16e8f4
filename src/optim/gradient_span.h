// A run of gradient elements in either of the types they arrive in.
#pragma once

#include <span>
#include <variant>

#include "base/dtype.h"

namespace so {

using GradientSpan = std::variant<std::span<const float>, std::span<const bf16>>;

}  // namespace so
