#include "model/decoder/attention_setup.h"

#include <algorithm>

#include "model/decoder/layer_activations.h"

namespace so {

AttentionSpans AttentionSetup::spans(const DecoderPass& pass) const {
  AttentionSpans spans = pass.batch.spans;
  spans.scale = context_.spec.score_scale(layer_);
  spans.window = context_.spec.layer(layer_).window;
  spans.sinks = pass.weight(context_.parameters(layer_).sinks);
  spans.any_order = context_.settings.any_order;
  return spans;
}

AttentionSize AttentionSetup::size(const AttentionSpans& spans, std::int64_t q_rows, std::int64_t k_rows) const {
  const AttentionShape s = context_.spec.shape(layer_);
  return {q_rows,         k_rows,
          s.heads,        s.kv_heads,
          s.head_dim,     spans.documents,
          spans.max_q,    context_.activations(),
          spans.window,   static_cast<bool>(spans.sinks),
          spans.any_order};
}

Tensor AttentionSetup::acquire_scratch(Arena& arena, const AttentionSize& size) const {
  return acquire_bytes(arena, "attention scratch", context_.ops.memory().attention(size));
}

Tensor AttentionSetup::acquire_gradient_scratch(Arena& arena, AttentionSize size) const {
  const DecoderSettings& settings = context_.settings;
  const OpsMemory& memory = context_.ops.memory();
  const auto bytes_for = [&](const AttentionSize& of) {
    return settings.roomy_attention ? memory.attention_grad_most(of) : memory.attention_grad(of);
  };
  std::size_t bytes = bytes_for(size);
  if (settings.most_tokens > 0) {
    size.q_rows = size.k_rows = size.documents = settings.most_tokens;
    size.longest = std::min(settings.most_tokens, settings.longest_document);
    bytes = std::min(bytes, bytes_for(size));
  }
  return acquire_bytes(arena, "attention scratch", bytes);
}

}  // namespace so
