// The dtype of a model directory.
#pragma once

#include <filesystem>
#include <optional>

#include "base/dtype.h"

namespace so {

// bf16 or f32 (model/model_dtype.h): what was `asked` for, or what DIRECTORY/config.json says; where that says nothing,
// what most of its weights are stored in, if there are any.
DType directory_dtype(std::optional<DType> asked, const std::filesystem::path& directory);

}  // namespace so
