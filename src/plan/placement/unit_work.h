// The device's work for each unit of a decoder, in the terms that a plan counts in.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "model/decoder/keep.h"
#include "model/flops.h"
#include "model/spec.h"
#include "plan/machine/rates.h"

namespace so {

// One unit of the forward pass (offload/schedule/parameter_layout.h) and one micro-batch: FLOPs of a large matrix
// product that would take as long, what memory-bound work reads and writes, and kernels of any kind.
struct UnitWork {
  std::int64_t elements = 0;  // that are trained
  double forward_flops = 0, backward_flops = 0;
  double forward_bytes = 0, backward_bytes = 0;
  double forward_kernels = 0, backward_kernels = 0;
  std::int64_t frozen_elements = 0;  // weights without gradient and state
  // Exchanges among the ranks of a sequence, and the bytes that this one receives of the others.
  double forward_exchanges = 0, backward_exchanges = 0;
  double forward_received = 0, backward_received = 0;
};

// The seconds of that on a machine, without exchanges.
double forward_seconds(const UnitWork& unit, const MachineRates& rates);
double backward_seconds(const UnitWork& unit, const MachineRates& rates);

// One choice of what the layers keep: the work of having the rest again, of each unit and one micro-batch.
struct Recomputation {
  std::vector<double> flops;         // by unit
  std::vector<double> device_bytes;  // by unit: what memory-bound work reads and writes
  std::vector<double> link_bytes;    // by unit: of what is kept in host memory, to there and back; empty: none
  std::vector<Input> inputs;         // by unit; forward passes that run again for those that are remade are not counted
};

// Returns the work of one micro-batch with documents at these offsets. FLOPs are those of a large dense product that
// takes as long, so that attention and products of experts, which run at other rates, count for more than theirs; bytes
// are what the rest reads and writes at least. `reached` says what kernels of each kind do, and `backward`, by unit,
// what of the backward pass runs; empty: all of it. `sequence` ranks split the micro-batch, and the work is one's: its
// share of all but the kernels' number, and the exchanges around attention, two forward and four backward, of which two
// are of what attention read and made, whether that was kept in slices or is computed again.
std::vector<UnitWork> unit_work(const DecoderSpec& spec, std::span<const std::int32_t> cu_seqlens, DType activations,
                                const Efficiencies& reached, std::span<const UnitBackward> backward = {},
                                int sequence = 1);

// Returns the share of a large dense product's rate that the products of all layers reach, by whether their sizes are
// what the matrix units take (ops/ops_memory.h, gemm_multiple). The size of the vocabulary does not matter: rows of
// logits are aligned.
double product_share(const DecoderSpec& spec, DType activations, const Efficiencies& reached);
// Returns the share of a large dense product's rate that the products of a layer's MLP reach.
double mlp_share(const DecoderSpec& spec, std::int64_t layer, double tokens, const Efficiencies& reached);

// Returns the work of recomputing what layers do not keep, for documents at these offsets, as unit_work() counts it;
// with tile_rows > 0, also of adding up the tiles' parts of the weights' gradients.
Recomputation recomputation(const DecoderSpec& spec, std::vector<Keep> keep, std::span<const std::int32_t> cu_seqlens,
                            DType activations, const Efficiencies& reached, std::span<const UnitBackward> backward = {},
                            std::int64_t tile_rows = 0, int sequence = 1);

}  // namespace so
