#include "model/decoder/layer_activations.h"

namespace so {

LayerActivations LayerActivations::rows(std::int64_t first, std::int64_t count) const {
  LayerActivations part = *this;
  part.lse = part.own_qkv = part.own_attention = part.gate_up = part.activated = part.router_logits = {};
  part.routing = {};
  part.shared_gate_up = part.shared_activated = part.shared_gates = part.scaled_weights = {};
  for (Tensor* tensor : {&part.x,
                         &part.inv_rms1,
                         &part.normed1.values,
                         &part.qkv,
                         &part.qk,
                         &part.q_inv_rms,
                         &part.k_inv_rms,
                         &part.v_inv_rms,
                         &part.expanded,
                         &part.mixed,
                         &part.gated,
                         &part.convolved,
                         &part.decay,
                         &part.rate,
                         &part.gated_inv_rms,
                         &part.attention_out,
                         &part.attention_out_inv_rms,
                         &part.mlp_out,
                         &part.mlp_out_inv_rms,
                         &part.middle,
                         &part.inv_rms2,
                         &part.normed2.values,
                         &part.shared_out,
                         &part.shared_out_inv_rms,
                         &part.experts_out,
                         &part.experts_out_inv_rms,
                         &part.router_input,
                         &part.layer_inputs})
    if (*tensor) *tensor = tensor->rows(first, count);
  return part;
}

void acquire_if_empty(Arena& arena, Tensor& tensor, const char* name, DType dtype,
                      std::initializer_list<std::int64_t> shape) {
  if (!tensor) tensor = arena.acquire(name, dtype, shape);
}

Tensor acquire_bytes(Arena& arena, std::string_view name, std::size_t bytes) {
  return bytes == 0 ? Tensor() : arena.acquire(name, DType::u8, {static_cast<std::int64_t>(bytes)});
}

Tensor in_room(Arena& arena, const char* name, DType dtype, std::int64_t rows, std::int64_t columns, Tensor room) {
  if (room && static_cast<std::size_t>(rows * columns) * size_of(dtype) <= room.bytes())
    return {room.data(), dtype, {rows, columns}};
  return arena.acquire(name, dtype, {rows, columns});
}

}  // namespace so
