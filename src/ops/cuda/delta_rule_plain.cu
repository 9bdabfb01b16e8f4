// The gated delta rule token by token, in fp32: what runs where the kernels for Hopper do not (delta_rule.h). A thread
// has a column of the state, which lies in shared memory. With k and q normalised, S' the decayed state before a row
// and S the one after it:
//   e = v - S'^T k     u = rate e     S = S' + k u^T     out = S^T q
// and backward, dS being the gradient of S from all that follows:
//   dS += q dout^T     du = dS^T k     dv = rate du     drate = <du, e>     dm = -rate du
//   dq = S dout        dk = dS u + S' dm        dS' = dS + k dm^T      ddecay = <dS', S'>
#include "device/cuda/kernel.h"
#include "ops/cuda/delta_rule.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = plain_delta_head_dim, warps = threads / warp, chunk_rows = static_cast<int>(delta_chunk);

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
  float q[threads], k[threads], dout[threads], u[threads], dm[threads];
  float rate_sums[warps], decay_sums[warps];
};

// Queries and keys in shared memory are as given; multiplied by these they are normalised.
struct Norms {
  float q, k;  // 1 / (|q| sqrt(k_dim)), 1 / |k|
};

template <class T>
__device__ Norms load_row(RowShared& shared, const DeltaArguments& a, std::int64_t row, int k_head) {
  const int t = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (t < a.k_dim) {
    shared.q[t] = to_float(row_of<T>(a.q, row, k_head)[t]);
    shared.k[t] = to_float(row_of<T>(a.k, row, k_head)[t]);
  }
  __syncthreads();
  float qq = 0, kk = 0;
  for (int i = 0; i < a.k_dim; ++i) {
    qq = fmaf(shared.q[i], shared.q[i], qq);
    kk = fmaf(shared.k[i], shared.k[i], kk);
  }
  return {1 / sqrtf((qq + delta_norm_epsilon) * static_cast<float>(a.k_dim)), 1 / sqrtf(kk + delta_norm_epsilon)};
}

// Column c of the state after a row; `decayed`, unless null, gets S' [k_dim, v_dim]. Returns the row's output.
template <class T>
__device__ float advance(const State& state, const RowShared& shared, const Norms& norms, const DeltaArguments& a,
                         std::int64_t row, int head, int c, float* decayed) {
  const std::int64_t gate = row * a.gate_width + head;
  const float decay = expf(a.decay[gate]), rate = a.rate[gate];
  float found = 0;
  for (int i = 0; i < a.k_dim; ++i) {
    const float s = state(i, c) * decay;
    state(i, c) = s;
    if (decayed) decayed[i * a.v_dim + c] = s;
    found = fmaf(s, shared.k[i] * norms.k, found);
  }
  const float u = rate * (to_float(row_of<T>(a.v, row, head)[c]) - found);
  float out = 0;
  for (int i = 0; i < a.k_dim; ++i) {
    const float s = fmaf(shared.k[i] * norms.k, u, state(i, c));
    state(i, c) = s;
    out = fmaf(s, shared.q[i] * norms.q, out);
  }
  return out;
}

// --- forward: a block a document and value head ---
template <class T>
__global__ void __launch_bounds__(threads) plain_delta_kernel(DeltaArguments a) {
  extern __shared__ float memory[];
  __shared__ RowShared shared;
  const State state{memory, a.v_dim};
  const int document = static_cast<int>(blockIdx.x) / a.v_heads, head = static_cast<int>(blockIdx.x) % a.v_heads;
  const int c = static_cast<int>(threadIdx.x), k_head = head / (a.v_heads / a.k_heads);
  float* const continued = a.state ? a.state + static_cast<std::int64_t>(head) * a.k_dim * a.v_dim : nullptr;
  if (c < a.v_dim)
    for (int i = 0; i < a.k_dim; ++i) state(i, c) = continued ? continued[i * a.v_dim + c] : 0;
  for (int row = a.starts[document]; row < a.starts[document + 1]; ++row) {
    const Norms norms = load_row<T>(shared, a, row, k_head);
    if (c < a.v_dim)
      row_of<T>(a.out, row, head)[c] = from_float<T>(advance<T>(state, shared, norms, a, row, head, c, nullptr));
  }
  if (continued && c < a.v_dim)
    for (int i = 0; i < a.k_dim; ++i) continued[i * a.v_dim + c] = state(i, c);
}

