// The tensors of a checkpoint's file of optimizer state as they are read.
#pragma once

#include <memory>
#include <string>

#include "io/byte_codes.h"
#include "io/safetensors.h"
#include "offload/schedule/parameter_layout.h"

namespace so {

enum class StateArray : std::uint8_t;

// Returns what decodes a parameter's tensor if it holds 8-bit moments; null if it holds numbers, which are fp32, or
// bf16 if they are moments. Reads the scales. Throws Error that names file and tensor where a tensor is of another
// format or shape, or its scales are missing, not finite or below 0.
std::shared_ptr<const ByteCodes> state_codes(const SafetensorsReader& file, const Parameter& parameter,
                                             StateArray array);

}  // namespace so
