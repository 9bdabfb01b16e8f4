// State spaces token by token, in fp32: what runs where the kernels for Hopper do not (state_space.h). A thread has a
// column of the state, which lies in shared memory. With S' the decayed state before a row and S the one after it:
//   S = S' + b (step x)^T     out = S^T c + skip x
// and backward, dS being the gradient of S from all that follows:
//   dS += c dout^T     du = dS^T b     dx = step du + skip dout     dstep = <du, x>
//   dc = S dout        db = dS (step x)        ddecay = <dS, S'>
#include "device/cuda/kernel.h"
#include "ops/cuda/state_space.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = plain_space_dim, warps = threads / warp, chunk_rows = static_cast<int>(state_space_chunk);

template <class T>
__device__ T* row_of(const HeadRows& heads, std::int64_t row, int head) {
  return static_cast<T*>(heads.at) + row * heads.width + head * heads.step;
}

struct State {
  float* at;  // [k_dim][pitch]
  int pitch;
  __device__ float& operator()(int i, int c) const { return at[i * pitch + c]; }
};

// A row as all threads of a block read it, from shared memory.
struct RowShared {
  float b[threads], c[threads], x[threads], dout[threads];
  float step_sums[warps], decay_sums[warps];
};

template <class T>
__device__ void load_row(RowShared& shared, const SpaceArguments& a, std::int64_t row, int group) {
  const int t = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (t < a.k_dim) {
    shared.b[t] = to_float(row_of<T>(a.b, row, group)[t]);
    shared.c[t] = to_float(row_of<T>(a.c, row, group)[t]);
  }
  __syncthreads();
}

// Column c of the state after a row; `decayed`, unless null, gets S' [k_dim, v_dim]. Returns S^T c.
template <class T>
__device__ float advance(const State& state, const RowShared& shared, const SpaceArguments& a, std::int64_t row,
                         int head, int c, float x, float* decayed) {
  const std::int64_t gate = row * a.gate_width + head;
  const float decay = expf(a.decay[gate]), u = a.step[gate] * x;
  float out = 0;
  for (int i = 0; i < a.k_dim; ++i) {
    const float before = state(i, c) * decay, s = fmaf(shared.b[i], u, before);
    if (decayed) decayed[i * a.v_dim + c] = before;
    state(i, c) = s;
    out = fmaf(s, shared.c[i], out);
  }
  return out;
}

// --- forward: a block a document and head ---
template <class T>
__global__ void __launch_bounds__(threads) plain_space_kernel(SpaceArguments a) {
  extern __shared__ float memory[];
  __shared__ RowShared shared;
  const State state{memory, a.v_dim};
  const int document = static_cast<int>(blockIdx.x) / a.heads, head = static_cast<int>(blockIdx.x) % a.heads;
  const int c = static_cast<int>(threadIdx.x), group = head / (a.heads / a.groups);
  float* const continued = a.state ? a.state + static_cast<std::int64_t>(head) * a.k_dim * a.v_dim : nullptr;
  if (c < a.v_dim)
    for (int i = 0; i < a.k_dim; ++i) state(i, c) = continued ? continued[i * a.v_dim + c] : 0;
  const float skip = to_float(static_cast<const T*>(a.skip)[head]);
  for (int row = a.starts[document]; row < a.starts[document + 1]; ++row) {
    load_row<T>(shared, a, row, group);
    if (c < a.v_dim) {
      const float x = to_float(row_of<T>(a.x, row, head)[c]);
      const float out = advance<T>(state, shared, a, row, head, c, x, nullptr);
      row_of<T>(a.out, row, head)[c] = from_float<T>(fmaf(skip, x, out));
    }
  }
  if (continued && c < a.v_dim)
    for (int i = 0; i < a.k_dim; ++i) continued[i * a.v_dim + c] = state(i, c);
}

// --- backward: a block takes documents and groups in turn, the heads of one after another ---

struct PlainSpaceArrays {
  float *states, *in_chunk, *db, *dc;
};