// --- backward: a block takes documents and key heads in turn, the value heads of one after another ---

struct PlainArrays {
  float *states, *in_chunk, *dq, *dk;
};

// Backward through one row, whose S' is `decayed`. dS is that of what follows, and becomes that of the state before.
template <class T>
__device__ void retreat(const State& dstate, RowShared& shared, const Norms& norms, const DeltaArguments& a,
                        std::int64_t row, int head, const float* decayed, float* dq, float* dk, bool first) {
  const int t = static_cast<int>(threadIdx.x);
  const std::int64_t gate = row * a.gate_width + head;
  const float rate = a.rate[gate];
  float drate = 0, ddecay = 0, dm = 0;
  if (t < a.v_dim) {
    const float dout = to_float(row_of<T>(a.dout, row, head)[t]);
    float found = 0, du = 0;
    for (int i = 0; i < a.k_dim; ++i) {
      const float k = shared.k[i] * norms.k, s = fmaf(shared.q[i] * norms.q, dout, dstate(i, t));
      dstate(i, t) = s;
      found = fmaf(decayed[i * a.v_dim + t], k, found);
      du = fmaf(s, k, du);
    }
    const float e = to_float(row_of<T>(a.v, row, head)[t]) - found;
    dm = -rate * du;
    for (int i = 0; i < a.k_dim; ++i)
      ddecay = fmaf(fmaf(shared.k[i] * norms.k, dm, dstate(i, t)), decayed[i * a.v_dim + t], ddecay);
    drate = du * e;
    row_of<T>(a.dv, row, head)[t] = from_float<T>(rate * du);
    shared.dout[t] = dout;
    shared.u[t] = rate * e;
    shared.dm[t] = dm;
  }
  drate = warp_sum(drate);
  ddecay = warp_sum(ddecay);
  if (t % warp == 0) {
    shared.rate_sums[t / warp] = drate;
    shared.decay_sums[t / warp] = ddecay;
  }
  __syncthreads();
  if (t == 0) {
    drate = ddecay = 0;
    for (int i = 0; i < warps; ++i) {
      drate += shared.rate_sums[i];
      ddecay += shared.decay_sums[i];
    }
    a.drate[gate] = drate;
    a.ddecay[gate] = ddecay;
  }
  if (t < a.k_dim) {
    const float k = shared.k[t] * norms.k;
    float q_sum = 0, k_sum = 0;
    for (int c = 0; c < a.v_dim; ++c) {
      const float s = decayed[t * a.v_dim + c];
      q_sum = fmaf(fmaf(k, shared.u[c], s), shared.dout[c], q_sum);
      k_sum = fmaf(dstate(t, c), shared.u[c], fmaf(s, shared.dm[c], k_sum));
    }
    dq[t] = q_sum * norms.q + (first ? 0 : dq[t]);
    dk[t] = k_sum * norms.k + (first ? 0 : dk[t]);
  }
  __syncthreads();
  if (t < a.v_dim) {
    const float decay = expf(a.decay[gate]);
    for (int i = 0; i < a.k_dim; ++i) dstate(i, t) = fmaf(shared.k[i] * norms.k, dm, dstate(i, t)) * decay;
  }
}

// Through the normalisation: with x the row, dx -= x <x, dx> / |x|^2. A warp a row.
template <class T>
__device__ void finish_row(T* to, const float* dx, const T* x, int size) {
  const int lane = static_cast<int>(threadIdx.x) % warp;
  float squares = 0, dot = 0;
  for (int i = lane; i < size; i += warp) {
    const float value = to_float(x[i]);
    squares = fmaf(value, value, squares);
    dot = fmaf(value, dx[i], dot);
  }
  const float factor = warp_sum(dot) / (warp_sum(squares) + delta_norm_epsilon);
  for (int i = lane; i < size; i += warp) to[i] = from_float<T>(fmaf(-factor, to_float(x[i]), dx[i]));
}

