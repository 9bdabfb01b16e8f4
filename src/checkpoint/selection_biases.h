// The constants that routers add where they choose experts (DecoderSpec::selection_biases), in the files of a model. No
// parameters: training copies them as they are, in their own number format.
#pragma once

#include <vector>

#include "io/hf_directory.h"
#include "io/safetensors.h"
#include "model/spec.h"
#include "model/stored_names.h"

namespace so {

// Returns their values, [layers, experts.count] with zeros for layers without experts; nothing if the model has none.
// Throws Error naming file and tensor if one is missing, of another shape or format, or not finite.
std::vector<float> read_selection_biases(const HfDirectory& directory, const DecoderSpec& spec,
                                         const StoredNames& names);

// The tensors, as a new model's files list them. Its values are zeros.
std::vector<TensorSpec> selection_bias_specs(const DecoderSpec& spec);

}  // namespace so
