#include "plan/placement/unit_work.h"

#include <algorithm>
#include <cmath>

#include "model/flops.h"
#include "model/fp8_layers.h"
#include "model/parameters.h"
#include "model/sequence_split.h"
#include "ops/cudnn_workspace.h"
#include "ops/ops_memory.h"

namespace so {
namespace {

// Shares of the rate of a large dense product under sustained load. The dense products of a step reach that rate, and a
// few percent more where no optimizer works beside them.
struct AttentionShares {
  double forward, backward;
};
// Pairs of query and key, of one head.
struct Visited {
  double pairs = 0;       // that the kernels visit; the time in which not all processors do counts as if they did
  bool windowed = false;  // fewer than without a window, by kernels for windows
  bool in_tiles = false;  // the gradient of a long document
};
// Of heads that are too wide for cuDNN: one H200 takes 7.2 ms forward and 28.1 backward with 32 heads of 512 and a
// document of 8,192, whose pairs count 1.06 times here.
constexpr AttentionShares wide_heads{0.485, 0.248};

AttentionShares attention_shares(const Efficiencies& reached, std::int64_t head_dim, const Visited& visited) {
  if (head_dim > widest_cudnn_head) return wide_heads;
  const bool small = head_dim < 128;
  AttentionShares shares =
      small ? AttentionShares{reached.small_head_attention_forward, reached.small_head_attention_backward}
            : AttentionShares{reached.attention_forward, reached.attention_backward};
  if (visited.windowed) {
    shares.forward *= reached.window_forward;
    shares.backward *= reached.window_backward;
    return shares;
  }
  if (head_dim > widest_cudnn_gradient) return shares;  // kernels that know neither tiles nor another order
  if (visited.in_tiles)
    shares = small ? AttentionShares{shares.forward, reached.long_small_head_attention_backward}
                   : AttentionShares{reached.long_attention_forward, reached.long_attention_backward};
  if (reached.gradients_in_any_order) shares.backward *= small ? reached.any_order_small_head : reached.any_order;
  return shares;
}

Visited visited_pairs(std::span<const std::int32_t> cu_seqlens, std::int64_t window, double heads,
                      const Efficiencies& reached) {
  const double all = attention_pairs(cu_seqlens, 0), tokens = cu_seqlens.empty() ? 0 : cu_seqlens.back();
  if (const double within = tokens * (static_cast<double>(window) + reached.attention_tile_keys);
      window > 0 && within < all)
    return {within, true};
  std::int32_t longest = 0;
  for (std::size_t i = 1; i < cu_seqlens.size(); ++i) longest = std::max(longest, cu_seqlens[i] - cu_seqlens[i - 1]);
  // Half of the processors are idle, in the mean, while the last blocks end.
  return {all + 0.5 * reached.processors * reached.attention_block_queries * longest / heads, false,
          longest > Efficiencies::long_attention_tokens};
}

// Memory-bound work of a layer beside its products, in elements a token, and its kernels.
struct ElementwiseWork {
  double forward = 0, backward = 0, again = 0;       // again: what Keep::light leaves to be made again
  double forward_kernels = 0, backward_kernels = 0;  // beyond those that are measured, a Llama layer's
};

// What a delta layer has between its products beside the rule itself: the convolution, the gates and the norm of the
// output, and the gradients of each.
void add_delta_elements(const DeltaSpec& delta, ElementwiseWork& work) {
  const auto convolved = static_cast<double>(delta.convolved_width()), output = static_cast<double>(delta.v_width());
  work.forward += 2 * convolved + 3 * output, work.backward += 3 * convolved + 6 * output;
  work.again += 2 * convolved + 3 * output;
  if (delta.by_key_head) {
    const auto sorted = 2 * static_cast<double>(delta.projected_width());
    work.forward += sorted, work.backward += sorted;
    work.forward_kernels += 6, work.backward_kernels += 6;
  }
}

// The same of a state space. Its norm comes behind its gate.
void add_state_space_elements(const StateSpaceSpec& space, ElementwiseWork& work) {
  const auto convolved = static_cast<double>(space.convolved_width()), output = static_cast<double>(space.width());
  work.forward += 2 * convolved + 3 * output, work.backward += 3 * convolved + 6 * output;
  work.again += 2 * convolved + 3 * output;
}

// What attention by latents has between its products beside attention: the latents' norms, and heads that are laid out,
// rotated, and taken apart again. What is made again are the norms and the heads.
void add_latent_elements(const LatentSpec& l, double q_width, ElementwiseWork& work) {
  const auto latents = static_cast<double>(l.q_rank + l.kv_rank), heads = 3 * q_width;
  work.forward += 2 * latents + 2 * heads, work.backward += 5 * latents + 2 * heads;
  work.again += 2 * latents + 2 * heads;
  work.forward_kernels += 8, work.backward_kernels += 12;
}

// The norms of an MLP beside experts, of these, and of the router, and the sum of both.
void add_norms_beside_experts(const DecoderSpec& spec, ElementwiseWork& work) {
  const auto hidden = static_cast<double>(spec.hidden);
  work.forward += 11 * hidden, work.backward += 18 * hidden;
  work.forward_kernels += 9, work.backward_kernels += 16;
}

// A shared expert's gate and sums. Its activation counts with those of the others (unit_work()).
void add_shared_expert(const DecoderSpec& spec, ElementwiseWork& work) {
  const double gate = spec.experts.shared_gate ? 1 : 0, hidden = static_cast<double>(spec.hidden);
  work.forward += (1 + gate) * hidden, work.backward += (1 + 3 * gate) * hidden;
  work.forward_kernels += 3 + gate, work.backward_kernels += 5 + 2 * gate;
}

// The block behind the MLP that reads inputs of the layer: two sums, a norm and a gate, all made again in backward.
void add_layer_input(const DecoderSpec& spec, ElementwiseWork& work) {
  const auto hidden = static_cast<double>(spec.hidden), own = static_cast<double>(spec.layer_input);
  work.forward += 8 * hidden + 7 * own, work.backward += 10 * hidden + 16 * own;
  work.forward_kernels += 8, work.backward_kernels += 18;
}

// Forward kernels of a Llama layer's second block, a norm, two products and an activation, and of its first; backward
// has twice as many.
constexpr double mlp_kernels = 4, mixer_kernels = 6;

// The norms with their sums, and the rotation of q and k or a delta layer's convolution.
ElementwiseWork elementwise_work(const DecoderSpec& spec, std::int64_t of_layer) {
  const LayerSpec layer = spec.layer(of_layer);
  const AttentionShape shape = spec.shape(of_layer);
  const auto hidden = static_cast<double>(spec.hidden), q = static_cast<double>(shape.q_width()),
             kv = static_cast<double>(shape.kv_width());
  const double qk = shape.takes_keys ? q : q + kv;  // of what is rotated
  ElementwiseWork work;
  // Each block's sum with its norm, or its sum; what is made again is the norms of sums that were kept.
  const double blocks = (spec.has_mixer(of_layer) ? 1 : 0) + (layer.mlp ? 1 : 0);
  work.forward = work.backward = (spec.input_norms ? 4 : 3) * blocks * hidden;
  if (spec.input_norms) work.again = 2 * blocks * hidden;
  if (!layer.mlp) work.forward_kernels -= mlp_kernels, work.backward_kernels -= 2 * mlp_kernels;
  if (spec.output_norms) {
    work.forward += 4 * hidden, work.backward += 6 * hidden;
    work.forward_kernels += 2, work.backward_kernels += 4;
  }
  if (spec.layer_scales) {
    work.forward += 3 * hidden, work.backward += 2 * hidden;
    work.forward_kernels += 1, work.backward_kernels += 1;
  }
  if (spec.layer_input > 0) add_layer_input(spec, work);
  if (spec.residual_scale != 1) work.backward += 4 * hidden, work.backward_kernels += 2;
  if (layer.experts && spec.experts.shared_apart)
    add_norms_beside_experts(spec, work);
  else if (layer.experts && spec.experts.shared_intermediate > 0)
    add_shared_expert(spec, work);
  if (layer.mixer == TokenMixer::none) {
    work.forward_kernels -= mixer_kernels, work.backward_kernels -= 2 * mixer_kernels;
    return work;
  }
  if (layer.mixer == TokenMixer::gated_delta) {
    add_delta_elements(spec.delta, work);
    return work;
  }
  if (layer.mixer == TokenMixer::state_space) {
    add_state_space_elements(spec.state_space, work);
    return work;
  }
  if (layer.mixer == TokenMixer::latent) {
    add_latent_elements(spec.latent, static_cast<double>(shape.q_width()), work);
    return work;
  }
  if (spec.output_gate) {
    work.forward += 3 * q, work.backward += 6 * q, work.again += 3 * q;
    work.forward_kernels += 1, work.backward_kernels += 1;
  }
  if (shape.value_norm) {
    work.forward += 2 * kv, work.backward += 4 * kv, work.again += 2 * kv;
    work.forward_kernels += 1, work.backward_kernels += 1;
  }
  if (layer.rotation != LayerRotation::none) {
    work.forward += 2 * qk, work.backward += 2 * qk;
  } else {
    work.forward_kernels -= 2, work.backward_kernels -= 2;
  }
  work.again += 2 * qk;
  if (spec.projection_norm) {
    work.forward += 2 * qk, work.backward += 3 * qk, work.again += 2 * qk;
    work.forward_kernels += 2, work.backward_kernels += 4;
  }
  return work;
}

// Shares of a dense product's rate, as the delta rule's FLOPs are counted: 0.50 and 1.46 ms for 4 x 4,096 tokens with
// 32 value heads of 128 on an H200. One document of 32,768 takes 1.4 times that, since half of the processors are idle.
constexpr double delta_forward = 0.2, delta_backward = 0.14;

// The work of a layer's attention, delta rule or state space itself, as FLOPs of a dense product.
struct MixingWork {
  double forward = 0, backward = 0;
};
MixingWork mixing_work(const DecoderSpec& spec, std::int64_t of_layer, std::span<const std::int32_t> cu_seqlens,
                       const Efficiencies& reached, int sequence) {
  const LayerSpec layer = spec.layer(of_layer);
  if (layer.mixer == TokenMixer::none) return {};
  // A state space is taken at the delta rule's shares until one is measured.
  if (layer.mixer == TokenMixer::gated_delta || layer.mixer == TokenMixer::state_space) {
    const double rule = mixing_flops(spec, of_layer, cu_seqlens) / sequence;
    return {rule / delta_forward, 2 * rule / delta_backward};
  }
  const AttentionShape shape = spec.shape(of_layer);
  const Visited visited = visited_pairs(cu_seqlens, layer.window, static_cast<double>(shape.heads) / sequence, reached);
  const AttentionShares share = attention_shares(reached, shape.head_dim, visited);
  const double scores = 4 * static_cast<double>(shape.q_width()) / sequence * visited.pairs;
  return {scores / share.forward, 2 * scores / share.backward};
}

// The exchanges around attention, delta rule or state space of a layer of which a rank has `tokens`, and the packing
// and unpacking for them.
void add_exchanges(const DecoderSpec& spec, std::int64_t layer, double tokens, double size, int sequence, bool backward,
                   UnitWork& unit) {
  if (sequence == 1 || !spec.has_mixer(layer)) return;
  // All of a token's projections but the gate of the output, or queries, keys and values.
  std::int64_t columns = spec.projected_width(layer) - spec.mixed_width(layer);
  if (spec.attends(layer)) {
    const AttentionShape shape = spec.shape(layer);
    const RankHeads heads = rank_heads(shape, 0, sequence);
    columns = sequence * (heads.q + 2 * heads.kv) * shape.head_dim;
  }
  const auto to_heads = static_cast<double>(columns),  // of a token
      back = static_cast<double>(spec.mixed_width(layer)), bytes = tokens * size * (to_heads + back);
  const double received = bytes * (1 - 1.0 / sequence), copied = 2 * bytes, copies = 4.0 * sequence;
  unit.forward_exchanges = 2;
  unit.forward_received = received;
  unit.forward_bytes += copied;
  unit.forward_kernels += copies;
  if (!backward) return;
  unit.backward_exchanges = 4;
  unit.backward_received = 2 * received;
  unit.backward_bytes += 2 * copied;
  unit.backward_kernels += 2 * copies;
}

// The products of a layer that are in FP8, forward, and what their operands in FP8 read and write beside what
// unit_work() counts without them.
struct Fp8Work {
  double flops = 0, forward_bytes = 0, backward_bytes = 0;
  // The same of the projections of the MLP, and of the mixer, that are made again; and what unit_work() counts of what
  // Keep::all keeps of other layers, and of these none.
  double mlp_again = 0, mixer_again = 0, never_kept = 0;
};
Fp8Work fp8_work(const DecoderSpec& spec, std::int64_t layer, double tokens, double size) {
  const Fp8Widths widths = fp8_widths(spec, layer);
  Fp8Work work{.flops = 2 * tokens * widths.weights};
  // Bytes an element: of one that is read in the activations' format and written in codes, and of one that is made in
  // codes, a byte in place of `size`; the gradient of what a product made is needed in two.
  const double rounded = size + 1, made = 1 - size, normed = spec.input_norms ? made : rounded;
  const double gradient = size + 2, made_gradient = spec.mlp_bias ? 2 : 2 - size;
  // Adds a product, with `x` bytes for an element of its input, `again` for one in backward, and `dy` for one of its
  // output's gradient. Returns what making it again costs.
  const auto add = [&](std::int64_t columns_in, std::int64_t columns_out, double x, double again, double dy) {
    const auto in = static_cast<double>(columns_in), out = static_cast<double>(columns_out);
    work.forward_bytes += tokens * in * x + rounded * in * out;
    work.backward_bytes += tokens * (in * again + out * dy) + rounded * in * out;
    return rounded * (tokens * in + in * out);
  };
  const double norm = spec.input_norms ? 2 * tokens * size * static_cast<double>(spec.hidden) : 0;
  if (widths.projected > 0) {
    work.mixer_again = add(spec.hidden, widths.projected, normed, rounded, gradient) +
                       add(widths.mixed, spec.hidden, rounded, rounded, gradient);
    work.never_kept += norm;
  }
  if (widths.dense > 0) {
    work.mlp_again = add(spec.hidden, inputs_of(spec.gate) * widths.dense, normed, rounded, made_gradient);
    add(widths.dense, spec.hidden, made, made, gradient);
    work.never_kept += norm + tokens * size * static_cast<double>(spec.mlp_matrices() * widths.dense);
  }
  return work;
}

// What a tile's products read and write of the fp32 sums of a layer's matrices.
double tile_sum_bytes(const DecoderSpec& spec, std::int64_t layer) {
  const bool experts = spec.layer(layer).experts;
  const std::int64_t mlp = experts ? spec.experts.count * spec.experts.intermediate + spec.experts.shared_intermediate
                                   : spec.dense_width(layer);
  return 8.0 *
         (static_cast<double>(spec.hidden) * static_cast<double>(spec.mixed_width(layer) + spec.projected_width(layer) +
                                                                 spec.mlp_matrices() * mlp + 2 * spec.layer_input) +
          static_cast<double>(spec.latent_parameters(layer)));
}

}  // namespace

double forward_seconds(const UnitWork& unit, const MachineRates& rates) {
  return unit.forward_flops / rates.gemm_flops + unit.forward_bytes / rates.device_memory +
         unit.forward_kernels * rates.kernel_seconds;
}

double backward_seconds(const UnitWork& unit, const MachineRates& rates) {
  return unit.backward_flops / rates.gemm_flops + unit.backward_bytes / rates.device_memory +
         unit.backward_kernels * rates.kernel_seconds;
}

double product_share(const DecoderSpec& spec, DType activations, const Efficiencies& reached) {
  if (activations != DType::bf16) return 1;
  double share = 1;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    const std::int64_t mlp = spec.layer(layer).experts ? spec.experts.intermediate : spec.dense_width(layer);
    for (const std::int64_t size :
         {spec.hidden, spec.mixed_width(layer), spec.projected_width(layer), mlp, spec.shared_width(layer)}) {
      if (size % 2 != 0) return reached.odd_products;
      if (size % gemm_multiple != 0) share = reached.unaligned_products;
    }
  }
  return share;
}

