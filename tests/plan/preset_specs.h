// Published models that tests plan.
#pragma once

#include <string>

#include "io/presets.h"
#include "model/config.h"

namespace so::test {

inline DecoderSpec preset_spec(const std::string& name) {
  const ModelConfig config = resolve_config(name);
  return read_decoder_spec(config.text, config.origin);
}
inline DecoderSpec qwen3_14b() { return preset_spec("qwen3-14b"); }

}  // namespace so::test
