// State that holds Inf or NaN is neither saved nor used.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

#include "base/dtype.h"

namespace so {

// Call it before values of a tensor are written to a file of `directory`. Throws Divergence naming the tensor, what of
// it is written ("weight", "first moment", ...), and that nothing was saved, if one is Inf or NaN.
void require_finite_for_save(DType dtype, const void* values, std::size_t count, std::string_view tensor,
                             std::string_view what, const std::filesystem::path& directory);

}  // namespace so