// Backward through one row, whose S' is `decayed`. dS is that of what follows, and becomes that of the state before.
template <class T>
__device__ void retreat(const State& dstate, RowShared& shared, const SpaceArguments& a, std::int64_t row, int head,
                        const float* decayed, float* db, float* dc, bool first) {
  const int t = static_cast<int>(threadIdx.x);
  const std::int64_t gate = row * a.gate_width + head;
  const float step = a.step[gate];
  float dstep = 0, ddecay = 0;
  if (t < a.v_dim) {
    const float dout = to_float(row_of<T>(a.dout, row, head)[t]), x = to_float(row_of<T>(a.x, row, head)[t]);
    float du = 0;
    for (int i = 0; i < a.k_dim; ++i) {
      const float s = fmaf(shared.c[i], dout, dstate(i, t));
      dstate(i, t) = s;
      du = fmaf(s, shared.b[i], du);
      ddecay = fmaf(s, decayed[i * a.v_dim + t], ddecay);
    }
    dstep = du * x;
    const float skip = to_float(static_cast<const T*>(a.skip)[head]);
    row_of<T>(a.dx, row, head)[t] = from_float<T>(fmaf(step, du, skip * dout));
    shared.dout[t] = dout;
    shared.x[t] = step * x;
  }
  dstep = warp_sum(dstep);
  ddecay = warp_sum(ddecay);
  if (t % warp == 0) {
    shared.step_sums[t / warp] = dstep;
    shared.decay_sums[t / warp] = ddecay;
  }
  __syncthreads();
  if (t == 0) {
    dstep = ddecay = 0;
    for (int i = 0; i < warps; ++i) {
      dstep += shared.step_sums[i];
      ddecay += shared.decay_sums[i];
    }
    a.dstep[gate] = dstep;
    a.ddecay[gate] = ddecay;
  }
  if (t < a.k_dim) {
    float b_sum = 0, c_sum = 0;
    for (int c = 0; c < a.v_dim; ++c) {
      c_sum = fmaf(fmaf(shared.b[t], shared.x[c], decayed[t * a.v_dim + c]), shared.dout[c], c_sum);
      b_sum = fmaf(dstate(t, c), shared.x[c], b_sum);
    }
    db[t] = b_sum + (first ? 0 : db[t]);
    dc[t] = c_sum + (first ? 0 : dc[t]);
  }
  __syncthreads();
  if (t < a.v_dim) {
    const float decay = expf(a.decay[gate]);
    for (int i = 0; i < a.k_dim; ++i) dstate(i, t) *= decay;
  }
}

template <class T>
__global__ void __launch_bounds__(threads) plain_space_grad_kernel(SpaceArguments a, PlainSpaceArrays arrays) {
  extern __shared__ float memory[];
  __shared__ RowShared shared;
  const State state{memory, a.v_dim + 1};  // going back, of its gradient
  const int t = static_cast<int>(threadIdx.x), heads = a.heads / a.groups;
  const std::int64_t state_size = static_cast<std::int64_t>(a.k_dim) * a.v_dim;
  float* const in_chunk = arrays.in_chunk + blockIdx.x * chunk_rows * state_size;
  for (std::int64_t item = blockIdx.x; item < static_cast<std::int64_t>(a.documents) * a.groups; item += gridDim.x) {
    const int document = static_cast<int>(item / a.groups), group = static_cast<int>(item % a.groups);
    const int begin = a.starts[document], end = a.starts[document + 1];
    const int chunks = (end - begin + chunk_rows - 1) / chunk_rows;
    const auto sums = [&](float* all, std::int64_t row) { return all + (row * a.groups + group) * a.k_dim; };
    for (int head = group * heads; head < (group + 1) * heads; ++head) {
      const auto kept = [&](int chunk) {
        const std::int64_t place = begin / static_cast<int>(state_space_rows_of_chunk) + chunk;
        return arrays.states + (place * a.heads + head) * state_size;
      };
      const auto next = [&](int row, float* decayed) {
        load_row<T>(shared, a, row, group);
        if (t < a.v_dim) advance<T>(state, shared, a, row, head, t, to_float(row_of<T>(a.x, row, head)[t]), decayed);
      };
      __syncthreads();
      if (t < a.v_dim)
        for (int i = 0; i < a.k_dim; ++i) state(i, t) = 0;
      // A document of one chunk begins it with an empty state, and nothing follows it.
      for (int row = begin; row < end && chunks > 1; ++row) {
        if ((row - begin) % chunk_rows == 0 && t < a.v_dim)
          for (int i = 0; i < a.k_dim; ++i) kept((row - begin) / chunk_rows)[i * a.v_dim + t] = state(i, t);
        next(row, nullptr);
      }
      // The gradient of the state waits in `states` while a chunk's states are made again.
      float* const dstate = kept(chunks > 1 ? chunks - 1 : 0);
      for (int chunk = chunks - 1; chunk >= 0; --chunk) {
        const int first = begin + chunk * chunk_rows, last = min(first + chunk_rows, end);
        if (t < a.v_dim && chunks > 1)
          for (int i = 0; i < a.k_dim; ++i) {
            const float after = chunk == chunks - 1 ? 0 : dstate[i * a.v_dim + t];
            state(i, t) = kept(chunk)[i * a.v_dim + t];
            dstate[i * a.v_dim + t] = after;
          }
        for (int row = first; row < last; ++row) next(row, in_chunk + (row - first) * state_size);
        __syncthreads();
        if (t < a.v_dim)
          for (int i = 0; i < a.k_dim; ++i) state(i, t) = chunks > 1 ? dstate[i * a.v_dim + t] : 0;
        for (int row = last - 1; row >= first; --row) {
          load_row<T>(shared, a, row, group);
          retreat<T>(state, shared, a, row, head, in_chunk + (row - first) * state_size, sums(arrays.db, row),
                     sums(arrays.dc, row), head == group * heads);
        }
        __syncthreads();
        if (t < a.v_dim && chunks > 1)
          for (int i = 0; i < a.k_dim; ++i) dstate[i * a.v_dim + t] = state(i, t);
      }
    }
    __syncthreads();
    if (t < a.k_dim)  // each thread's own sums
      for (int row = begin; row < end; ++row) {
        row_of<T>(a.db, row, group)[t] = from_float<T>(sums(arrays.db, row)[t]);
        row_of<T>(a.dc, row, group)[t] = from_float<T>(sums(arrays.dc, row)[t]);
      }
  }
}

