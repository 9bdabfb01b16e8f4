// Sinks around attention that knows nothing of them: into its result, and their own gradient. Both read (and one
// writes) whole tensors of heads, and take as long as that: a head's row is read by neighbouring lanes, 16 bytes each.
#include <algorithm>

#include "device/cuda/kernel.h"
#include "ops/cuda/attention_document.h"
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/column_sums.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 256;

// The log-sum-exp of row n of all documents' and of a head.
__device__ inline float* lse_of_row(const AttentionArguments& a, std::int64_t n, int head) {
  const LseLayout& l = a.lse_layout;
  if (l.row != 1 || l.head == 1) return a.lse + n * a.heads + head;  // by rows
  const std::int64_t document = n / l.head;                          // by documents, all equally long
  return a.lse + (document * a.heads + head) * l.head + n % l.head;
}

__device__ inline bool in_a_document(const AttentionArguments& a, std::int64_t n) {
  return n >= a.cu_q[0] && n < a.cu_q[a.documents];
}

template <int LANES>
__global__ void __launch_bounds__(threads) apply_sinks_kernel(AttentionArguments a) {
  using T = __nv_bfloat16;
  constexpr int N = pack_size<T>, groups = threads / LANES;
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * groups + threadIdx.x / LANES;
  const std::int64_t n = item / a.heads;
  const int head = static_cast<int>(item % a.heads), lane = static_cast<int>(threadIdx.x) % LANES;
  const bool inside = n < a.q_rows && in_a_document(a, n);
  float lse = 0, with_sink = 0;
  if (inside) {
    lse = *lse_of_row(a, n, head);
    const float sink = sink_of<T>(a, head);
    with_sink = fmaxf(lse, sink) + log1pf(expf(-fabsf(lse - sink)));
  }
  __syncwarp();  // all have read
  if (!inside) return;
  if (lane == 0) *lse_of_row(a, n, head) = with_sink;
  const float factor = expf(lse - with_sink);
  T* const out = static_cast<T*>(a.out.at) + n * a.out.width + static_cast<std::int64_t>(head) * a.head_dim;
  for (int d = lane * N; d < a.head_dim; d += LANES * N) {
    float x[N];
    load<N>(x, out + d);
#pragma unroll
    for (float& value : x) value *= factor;
    store<N>(out + d, x);
  }
}

// Grid: (pieces of rows, groups of heads). A group of lanes has a head and sums over its piece's rows in order.
template <class T, int N, int LANES>
__global__ void __launch_bounds__(threads) sink_gradient_kernel(AttentionArguments a, float* partial, int piece_rows) {
  constexpr int groups = threads / LANES;
  const int head = static_cast<int>(blockIdx.y) * groups + static_cast<int>(threadIdx.x) / LANES;
  const int lane = static_cast<int>(threadIdx.x) % LANES, own = min(head, a.heads - 1);
  const float sink = sink_of<T>(a, own);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * piece_rows;
  const std::int64_t begin = max(first, static_cast<std::int64_t>(a.cu_q[0]));
  const std::int64_t end = min(first + piece_rows, static_cast<std::int64_t>(a.cu_q[a.documents]));
  float sum = 0;
  for (std::int64_t n = begin; n < end; ++n) {
    const T* const out = static_cast<const T*>(a.out.at) + n * a.out.width + std::int64_t{own} * a.head_dim;
    const T* const dout = static_cast<const T*>(a.dout.at) + n * a.dout.width + std::int64_t{own} * a.head_dim;
    float delta = 0;
    for (int d = lane * N; d < a.head_dim; d += LANES * N) {
      float x[N], y[N];
      load<N>(x, out + d);
      load<N>(y, dout + d);
#pragma unroll
      for (int i = 0; i < N; ++i) delta = fmaf(x[i], y[i], delta);
    }
    sum -= expf(sink - *lse_of_row(a, n, own)) * group_sum<LANES>(delta);
  }
  if (lane == 0 && head < a.heads) partial[static_cast<std::int64_t>(blockIdx.x) * a.heads + head] = sum;
}

