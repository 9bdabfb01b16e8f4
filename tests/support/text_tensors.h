// The tensors of a text model among those of a model's files, under the names of its parameters.
#pragma once

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

}  // namespace so::test