double mlp_share(const DecoderSpec& spec, std::int64_t layer, double tokens, const Efficiencies& reached) {
  if (!spec.layer(layer).experts) return 1;
  const ExpertSpec& x = spec.experts;
  const double rows = tokens * static_cast<double>(x.per_token) / static_cast<double>(x.count);
  return reached.experts * rows / (rows + reached.expert_rows);
}

std::vector<UnitWork> unit_work(const DecoderSpec& spec, std::span<const std::int32_t> cu_seqlens, DType activations,
                                const Efficiencies& reached, std::span<const UnitBackward> backward, int sequence) {
  std::vector<UnitFlops> flops = unit_flops(spec, cu_seqlens, backward);
  for (UnitFlops& unit : flops) unit.forward /= sequence, unit.backward /= sequence;
  const double tokens = (cu_seqlens.empty() ? 0.0 : cu_seqlens.back()) / sequence,
               size = static_cast<double>(size_of(activations));
  const auto hidden = static_cast<double>(spec.hidden);
  const double aligned = product_share(spec, activations, reached);
  std::vector<UnitWork> units(flops.size());
  for (std::size_t u = 0; u < units.size(); ++u)
    units[u] = {.forward_flops = flops[u].forward, .backward_flops = flops[u].backward};
  // The table's rows and the projection for the inputs of layers, with its norm, and their gradients.
  const double inputs = tokens * size * static_cast<double>(spec.layer_inputs_width());
  units.front().forward_bytes = 12 * inputs;
  if (backward.empty() || backward.front().runs) units.front().backward_bytes = 18 * inputs;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    UnitWork& unit = units[static_cast<std::size_t>(layer_unit(layer))];
    const LayerSpec l = spec.layer(layer);
    // Gate, up and down; a shared expert's are dense products.
    const double mlp = 2 * static_cast<double>(spec.mlp_matrices()) * tokens * hidden *
                       static_cast<double>(spec.mlp_width(layer) - spec.shared_width(layer));
    const double mixing = mixing_flops(spec, layer, cu_seqlens) / sequence;
    const double projections =
        flops[static_cast<std::size_t>(layer_unit(layer))].forward - mlp - mixing;  // and the router
    const MixingWork scores = mixing_work(spec, layer, cu_seqlens, reached, sequence);
    const Fp8Work fp8 = fp8_work(spec, layer, tokens, size);
    const double saved = fp8.flops > 0 ? fp8.flops * (1 - 1 / reached.fp8_products) : 0;
    const double products = (projections + mlp / mlp_share(spec, layer, tokens, reached)) / aligned - saved;
    unit.forward_flops = products + scores.forward;
    const UnitBackward part = backward.empty() ? UnitBackward{} : backward[static_cast<std::size_t>(layer_unit(layer))];
    if (part.runs) unit.backward_flops = (1 + part.weights) * products + scores.backward;
    const ElementwiseWork work = elementwise_work(spec, layer);
    const double expert_kernels = l.experts ? reached.expert_kernels : 0;
    unit.forward_kernels = reached.forward_kernels + work.forward_kernels + expert_kernels;
    if (part.runs) unit.backward_kernels = reached.backward_kernels + work.backward_kernels + expert_kernels;
    // Elements a token: norms and rotation, the gated activation; of experts, rows that are gathered and added up
    // again, and in backward the biases' gradients.
    const double width = static_cast<double>(spec.mlp_width(layer)),
                 matrices = static_cast<double>(spec.mlp_matrices()),
                 rows = l.experts ? static_cast<double>(spec.experts.per_token) * hidden : 0;
    unit.forward_bytes = tokens * size * (work.forward + matrices * width + 3 * rows) + fp8.forward_bytes;
    if (part.runs)
      unit.backward_bytes = tokens * size * (work.backward + (2 * matrices + (l.experts ? 2 : 0)) * width + 7 * rows) +
                            fp8.backward_bytes;
    add_exchanges(spec, layer, tokens, size, sequence, part.runs, unit);
  }
  return units;
}