// The same from delta: a thread a head.
template <class T>
__global__ void __launch_bounds__(threads)
    sink_gradient_of_delta_kernel(AttentionArguments a, float* partial, int piece_rows) {
  const int head = static_cast<int>(blockIdx.y) * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  if (head >= a.heads) return;
  const float sink = sink_of<T>(a, head);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * piece_rows;
  const std::int64_t begin = max(first, static_cast<std::int64_t>(a.cu_q[0]));
  const std::int64_t end = min(first + piece_rows, static_cast<std::int64_t>(a.cu_q[a.documents]));
  float sum = 0;
#pragma unroll 4
  for (std::int64_t n = begin; n < end; ++n) sum -= expf(sink - *lse_of_row(a, n, head)) * a.delta[n * a.heads + head];
  partial[static_cast<std::int64_t>(blockIdx.x) * a.heads + head] = sum;
}

// f<LANES>(), where LANES lanes read all pieces of a head at once.
template <class F>
void with_lanes(int pieces, F&& f) {
  if (pieces <= 8) return f.template operator()<8>();
  if (pieces <= 16) return f.template operator()<16>();
  return f.template operator()<32>();
}

}  // namespace

void apply_sinks(cudaStream_t stream, const AttentionArguments& a) {
  with_lanes(a.head_dim / pack_size<__nv_bfloat16>, [&]<int LANES>() {
    apply_sinks_kernel<LANES><<<blocks_for(a.q_rows * a.heads, threads / LANES), threads, 0, stream>>>(a);
  });
  SO_CUDA_LAUNCHED("apply_sinks_kernel");
}

void sink_gradient(cudaStream_t stream, DType dtype, const AttentionArguments& a, Tensor dsinks, Accumulate mode,
                   void* scratch) {
  // Pieces of 32 rows, longer if there would be too many.
  const auto most = static_cast<std::int64_t>(sink_gradient_scratch / sizeof(float)) / a.heads;
  SO_CHECK(most > 0, "sinks of {} heads", a.heads);
  const std::int64_t rows = a.documents > 0 ? a.q_rows : 0;
  const std::int64_t piece_rows = std::max<std::int64_t>(32, (rows + most - 1) / most);
  const std::int64_t pieces = (rows + piece_rows - 1) / piece_rows;
  auto* const partial = static_cast<float*>(scratch);
  with_type(dtype, [&]<class T>() {
    const auto launch = [&]<int N, int LANES>() {
      const dim3 grid(blocks_for(pieces, 1), blocks_for(a.heads, threads / LANES));
      sink_gradient_kernel<T, N, LANES><<<grid, threads, 0, stream>>>(a, partial, static_cast<int>(piece_rows));
      SO_CUDA_LAUNCHED("sink_gradient_kernel");
    };
    if (pieces == 0) return;
    if (a.delta) {
      constexpr int few = 64;  // threads
      const dim3 grid(blocks_for(pieces, 1), blocks_for(a.heads, few));
      sink_gradient_of_delta_kernel<T><<<grid, few, 0, stream>>>(a, partial, static_cast<int>(piece_rows));
      SO_CUDA_LAUNCHED("sink_gradient_of_delta_kernel");
      return;
    }
    constexpr int N = pack_size<T>;
    const auto in_pieces = [&](const HeadsView& view) {
      return rows_aligned<T, N>(view.width, static_cast<const T*>(view.at));
    };
    if (a.head_dim % N == 0 && in_pieces(a.out) && in_pieces(a.dout))
      with_lanes(a.head_dim / N, [&]<int LANES>() { launch.template operator()<N, LANES>(); });
    else
      launch.template operator()<1, 32>();
  });
  finish_column_sums(stream, dsinks, partial, pieces, a.heads, mode);
}

}  // namespace so
