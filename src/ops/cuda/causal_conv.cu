// Causal depthwise convolution within documents, then SiLU, and its gradient: memory-bound. A thread does N
// neighbouring channels of a piece of rows, of which it keeps those that the next row sees too, so that a row is read
// once and, at the beginning of a piece, a second time.
#include <algorithm>

#include "device/cuda/kernel.h"
#include "ops/cuda/column_sums.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/heads.h"
#include "ops/cuda/sigmoid.h"
#include "ops/delta_checks.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 128;
constexpr int batch = 4;                                       // rows on their way from memory at a time
constexpr std::int64_t forward_rows = 32, gradient_rows = 64;  // to a piece

template <class T>
struct Convolution {
  const T* x;  // rows of x are `width` apart
  std::int64_t width;
  const T* weight;  // [channels, taps]
  const T* bias;    // [channels] or null
  const T* before;  // [taps - 1, channels] or null
  const std::int32_t* starts;
  std::int64_t documents, rows;
  int channels, taps;
};
template <class T>
Convolution<T> convolution_of(const Ops::CausalConv& c, const ConvSize& size) {
  const Span<const T> x = span_of<const T>(c.x);
  return {x.data,
          x.width,
          static_cast<const T*>(c.weight.data()),
          static_cast<const T*>(c.bias.data()),
          static_cast<const T*>(c.before.data()),
          c.documents.starts.as<std::int32_t>(),
          c.documents.count,
          size.rows,
          static_cast<int>(size.channels),
          static_cast<int>(size.taps)};
}

// The first document that ends after `row`.
template <class T>
__device__ inline std::int64_t document_after(const Convolution<T>& c, std::int64_t row) {
  std::int64_t low = 0, high = c.documents;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (c.starts[middle + 1] > row)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

// The weights of N channels: taps are the last of TAPS, and those before them 0.
template <int TAPS, int N, class T>
__device__ inline void load_weights(float (&to)[TAPS][N], const Convolution<T>& c, int channel) {
#pragma unroll
  for (int j = 0; j < TAPS; ++j)
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int tap = j - (TAPS - c.taps);
      to[j][i] = tap >= 0 ? to_float(c.weight[static_cast<std::int64_t>(channel + i) * c.taps + tap]) : 0.0f;
    }
}

// The rows that a row sees, its own the last: seen[j] is that of tap j.
template <int TAPS, int N>
struct Window {
  float seen[TAPS][N];

  // For the document's row n to be next: those before it, zeros where there is none.
  template <class T>
  __device__ void begin(const Convolution<T>& c, std::int64_t document_begin, std::int64_t n, int channel) {
#pragma unroll
    for (int j = 1; j < TAPS; ++j) {
      const std::int64_t row = n - TAPS + j, back = row - document_begin + c.taps - 1;
      if (row >= document_begin) {
        load<N>(seen[j], c.x + row * c.width + channel);
      } else if (c.before && back >= 0) {
        load<N>(seen[j], c.before + back * c.channels + channel);
      } else {
#pragma unroll
        for (int i = 0; i < N; ++i) seen[j][i] = 0;
      }
    }
  }
  // A row comes in.
  template <class T>
  __device__ void add(const Words<T, N>& row) {
#pragma unroll
    for (int j = 0; j + 1 < TAPS; ++j)
#pragma unroll
      for (int i = 0; i < N; ++i) seen[j][i] = seen[j + 1][i];
    widen<T>(seen[TAPS - 1], row);
  }
  // The sum over taps, and the bias, which is read for each row: there are no registers to keep it in. The taps before
  // the first are left out, not multiplied by 0: what they see may be no number.
  template <class T>
  __device__ void convolve(float (&z)[N], const float (&weights)[TAPS][N], const Convolution<T>& c, int channel) const {
    if (c.bias) {
      load<N>(z, c.bias + channel);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) z[i] = 0;
    }
#pragma unroll
    for (int j = 0; j < TAPS; ++j)
      if (j >= TAPS - c.taps) {
#pragma unroll
        for (int i = 0; i < N; ++i) z[i] = fmaf(weights[j][i], seen[j][i], z[i]);
      }
  }
};

