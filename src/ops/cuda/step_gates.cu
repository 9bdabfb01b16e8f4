// How far each head of a token moves and what is left of its state, and the gradient of that. As plain as
// delta_gates.cu.
#include "device/cuda/kernel.h"
#include "ops/cuda/column_sums.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/heads.h"
#include "ops/cuda/sigmoid.h"
#include "ops/state_space_checks.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 256;

template <class T>
struct StepInputs {
  Span<const T> x;
  const T *a_log, *dt_bias;
  float low, high;
  std::int64_t rows;
  int heads;
};
template <class T>
StepInputs<T> inputs_of(const Ops::StepGates& g) {
  return {span_of<const T>(g.x),
          static_cast<const T*>(g.a_log.data()),
          static_cast<const T*>(g.dt_bias.data()),
          g.low,
          g.high,
          g.x.rows.dim(0),
          static_cast<int>(g.x.head_dim)};
}

template <class T>
__global__ void __launch_bounds__(threads) step_gates_kernel(float* decay, float* step, StepInputs<T> in) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i >= in.rows * in.heads) return;
  const std::int64_t row = i / in.heads;
  const int h = static_cast<int>(i - row * in.heads);
  const float s = softplus(to_float(in.x.head(row, 0)[h]) + to_float(in.dt_bias[h]));
  const float clamped = s < in.low ? in.low : s > in.high ? in.high : s;  // a NaN stays one
  step[i] = clamped;
  decay[i] = -expf(to_float(in.a_log[h])) * clamped;
}

constexpr int grad_lanes = threads / warp;  // rows at a time, for 32 heads a block
constexpr std::int64_t rows_per_piece = 64;

// Grid: x over 32 heads each, y over pieces of rows. A piece's parts of da_log and ddt_bias are rows of the partial
// sums [pieces, heads].
template <class T>
__global__ void __launch_bounds__(threads)
    step_gates_grad_kernel(Span<T> dx, const float* ddecay, const float* dstep, StepInputs<T> in, float* partial_a_log,
                           float* partial_bias) {
  __shared__ float sums[2][grad_lanes][warp];
  const int h = blockIdx.x * warp + threadIdx.x;
  const std::int64_t begin = blockIdx.y * rows_per_piece, end = min(in.rows, begin + rows_per_piece);
  float of_a_log = 0, of_bias = 0;
  if (h < in.heads) {
    const float scale = -expf(to_float(in.a_log[h])), bias = to_float(in.dt_bias[h]);
    for (std::int64_t row = begin + threadIdx.y; row < end; row += grad_lanes) {
      const float x = to_float(in.x.head(row, 0)[h]) + bias, s = softplus(x);
      const bool below = s<in.low, above = s> in.high;
      const float scaled = scale * ddecay[row * in.heads + h];
      float slope, complement;
      sigmoid<float>(x, slope, complement);
      const float d = below || above ? 0.0f : (dstep[row * in.heads + h] + scaled) * slope;
      of_a_log += scaled * (below ? in.low : above ? in.high : s);
      of_bias += d;
      dx.head(row, 0)[h] = from_float<T>(d);
    }
  }
  sums[0][threadIdx.y][threadIdx.x] = of_a_log;
  sums[1][threadIdx.y][threadIdx.x] = of_bias;
  __syncthreads();
  if (threadIdx.y != 0 || h >= in.heads) return;
  of_a_log = of_bias = 0;
  for (int i = 0; i < grad_lanes; ++i) {
    of_a_log += sums[0][i][threadIdx.x];
    of_bias += sums[1][i][threadIdx.x];
  }
  partial_a_log[static_cast<std::int64_t>(blockIdx.y) * in.heads + h] = of_a_log;
  partial_bias[static_cast<std::int64_t>(blockIdx.y) * in.heads + h] = of_bias;
}

}  // namespace

void CudaOps::step_gates(Stream& stream, const StepGates& g) {
  const char* op = "step_gates";
  expect_step_gates(op, g);
  const cudaStream_t on = enter(stream);
  const std::int64_t count = g.x.rows.dim(0) * g.x.head_dim;
  if (count == 0) return;
  with_type(g.x.rows.dtype(), [&]<class T> {
    step_gates_kernel<<<blocks_for(count, threads), threads, 0, on>>>(g.decay.as<float>(), g.step.as<float>(),
                                                                      inputs_of<T>(g));
  });
  SO_CUDA_LAUNCHED(op);
}

void CudaOps::step_gates_grad(Stream& stream, const StepGatesGrad& g) {
  const char* op = "step_gates_grad";
  expect_step_gates_grad(op, g);
  const cudaStream_t on = enter(stream);
  const std::int64_t rows = g.forward.x.rows.dim(0), heads = g.forward.x.head_dim;
  const std::int64_t pieces = (rows + rows_per_piece - 1) / rows_per_piece;
  auto* partial = scratch<float>(static_cast<std::size_t>(2 * pieces * heads));
  if (rows > 0) {
    const dim3 grid(blocks_for(heads, warp), blocks_for(pieces, 1));
    with_type(g.forward.x.rows.dtype(), [&]<class T> {
      step_gates_grad_kernel<<<grid, dim3(warp, grad_lanes), 0, on>>>(span_of<T>(g.dx), g.ddecay.as<float>(),
                                                                      g.dstep.as<float>(), inputs_of<T>(g.forward),
                                                                      partial, partial + pieces * heads);
    });
    SO_CUDA_LAUNCHED(op);
  }
  if (!g.da_log) return;
  finish_column_sums(on, g.da_log, partial, pieces, heads, g.da_log_mode);
  finish_column_sums(on, g.ddt_bias, partial + pieces * heads, pieces, heads, g.ddt_bias_mode);
}

}  // namespace so
