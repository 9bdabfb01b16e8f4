// Random weights in the family's own initialisation.
#pragma once

#include <cstdint>
#include <span>

#include "model/spec.h"
#include "offload/schedule/parameter_layout.h"

namespace so {

// Elements [begin, begin + out.size()) of a parameter: matrices, sinks and a router's bias normal(0,
// initializer_range), norm weights so that they multiply by 1, other biases 0, and of a delta layer A_log the logarithm
// of numbers drawn evenly between 0.01 and 16, and dt_bias 1, as transformers initialises these families. A function of
// (seed, parameter name, element) alone, so that it can be filled piece by piece, in any order, by any number of
// threads.
void initialize(const DecoderSpec& spec, const Parameter& parameter, std::uint64_t seed, std::int64_t begin,
                std::span<float> out);

// Whether it is drawn from the normal distribution.
bool drawn(const Parameter& parameter);

}  // namespace so
