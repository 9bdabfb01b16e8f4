// A Llama so small that its plans and engines take no time, which the tests of plans share.
#pragma once

#include "model/spec.h"

namespace so::test {

inline DecoderSpec small_llama(std::int64_t layers = 5, std::int64_t vocab = 1000) {
  DecoderSpec s;
  s.architecture = "LlamaForCausalLM";
  s.vocab = vocab;
  s.hidden = 64;
  s.layers = layers;
  s.heads = 4;
  s.kv_heads = 2;
  s.head_dim = 16;
  s.intermediate = 160;
  s.max_positions = 512;
  s.rope.rotary_dim = 16;
  return s;
}

}  // namespace so::test