template <class Kernel>
void allow(Kernel* kernel, std::size_t bytes) {
  SO_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

// --- the gradient of skip: a block sums a piece of rows, a warp a head after another, N elements an access ---
template <class T, int N>
__global__ void __launch_bounds__(threads) skip_gradient_kernel(float* partial, SpaceArguments a) {
  const std::int64_t begin = max(blockIdx.x * skip_piece, static_cast<std::int64_t>(a.starts[0]));
  const std::int64_t end = min(blockIdx.x * skip_piece + skip_piece, static_cast<std::int64_t>(a.starts[a.documents]));
  const int packs = a.v_dim / N, lane = static_cast<int>(threadIdx.x) % warp;
  const int count = end > begin ? static_cast<int>(end - begin) * packs : 0;
  for (int head = static_cast<int>(threadIdx.x) / warp; head < a.heads; head += warps) {
    float sum = 0;
    for (int i = lane; i < count; i += warp) {
      const int row = i / packs, at = (i - row * packs) * N;
      float x[N], dout[N];
      load<N>(x, row_of<const T>(a.x, begin + row, head) + at);
      load<N>(dout, row_of<const T>(a.dout, begin + row, head) + at);
#pragma unroll
      for (int j = 0; j < N; ++j) sum = fmaf(x[j], dout[j], sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) partial[static_cast<std::int64_t>(blockIdx.x) * a.heads + head] = sum;
  }
}

}  // namespace

void plain_state_space(cudaStream_t stream, DType dtype, const SpaceArguments& a) {
  const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(a.k_dim) * static_cast<std::size_t>(a.v_dim);
  with_type(dtype, [&]<class T>() {
    allow(plain_space_kernel<T>, bytes);
    plain_space_kernel<T>
        <<<blocks_for(static_cast<std::int64_t>(a.documents) * a.heads, 1), threads, bytes, stream>>>(a);
    SO_CUDA_LAUNCHED("plain_space_kernel");
  });
}

void plain_state_space_grad(cudaStream_t stream, DType dtype, const SpaceArguments& a, const StateSpaceSize& size) {
  const PlainSpaceScratch at(size);
  const auto f32 = [&](std::size_t offset) { return reinterpret_cast<float*>(a.scratch + offset); };
  const PlainSpaceArrays arrays{f32(at.states), f32(at.in_chunk), f32(at.db), f32(at.dc)};
  const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(a.k_dim) * static_cast<std::size_t>(a.v_dim + 1);
  with_type(dtype, [&]<class T>() {
    allow(plain_space_grad_kernel<T>, bytes);
    plain_space_grad_kernel<T><<<blocks_for(at.blocks, 1), threads, bytes, stream>>>(a, arrays);
    SO_CUDA_LAUNCHED("plain_space_grad_kernel");
  });
}

void sum_skip_gradients(cudaStream_t stream, DType dtype, float* partial, const SpaceArguments& a) {
  with_type(dtype, [&]<class T>() {
    constexpr int N = pack_size<T>;
    const auto aligned = [&](const HeadRows& heads) {
      return heads.step % N == 0 && rows_aligned<T, N>(heads.width, heads.at);
    };
    const unsigned blocks = blocks_for(a.rows, skip_piece);
    if (a.v_dim % N == 0 && aligned(a.x) && aligned(a.dout))
      skip_gradient_kernel<T, N><<<blocks, threads, 0, stream>>>(partial, a);
    else
      skip_gradient_kernel<T, 1><<<blocks, threads, 0, stream>>>(partial, a);
    SO_CUDA_LAUNCHED("skip_gradient_kernel");
  });
}

}  // namespace so