template <class T>
__global__ void __launch_bounds__(threads) plain_delta_grad_kernel(DeltaArguments a, PlainArrays arrays) {
  extern __shared__ float memory[];
  __shared__ RowShared shared;
  const State state{memory, a.v_dim + 1};  // going back, of its gradient
  const int t = static_cast<int>(threadIdx.x), group = a.v_heads / a.k_heads;
  const std::int64_t state_size = static_cast<std::int64_t>(a.k_dim) * a.v_dim;
  float* const in_chunk = arrays.in_chunk + blockIdx.x * chunk_rows * state_size;
  for (std::int64_t item = blockIdx.x; item < static_cast<std::int64_t>(a.documents) * a.k_heads; item += gridDim.x) {
    const int document = static_cast<int>(item / a.k_heads), k_head = static_cast<int>(item % a.k_heads);
    const int begin = a.starts[document], end = a.starts[document + 1];
    const int chunks = (end - begin + chunk_rows - 1) / chunk_rows;
    const auto sums = [&](float* all, std::int64_t row) { return all + (row * a.k_heads + k_head) * a.k_dim; };
    for (int head = k_head * group; head < (k_head + 1) * group; ++head) {
      const auto kept = [&](int chunk) {
        const std::int64_t place = begin / static_cast<int>(delta_rows_of_state) + chunk;
        return arrays.states + (place * a.v_heads + head) * state_size;
      };
      __syncthreads();
      if (t < a.v_dim)
        for (int i = 0; i < a.k_dim; ++i) state(i, t) = 0;
      // A document of one chunk begins it with an empty state, and nothing follows it.
      for (int row = begin; row < end && chunks > 1; ++row) {
        if ((row - begin) % chunk_rows == 0 && t < a.v_dim)
          for (int i = 0; i < a.k_dim; ++i) kept((row - begin) / chunk_rows)[i * a.v_dim + t] = state(i, t);
        const Norms norms = load_row<T>(shared, a, row, k_head);
        if (t < a.v_dim) advance<T>(state, shared, norms, a, row, head, t, nullptr);
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
        for (int row = first; row < last; ++row) {
          const Norms norms = load_row<T>(shared, a, row, k_head);
          if (t < a.v_dim) advance<T>(state, shared, norms, a, row, head, t, in_chunk + (row - first) * state_size);
        }
        __syncthreads();
        if (t < a.v_dim)
          for (int i = 0; i < a.k_dim; ++i) state(i, t) = chunks > 1 ? dstate[i * a.v_dim + t] : 0;
        for (int row = last - 1; row >= first; --row) {
          const Norms norms = load_row<T>(shared, a, row, k_head);
          retreat<T>(state, shared, norms, a, row, head, in_chunk + (row - first) * state_size, sums(arrays.dq, row),
                     sums(arrays.dk, row), head == k_head * group);
        }
        __syncthreads();
        if (t < a.v_dim && chunks > 1)
          for (int i = 0; i < a.k_dim; ++i) dstate[i * a.v_dim + t] = state(i, t);
      }
    }
    __syncthreads();
    for (int row = begin + t / warp; row < end; row += warps) {
      finish_row(row_of<T>(a.dq, row, k_head), sums(arrays.dq, row), row_of<T>(a.q, row, k_head), a.k_dim);
      finish_row(row_of<T>(a.dk, row, k_head), sums(arrays.dk, row), row_of<T>(a.k, row, k_head), a.k_dim);
    }
  }
}

template <class Kernel>
void allow(Kernel* kernel, std::size_t bytes) {
  SO_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

}  // namespace

void plain_delta_rule(cudaStream_t stream, DType dtype, const DeltaArguments& a) {
  const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(a.k_dim) * static_cast<std::size_t>(a.v_dim);
  with_type(dtype, [&]<class T>() {
    allow(plain_delta_kernel<T>, bytes);
    plain_delta_kernel<T>
        <<<blocks_for(static_cast<std::int64_t>(a.documents) * a.v_heads, 1), threads, bytes, stream>>>(a);
    SO_CUDA_LAUNCHED("plain_delta_kernel");
  });
}

void plain_delta_rule_grad(cudaStream_t stream, DType dtype, const DeltaArguments& a, const DeltaSize& size) {
  const PlainDeltaScratch at(size);
  const auto f32 = [&](std::size_t offset) { return reinterpret_cast<float*>(a.scratch + offset); };
  const PlainArrays arrays{f32(at.states), f32(at.in_chunk), f32(at.dq), f32(at.dk)};
  const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(a.k_dim) * static_cast<std::size_t>(a.v_dim + 1);
  with_type(dtype, [&]<class T>() {
    allow(plain_delta_grad_kernel<T>, bytes);
    plain_delta_grad_kernel<T><<<blocks_for(at.blocks, 1), threads, bytes, stream>>>(a, arrays);
    SO_CUDA_LAUNCHED("plain_delta_grad_kernel");
  });
}

}  // namespace so