// Grid: x over pieces of `piece` rows, y over channels.
template <class T, int N, int TAPS>
__global__ void __launch_bounds__(threads)
    causal_conv_kernel(T* out, std::int64_t out_width, Convolution<T> c, std::int64_t piece) {
  const int channel = (static_cast<int>(blockIdx.y) * threads + threadIdx.x) * N;
  if (channel >= c.channels) return;
  float weights[TAPS][N];
  load_weights(weights, c, channel);
  const std::int64_t begin = blockIdx.x * piece, end = min(c.rows, begin + piece);
  for (std::int64_t d = document_after(c, begin); d < c.documents && c.starts[d] < end; ++d) {
    const std::int64_t document_begin = c.starts[d], document_end = c.starts[d + 1];
    if (document_begin < 0 || document_end > c.rows) __trap();
    const std::int64_t first = max(begin, document_begin), last = min(end, document_end);
    Window<TAPS, N> window;
    window.begin(c, document_begin, first, channel);
    for (std::int64_t at = first; at < last; at += batch) {
      Words<T, N> rows[batch];
#pragma unroll
      for (int b = 0; b < batch; ++b)
        if (at + b < last) rows[b] = fetch<N>(c.x + (at + b) * c.width + channel);
#pragma unroll
      for (int b = 0; b < batch; ++b)
        if (at + b < last) {
          window.template add<T>(rows[b]);
          float z[N];
          window.convolve(z, weights, c, channel);
#pragma unroll
          for (int i = 0; i < N; ++i) {
            float s, complement;
            sigmoid<T>(z[i], s, complement);
            z[i] *= s;
          }
          store<N>(out + (at + b) * out_width + channel, z);
        }
    }
  }
}

// The last rows of what was before and of x together. A thread goes down a channel: the rows it moves come from below.
template <class T>
__global__ void __launch_bounds__(threads) keep_rows_kernel(T* before, Convolution<T> c) {
  const int channel = static_cast<int>(blockIdx.x) * threads + threadIdx.x;
  if (channel >= c.channels) return;
  for (std::int64_t i = 0; i < c.taps - 1; ++i) {
    const std::int64_t row = c.rows - (c.taps - 1) + i;
    before[i * c.channels + channel] =
        row >= 0 ? c.x[row * c.width + channel] : before[(i + c.rows) * c.channels + channel];
  }
}

template <class T>
struct ConvolutionGrad {
  T* dx;
  const T* dout;
  std::int64_t dx_width, dout_width;
  float* partial;       // [pieces, channels, taps]
  float* partial_bias;  // [pieces, channels] or null
  std::int64_t piece;   // rows
};

// With z the convolution and dz = dout silu'(z):
//   dx[m] = sum over j of weight[j] dz[m + K - 1 - j],  dweight[j] = sum over n of dz[n] x[n - K + 1 + j],
// and dbias the sum of dz.
// Going down a piece's rows n, dz[n] is added to the sums of the rows that n sees; that of the first of them is
// complete then. The rows after the piece that see any of its own come last. Grid: x over pieces, y over channels.
template <class T, int N, int TAPS>
__global__ void __launch_bounds__(threads) causal_conv_grad_kernel(ConvolutionGrad<T> g, Convolution<T> c) {
  const int channel = (static_cast<int>(blockIdx.y) * threads + threadIdx.x) * N;
  if (channel >= c.channels) return;
  float weights[TAPS][N], dweight[TAPS][N] = {}, dbias[N] = {};
  load_weights(weights, c, channel);
  const std::int64_t begin = blockIdx.x * g.piece, end = min(c.rows, begin + g.piece);
  for (std::int64_t d = document_after(c, begin); d < c.documents && c.starts[d] < end; ++d) {
    const std::int64_t document_begin = c.starts[d], document_end = c.starts[d + 1];
    if (document_begin < 0 || document_end > c.rows) __trap();
    const std::int64_t first = max(begin, document_begin), last = min(end, document_end);
    const std::int64_t past = min(last + c.taps - 1, document_end);  // beyond the rows that see any of these
    Window<TAPS, N> window;
    window.begin(c, document_begin, first, channel);
    float sums[TAPS][N] = {};  // of dx: sums[j] is that of the row of tap j
    for (std::int64_t at = first; at < last + TAPS - 1; at += batch) {
      Words<T, N> rows[batch], douts[batch];
#pragma unroll
      for (int b = 0; b < batch; ++b)
        if (at + b < past) {
          rows[b] = fetch<N>(c.x + (at + b) * c.width + channel);
          douts[b] = fetch<N>(g.dout + (at + b) * g.dout_width + channel);
        }
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        const std::int64_t n = at + b;
        if (n < past) {
          window.template add<T>(rows[b]);
          float z[N], dz[N];
          window.convolve(z, weights, c, channel);
          widen<T>(dz, douts[b]);
#pragma unroll
          for (int i = 0; i < N; ++i) {
            float s, complement;
            sigmoid<T>(z[i], s, complement);
            dz[i] *= s + z[i] * s * complement;
            if (n < last) dbias[i] += dz[i];
          }
#pragma unroll
          for (int j = 0; j < TAPS; ++j)
            if (j >= TAPS - c.taps) {
#pragma unroll
              for (int i = 0; i < N; ++i) {
                sums[j][i] = fmaf(weights[j][i], dz[i], sums[j][i]);
                if (n < last) dweight[j][i] = fmaf(dz[i], window.seen[j][i], dweight[j][i]);
              }
            }
        }
        const std::int64_t done = n - (TAPS - 1);
        if (done >= first && done < last) store<N>(g.dx + done * g.dx_width + channel, sums[0]);
#pragma unroll
        for (int j = 0; j < TAPS; ++j)
#pragma unroll
          for (int i = 0; i < N; ++i) sums[j][i] = j + 1 < TAPS ? sums[j + 1 < TAPS ? j + 1 : j][i] : 0.0f;
      }
    }
  }
  float* partial = g.partial + (blockIdx.x * static_cast<std::int64_t>(c.channels) + channel) * c.taps;
