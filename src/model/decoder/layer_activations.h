// Internal to the decoder: what a layer works with, and memory for it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "device/arena.h"
#include "model/decoder/product_input.h"
#include "model/spec.h"
#include "ops/ops.h"

namespace so {

// The parts of attention's projections, or of their gradient. With a gate of attention's output each head's queries are
// followed by its gate.
inline Heads queries_in(Tensor qkv, const AttentionShape& s) {
  return {qkv, 0, s.heads, s.head_dim, s.output_gate ? 2 * s.head_dim : 0};
}
inline Heads gates_in(Tensor qkv, const AttentionShape& s) {
  return {qkv, s.head_dim, s.heads, s.head_dim, 2 * s.head_dim};
}
inline Heads keys_in(Tensor qkv, const AttentionShape& s) {
  return {qkv, s.projected_q_width(), s.kv_heads, s.head_dim};
}
inline Heads values_in(Tensor qkv, const AttentionShape& s) {
  return {qkv, s.projected_q_width() + (s.keys_are_values ? 0 : s.kv_width()), s.kv_heads, s.head_dim};
}

// Where keys and values lie by themselves: in a cache, and for layers that attend to another's.
inline Heads taken_keys(Tensor rows, const AttentionShape& s) { return {rows, 0, s.kv_heads, s.head_dim}; }
inline Heads taken_values(Tensor rows, const AttentionShape& s) { return {rows, s.kv_width(), s.kv_heads, s.head_dim}; }

// Queries and keys, rotated, and values, normed if there is a norm of them; or their gradient.
struct AttentionHeads {
  Heads q, k, v;
};

// A layer's activations. Between forward and backward only those that it keeps are there; the others are empty, and
// come from the arena, for as long as they are worked with.
struct LayerActivations {
  Tensor x, inv_rms1;    // residual stream into the layer, T [N, H]; f32 [N]
  ProductInput normed1;  // [N, H]; x without a norm
  Tensor qkv;  // projections, T [N, projected_width]; attention's q and k rotated in place without a norm of them
  // With such a norm: rotated q and k, T [N, q_width + kv_width], and behind them v if that has one too; else qk is
  // qkv.
  Tensor qk, q_inv_rms, k_inv_rms, v_inv_rms;
  Tensor expanded;  // of a layer with latents, whose qkv are these: rotated q and k, and v, T [N, 3 q_width]
  Tensor mixed;     // what attention, the delta rule or the state space makes, T [N, mixed_width]
  Tensor lse;       // of attention, f32 [heads, N], of a slice the own heads' of all tokens
  Tensor gated;     // T [N, mixed_width], if the layer has a gate there
  // A delta layer and a state space have these: what is behind the convolution, T [N, convolved_width]; the others f32
  // [N, v_heads], of a state space [N, heads], where rate is the steps, and [N, groups].
  Tensor convolved, decay, rate, gated_inv_rms;
  // Of a slice: what attention reads and makes, of this rank's heads and all tokens. Never kept.
  Tensor own_qkv, own_attention;
  // With output norms: what attention and MLP give to those, T [N, H], f32 [N].
  Tensor attention_out, attention_out_inv_rms, mlp_out, mlp_out_inv_rms;
  Tensor middle, inv_rms2;    // residual stream after attention
  ProductInput normed2;       // [N, H]; middle without a norm
  Tensor gate_up, activated;  // T [N, 2F], T [N, F]; of experts one row a pair of token and choice
  Tensor router_logits;       // f32 [N, E]
  Routing routing;
  // A shared expert has T [N, 2 shared_intermediate], T [N, shared_intermediate] and f32 [N].
  Tensor shared_gate_up, shared_activated, shared_gates;
  // Of an MLP beside experts (dense_with_experts.h): what each gives to its norm, T [N, H], f32 [N]; what the router
  // reads, T [N, H], never kept; and with a scale of each expert, routing.weights times those.
  Tensor shared_out, shared_out_inv_rms, experts_out, experts_out_inv_rms, router_input, scaled_weights;

  // Of a model whose layers have inputs beside the stream: those of all layers (across_layers.h), which outlive it.
  Tensor layer_inputs;

  Heads raw_q(const AttentionShape& s) const { return queries_in(qkv, s); }
  Heads raw_k(const AttentionShape& s) const { return keys_in(qkv, s); }
  Heads raw_v(const AttentionShape& s) const { return values_in(qkv, s); }
  Heads q(const AttentionShape& s) const { return {qk, 0, s.heads, s.head_dim}; }
  Heads k(const AttentionShape& s) const { return {qk, s.q_width(), s.kv_heads, s.head_dim}; }
  Heads v(const AttentionShape& s) const {
    return s.value_norm ? Heads{qk, s.q_width() + s.kv_width(), s.kv_heads, s.head_dim} : raw_v(s);
  }
  Heads attention_heads(const AttentionShape& s) const { return {mixed, 0, s.heads, s.head_dim}; }

  // Those of `count` tokens from `first` on, as far as they are there. What stands between the MLP's products, or has
  // no rows of tokens, is left out.
  LayerActivations rows(std::int64_t first, std::int64_t count) const;
};

// Calls body(first, count) for each tile of `rows` of `tokens`, in order.
template <class Body>
void for_each_tile(std::int64_t tokens, std::int64_t rows, const Body& body) {
  for (std::int64_t first = 0; first < tokens; first += rows) body(first, std::min(rows, tokens - first));
}

// Memory of the arena lasts as long as the caller's scope of it.
// Acquires a tensor if it is empty.
void acquire_if_empty(Arena& arena, Tensor& tensor, const char* name, DType dtype,
                      std::initializer_list<std::int64_t> shape);
// Returns a tensor of `bytes` bytes; an empty one for 0.
Tensor acquire_bytes(Arena& arena, std::string_view name, std::size_t bytes);
// Returns a matrix in memory that is of no other use by now, if it fits there; else from the arena.
Tensor in_room(Arena& arena, const char* name, DType dtype, std::int64_t rows, std::int64_t columns, Tensor room);

}  // namespace so