Recomputation recomputation(const DecoderSpec& spec, std::vector<Keep> keep, std::span<const std::int32_t> cu_seqlens,
                            DType activations, const Efficiencies& reached, std::span<const UnitBackward> backward,
                            std::int64_t tile_rows, int sequence) {
  const std::vector<UnitWork> work = unit_work(spec, cu_seqlens, activations, reached, {}, sequence);
  const double tokens = (cu_seqlens.empty() ? 0.0 : cu_seqlens.back()) / sequence;
  const auto matrices = static_cast<double>(spec.mlp_matrices());
  const std::vector<double> none(work.size());
  const auto first_backward =
      std::find_if(backward.begin(), backward.end(), [](const UnitBackward& unit) { return unit.runs; });
  keep = kept_by_layer(keep, spec.layers, static_cast<int>(first_backward - backward.begin()));
  Recomputation again{none, none, none, unit_inputs(keep)};
  for (std::size_t layer = 0; layer < keep.size(); ++layer) {
    const auto of_layer = static_cast<std::int64_t>(layer);
    const auto unit = static_cast<std::size_t>(layer_unit(of_layer));
    if (keep[layer] == Keep::all || (!backward.empty() && !backward[unit].runs)) continue;
    const std::int64_t width = spec.mlp_width(of_layer), shared = spec.shared_width(of_layer);
    const ElementwiseWork elements = elementwise_work(spec, of_layer);
    // One product of the MLP: gate, up or down.
    const double product = 2 * tokens * static_cast<double>(spec.hidden) *
                           (static_cast<double>(width - shared) / mlp_share(spec, of_layer, tokens, reached) +
                            static_cast<double>(shared)) /
                           product_share(spec, activations, reached);
    // Both norms; q and k rotated where that cannot be undone; the gated activation.
    const auto size = static_cast<double>(size_of(activations));
    const Fp8Work fp8 = fp8_work(spec, of_layer, tokens, size);
    again.device_bytes[unit] =
        tokens * size * (elements.again + matrices * static_cast<double>(width)) - fp8.never_kept;
    if (keep[layer] >= Keep::no_gate_up) again.device_bytes[unit] += fp8.mlp_again;
    if (keep[layer] >= Keep::attention) again.device_bytes[unit] += fp8.mixer_again;
    if (keep[layer] == Keep::no_gate_up) again.flops[unit] = (matrices - 1) * product;
    // Heads are made of latents again.
    if (keep[layer] < Keep::attention)
      again.flops[unit] += 2 * tokens * static_cast<double>(spec.latent_parameters(of_layer)) /
                           product_share(spec, activations, reached);
    // The last product is not needed again, unless a norm of it is.
    const double last = spec.layer(of_layer).mlp
                            ? product
                            : 2 * tokens * static_cast<double>(spec.hidden * spec.mixed_width(of_layer)) /
                                  product_share(spec, activations, reached);
    if (keep[layer] >= Keep::attention) again.flops[unit] = work[unit].forward_flops - (spec.output_norms ? 0 : last);
    if (keep[layer] == Keep::attention)
      again.flops[unit] -= mixing_work(spec, of_layer, cu_seqlens, reached, sequence).forward;
    if (tile_rows > 0 && keep[layer] >= Keep::no_gate_up)
      again.device_bytes[unit] += tile_sum_bytes(spec, of_layer) * std::ceil(tokens / static_cast<double>(tile_rows));
    if (keep[layer] == Keep::host) again.link_bytes[unit] = tokens * static_cast<double>(spec.hidden) * size;
  }
  return again;
}

}  // namespace so
