// The tensors of a text model among those of a model's files, under the names of its parameters.
#pragma once

#include <vector>

#include "model/stored_names.h"
#include "support/safetensors_reader.h"

namespace so::test {

inline StoredTensors text_tensors(const DecoderSpec& spec, const StoredTensors& stored) {
  const StoredNames names = names_in_files(
      spec, [&](std::string_view name) { return stored.contains(std::string(name)); }, "the test");
  StoredTensors text;
  for (const auto& [name, tensor] : stored)
    if (!names.carries(name)) text.emplace(names.parameter(name), tensor);
  return text;
}

// DecoderSpec::selection_biases as the files have them.
inline std::vector<float> selection_biases(const DecoderSpec& spec, const StoredTensors& stored) {
  std::vector<float> all;
  for (const std::string& name : selection_bias_names(spec)) {
    const auto values =
        name.empty() ? std::vector<float>(static_cast<std::size_t>(spec.experts.count)) : stored.at(name).values;
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

}  // namespace so::test
