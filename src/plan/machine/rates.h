// The rates of a machine that a plan is made from.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "ops/attention_tiles.h"
#include "optim/adamw_tuning.h"

namespace so {

// How long a collective takes: `seconds`, and for the bytes that a rank receives of the others at this rate.
struct CollectiveRates {
  double bytes = std::numeric_limits<double>::infinity();  // a second
  double seconds = 0;
};

// The shares of the rates below that kernels reach, and a layer's work beside them. configs/hardware/h200.json says of
// each what it counts and where it comes from.
struct Efficiencies {
  double attention_forward = 0, attention_backward = 0;  // causal, heads of 128 or more; of gemm_flops
  double small_head_attention_forward = 0, small_head_attention_backward = 0;
  // Attention's gradient goes in tiles for longer documents, which reach the shares that follow.
  static constexpr std::int64_t long_attention_tokens = attention_in_tiles_beyond;
  double long_attention_forward = 0, long_attention_backward = 0, long_small_head_attention_backward = 0;
  double any_order = 0, any_order_small_head = 0;  // gradients in any order, of what those in order reach
  bool gradients_in_any_order = false;             // what the run asks for
  double window_forward = 0, window_backward = 0;  // with a window, of what attention reaches without
  double attention_block_queries = 0, processors = 0, attention_tile_keys = 0;
  double expert_rows = 0;   // an expert's products take no longer with this many rows more
  double experts = 0;       // of gemm_flops, what they reach beside that
  double fp8_products = 0;  // of gemm_flops, what products in FP8 reach, where there are any
  // Of gemm_flops, a layer's products in bf16 if a size of theirs is no multiple of gemm_multiple; if one is odd.
  double unaligned_products = 0, odd_products = 0;
  double forward_kernels = 0, backward_kernels = 0, expert_kernels = 0;  // of a layer; the last each way
  double device_adamw = 0;                                               // of device_memory
};
// Those of the H200, on which they were measured: for every machine whose file says none.
const Efficiencies& h200_efficiencies();

// The rates that were measured, in FLOP/s and bytes/s where nothing else is said.
struct MachineRates {
  double gemm_flops = 0;       // a large matrix product of weights and activations
  double device_memory = 0;    // of the device's memory, read and written both counted
  double link_to_host = 0;     // from device memory to pinned host memory
  double link_to_device = 0;   // and back
  double host_adamw = 0;       // what AdamW on the host's threads moves: state, gradient and weight, from and to memory
  double host_adamw_wide = 0;  // with gradient and weight in fp32, not bf16
  double host_memory = 0;      // what AdamW and the link's copies both ways move together, all at once
  double kernel_seconds = 0;   // of the device, that a kernel takes however little it does
  AdamWTuning adamw;           // with which the host's rates were measured
  Efficiencies efficiencies = h200_efficiencies();
  // These are for a rank that shares its host or its run with others.
  double link_both = std::numeric_limits<double>::infinity();  // both ways of the link at once, added up
  CollectiveRates collectives;                                 // reduce-scatters and all-gathers over all ranks
  CollectiveRates sequence;                                    // all-to-alls among the ranks that split a sequence
};

std::string describe_rates(const MachineRates& rates);  // for the log

}  // namespace so
