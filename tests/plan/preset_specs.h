// Published models that tests plan.
#pragma once

#include "io/presets.h"
#include "model/config.h"

namespace so::test {

inline DecoderSpec qwen3_14b() {
  const ModelConfig config = resolve_config("qwen3-14b");
  return read_decoder_spec(config.text, config.origin);
}

}  // namespace so::test