#pragma unroll
  for (int i = 0; i < N; ++i)
#pragma unroll
    for (int j = 0; j < TAPS; ++j)
      if (const int tap = j - (TAPS - c.taps); tap >= 0) partial[i * c.taps + tap] = dweight[j][i];
  if (!g.partial_bias) return;
#pragma unroll
  for (int i = 0; i < N; ++i)
    g.partial_bias[blockIdx.x * static_cast<std::int64_t>(c.channels) + channel + i] = dbias[i];
}

// Calls f.operator()<N, TAPS>() with N elements an access if these allow them, else one.
template <class T, int N, class F>
void with_taps(const ConvSize& size, std::initializer_list<Heads> all, const Tensor& bias, const Tensor& before,
               F&& f) {
  const bool aligned = size.channels % N == 0 && rows_aligned<T, N>(N, bias.data(), before.data()) &&
                       std::all_of(all.begin(), all.end(), [](const Heads& heads) {
                         return rows_aligned<T, N>(heads.rows.dim(1), span_of<T>(heads).data);
                       });
  static_assert(kMaxTaps == 8);
  if (aligned && size.taps <= 4)
    f.template operator()<N, 4>();
  else if (aligned)
    f.template operator()<N, 8>();
  else if (size.taps <= 4)
    f.template operator()<1, 4>();
  else
    f.template operator()<1, 8>();
}

}  // namespace

void CudaOps::causal_conv(Stream& stream, const CausalConv& args) {
  const char* op = "causal_conv";
  const ConvSize size = expect_causal_conv(op, args);
  const cudaStream_t on = enter(stream);
  if (size.rows == 0) return;
  with_type(args.x.rows.dtype(), [&]<class T> {
    const auto c = convolution_of<T>(args, size);
    const auto out = span_of<T>(args.out);
    with_taps<T, pack_size<T>>(size, {args.x, args.out}, args.bias, args.before, [&]<int N, int TAPS> {
      const dim3 grid(blocks_for(size.rows, forward_rows), blocks_for(size.channels, std::int64_t{threads} * N));
      causal_conv_kernel<T, N, TAPS><<<grid, threads, 0, on>>>(out.data, out.width, c, forward_rows);
    });
    if (args.before)
      keep_rows_kernel<<<blocks_for(size.channels, threads), threads, 0, on>>>(static_cast<T*>(args.before.data()), c);
  });
  SO_CUDA_LAUNCHED(op);
}

void CudaOps::causal_conv_grad(Stream& stream, const CausalConvGrad& args) {
  const char* op = "causal_conv_grad";
  const ConvSize size = expect_causal_conv_grad(op, args);
  const cudaStream_t on = enter(stream);
  const std::int64_t columns = size.channels * size.taps, biases = args.dbias ? size.channels : 0;
  // Longer pieces if the scratch does not hold their sums.
  std::int64_t piece = gradient_rows;
  const auto count = [&] { return (size.rows + piece - 1) / piece; };
  while (count() > 1 && static_cast<std::size_t>(count() * (columns + biases)) * sizeof(float) > scratch_.bytes())
    piece *= 2;
  const std::int64_t pieces = count();
  auto* partial = scratch<float>(static_cast<std::size_t>(pieces * (columns + biases)));
  auto* partial_bias = args.dbias ? partial + pieces * columns : nullptr;
  if (pieces > 0) {
    with_type(args.dout.rows.dtype(), [&]<class T> {
      const auto c = convolution_of<T>(args.forward, size);
      const auto dx = span_of<T>(args.dx);
      const auto dout = span_of<const T>(args.dout);
      const ConvolutionGrad<T> g{dx.data, dout.data, dx.width, dout.width, partial, partial_bias, piece};
      // Four channels a thread, of which it keeps four arrays of a row for each tap.
      with_taps<T, 4>(size, {args.forward.x, args.dx, args.dout}, args.forward.bias, Tensor(), [&]<int N, int TAPS> {
        const dim3 grid(blocks_for(pieces, 1), blocks_for(size.channels, std::int64_t{threads} * N));
        causal_conv_grad_kernel<T, N, TAPS><<<grid, threads, 0, on>>>(g, c);
      });
    });
    SO_CUDA_LAUNCHED(op);
  }
  finish_column_sums(on, args.dweight, partial, pieces, columns, args.dweight_mode);
  if (args.dbias) finish_column_sums(on, args.dbias, partial_bias, pieces, biases, args.dbias_mode);
}

}  // namespace so
