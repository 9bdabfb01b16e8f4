// A model as commands know it that need no weights: by its config.json.
#pragma once

#include <string>

#include "io/presets.h"
#include "model/spec.h"
#include "options/choices.h"

namespace so {

struct NamedModel {
  ModelConfig config;
  DecoderSpec spec;
  DType dtype;
};

// `name`: a config.json, a directory that has one, or a preset. `dtype`: automatic is what config.json says.
NamedModel read_named_model(const std::string& name, Precision dtype);

}  // namespace so
