// The memory that cuDNN's gradient of attention takes beside its arguments, as measured with cuDNN 9.19 on an H200:
// plans and the backend compute it by this one formula.
#pragma once

#include <cstdint>

namespace so {

// Wider heads go to kernels of ours, and so do gradients of heads this wide, of which ours are the quicker ones. They
// need the row sums of dout out alone.
inline constexpr std::int64_t widest_cudnn_head = 256, widest_cudnn_gradient = widest_cudnn_head - 1;

constexpr std::int64_t round_up_to(std::int64_t x, std::int64_t to) { return (x + to - 1) / to * to; }

// Returns the rows that a graph of ragged documents has for the longest: 64 to 512 in steps of 64, then four to an
// octave. Rows beyond a document's end cost next to nothing, graphs 50 ms each.
constexpr std::int64_t rounded_length(std::int64_t length) {
  std::int64_t step = 64;
  while (step * 8 < length) step *= 2;
  return round_up_to(length, step);
}

// cuDNN's workspace for attention beyond the tensors in it: 256 bytes and 256 a document were seen.
constexpr std::int64_t cudnn_allowance(std::int64_t batch) { return 65536 + 320 * batch; }

// The sizes of one call: every head has `length` queries and `key_length` keys.
struct CudnnGradientSize {
  std::int64_t batch = 0, heads = 0, kv_heads = 0, head_dim = 0, length = 0, key_length = 0;
  bool deterministic = true;
};

// Returns the bytes of the tensors in cuDNN's workspace, to which cudnn_allowance() comes: the row sums of dout out in
// fp32; dk and dv of every query head in bf16 where key heads are shared; and
//   deterministic: dS in bf16, quadratic in the length;
//   else: dq in fp32.
constexpr std::int64_t cudnn_gradient_bytes(const CudnnGradientSize& s) {
  const std::int64_t keys = round_up_to(s.key_length, 128), dim = round_up_to(s.head_dim, 64),
                     heads = s.batch * s.heads, rows = heads * round_up_to(s.length, 128);
  std::int64_t bytes = rows * 4;
  if (s.heads != s.kv_heads) bytes += 2 * heads * keys * dim * 2;
  return bytes + (s.deterministic ? rows * keys * 2 : rows * dim * 4);
}

}  // namespace so
