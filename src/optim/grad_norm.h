// The gradient's norm, whether it is finite, and the clip coefficient.
//
// The sum of squares is a contract to the last bit, like AdamW's: it depends on the values and their order only, not
// on threads, instruction set or alignment. In double, for a span cut into chunks of kGradNormChunk elements (the last
// may be shorter):
//
//   lane[j]  = sum over i of x[chunk + 32 * i + j]^2, i ascending, j = 0..31
//   chunk    = lanes added in halves: lane[j] += lane[j + w] for w = 16, 8, 4, 2, 1; then lane[0]
//   total    = ((total + chunk 0) + chunk 1) + ...
//
// The square of an fp32 or bf16 number is exact in double (48 of 53 bits), so fused or not makes no difference. A
// gradient accumulated in several calls gives the bits of one call if the cuts are at multiples of kGradNormChunk.
// (On a GPU: one warp a chunk, one thread a lane.)
#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "optim/gradient_span.h"

namespace so {

class ThreadPool;

inline constexpr std::size_t kGradNormChunk = 4096;

struct GradNorm {
  double sum_of_squares = 0.0;

  // False if any gradient was NaN or Inf. No flag of its own is needed: squares are never negative, so nothing cancels,
  // and finite fp32 gradients cannot overflow the sum: each square is below 2^256, 2^64 of them below 2^320, and double
  // reaches 2^1024. (In fp32 a gradient of 2e19 would overflow and a sound step be skipped.)
  bool finite() const { return std::isfinite(sum_of_squares); }
  double norm() const { return std::sqrt(sum_of_squares); }
};

// Adds a span's squares to `total`, on the calling thread. Any alignment, any length. Throws Bug if the thread flushes
// subnormals to zero.
void accumulate_grad_norm(GradNorm& total, GradientSpan gradient);

// The same bits, by all threads of the pool. Blocks until done.
void accumulate_grad_norm_parallel(ThreadPool& pool, GradNorm& total, GradientSpan gradient);

// What to multiply gradients with so that their norm is at most `max_norm`: min(1, max_norm / (norm + 1e-6)), as
// torch.nn.utils.clip_grad_norm_; computed in double, rounded to fp32 once. Exactly 1 if nothing is to be clipped, and
// for max_norm <= 0, which means no clipping. Throws Bug if norm is not finite: such a step is skipped, not clipped.
float clip_coefficient(double norm, double max_norm);

// For tests and benchmarks: what this machine can run, best first, in Highway's names; the choice is global.
std::vector<std::string> grad_norm_instruction_sets();
void grad_norm_use_instruction_set(std::string_view name);  // one of the above, or "" for the best; Error otherwise

}  // namespace so
