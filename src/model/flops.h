// Counting work: the honest way, and the way the published figures were counted.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/spec.h"
#include "offload/schedule/parameter_layout.h"

namespace so {

// The backward pass of a unit, given what is trained.
struct UnitBackward {
  bool runs = true;    // a trained parameter lies in the unit or below it
  double weights = 1;  // the share of the gradients of its matrices that is computed, by FLOPs
};
// One for each unit, in the order of the forward pass.
std::vector<UnitBackward> unit_backward(const DecoderSpec& spec, const ParameterLayout& layout);

// Model FLOPs of forward and backward over documents of the given lengths (cu_seqlens: documents + 1 offsets):
// 6 per matmul parameter and token (of the experts, those a token chose), and causal attention: a query at position p
// meets p + 1 keys, or as many as its window holds, 4 * heads * head_dim FLOPs each forward (QK and PV) and twice that
// backward. A delta layer has the recurrence in place of attention: a token decays each value head's state, multiplies
// it by its key, adds an outer product and multiplies by its query, 8 * v_heads * k_dim * v_dim FLOPs forward [Gated
// DeltaNet, Yang et al. 2024] and twice that backward; in chunks it takes more. Recomputation, masked halves and
// padding do not count, nor what frozen parameters spare: `backward` says it; empty: all is trained.
double model_flops(const DecoderSpec& spec, std::span<const std::int32_t> cu_seqlens,
                   std::span<const UnitBackward> backward = {});

// The same by unit of the forward pass (model/parameters.h), forward and backward apart. Their sum is model_flops().
struct UnitFlops {
  double forward = 0, backward = 0;
};
std::vector<UnitFlops> unit_flops(const DecoderSpec& spec, std::span<const std::int32_t> cu_seqlens,
                                  std::span<const UnitBackward> backward = {});

// Of that, forward: what a layer's tokens do with each other.
double mixing_flops(const DecoderSpec& spec, std::int64_t layer, std::span<const std::int32_t> cu_seqlens);

// Pairs of query and key that meet in causal attention over such documents; window: 0, or the keys a query sees.
double attention_pairs(std::span<const std::int32_t> cu_seqlens, std::int64_t window);

// The published system's count, of `rows` rows padded to `row_length`: 2 c P S + 4 c L H S^2 a row, with P all
// parameters (of the experts, those a token chose), H the hidden size and c = 4 under activation checkpointing, else 3.
// Recomputation, the non-causal half of attention, and padding all count, so it is larger; layers without attention
// have none of it; only for comparison with figures counted in that way. `backward` lowers c by unit: one for the
// gradients of matrices, in the share that is computed, and below the lowest trained parameter all but the forward
// pass's.
double reference_flops(const DecoderSpec& spec, std::int64_t rows, std::int64_t row_length, bool recompute,
                       std::span<const UnitBackward> backward = {});

}  // namespace so
