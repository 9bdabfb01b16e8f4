// The activation of experts, with their biases and the weights of their rows, and its gradient: memory-bound, each byte
// read and written once. A warp does a row, as the gradient of its weight is a sum over it. Rows come sorted by expert,
// so biases stay in the L1 cache.
#include "device/cuda/kernel.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/expert_of.h"
#include "ops/cuda/sigmoid.h"
#include "ops/expert_checks.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 256, warps = threads / warp;

// Where the columns i, i + 1, ... of gate and up lie in a row of `inputs` width: side by side, N of each an access.
template <class T, int N>
struct Halves {
  static constexpr int inputs = 2;
  Words<T, N> gate, up;

  __device__ void read(const T* row, std::int64_t width, std::int64_t i) {
    gate = fetch<N>(row + i);
    up = fetch<N>(row + width + i);
  }
  __device__ void get(float (&g)[N], float (&u)[N]) const {
    widen<T>(g, gate);
    widen<T>(u, up);
  }
  __device__ static void write(T* row, std::int64_t width, std::int64_t i, const float (&g)[N], const float (&u)[N]) {
    store<N>(row + i, g);
    store<N>(row + width + i, u);
  }
};

// One of each in turn, N pairs an access.
template <class T, int N>
struct InTurn {
  static constexpr int inputs = 2;
  Words<T, 2 * N> pairs;

  __device__ void read(const T* row, std::int64_t, std::int64_t i) {
    if constexpr (N > 1) {
      pairs = fetch<2 * N>(row + 2 * i);
    } else {  // only as aligned as an element
      const Words<T, 1> first = fetch<1>(row + 2 * i), second = fetch<1>(row + 2 * i + 1);
      if constexpr (sizeof(T) == 4)
        pairs = {{first.at[0], second.at[0]}};
      else
        pairs = {{first.at[0] | second.at[0] << 16}};
    }
  }
  __device__ void get(float (&g)[N], float (&u)[N]) const {
    float both[2 * N];
    widen<T>(both, pairs);
#pragma unroll
    for (int j = 0; j < N; ++j) g[j] = both[2 * j], u[j] = both[2 * j + 1];
  }
  __device__ static void write(T* row, std::int64_t, std::int64_t i, const float (&g)[N], const float (&u)[N]) {
    if constexpr (N > 1) {
      float both[2 * N];
#pragma unroll
      for (int j = 0; j < N; ++j) both[2 * j] = g[j], both[2 * j + 1] = u[j];
      store<2 * N>(row + 2 * i, both);
    } else {
      store<1>(row + 2 * i, g);
      store<1>(row + 2 * i + 1, u);
    }
  }
};

// There is no gate.
template <class T, int N>
struct UpAlone {
  static constexpr int inputs = 1;
  Words<T, N> up;

  __device__ void read(const T* row, std::int64_t, std::int64_t i) { up = fetch<N>(row + i); }
  __device__ void get(float (&g)[N], float (&u)[N]) const {
    widen<T>(u, up);
#pragma unroll
    for (int j = 0; j < N; ++j) g[j] = 0;
  }
  __device__ static void write(T* row, std::int64_t, std::int64_t i, const float (&)[N], const float (&u)[N]) {
    store<N>(row + i, u);
  }
};

// Returns act(gate, up) and makes gate and up the derivatives by them.
struct Swiglu {
  template <class T>
  __device__ float operator()(float& gate, float& up) const {
    float s, complement;
    sigmoid<T>(gate, s, complement);
    const float silu = gate * s, y = silu * up;
    gate = up * (s + silu * complement);
    up = silu;
    return y;
  }
};
// x sigmoid(z) with z = 2 sqrt(2/pi) (x + 0.044715 x^3), as in activation.cu.
struct Geglu {
  template <class T>
  __device__ float operator()(float& gate, float& up) const {
    constexpr float linear = 1.5957691216057308f, cubic = linear * 0.044715f;
    float s, complement;
    sigmoid<T>(gate * (gate * gate * cubic + linear), s, complement);
    const float smooth = gate * s, y = smooth * up, both = smooth * complement;
    // Where s or 1 - s is 0, the slope of z may be too large for fp32: the product is 0 then.
    gate = up * (s + (both == 0 ? 0.0f : both * (gate * gate * (3 * cubic) + linear)));
    up = smooth;
    return y;
  }
};
// A bound passes a NaN on (comparing is false), and the gradient up to the bound itself.
struct Clamped {
  float limit;
  template <class T>
  __device__ float operator()(float& gate, float& up) const {
    const bool gate_passed = gate > limit, up_passed = fabsf(up) > limit;
    const float g = gate_passed ? limit : gate, u = (up_passed ? copysignf(limit, up) : up) + 1.0f;
    const float steep = 1.702f * g;
    float s, complement;
    sigmoid<T>(steep, s, complement);
    const float smooth = g * s;
    gate = gate_passed ? 0.0f : u * (s + steep * s * complement);
    up = up_passed ? 0.0f : smooth;
    return smooth * u;
  }
};

// NaN stays NaN, since no comparison with it is true.
struct ReluSquared {
  template <class T>
  __device__ float operator()(float&, float& up) const {
    const float x = up < 0 ? 0.0f : up;
    up = x + x;
    return x * x;
  }
};

template <class T>
struct Arguments {
  T *out, *dgate_up;  // out: of the gradient, `activated`
  float* dweights;
  const T *dout, *gate_up, *bias;
  const float* weights;
  const std::int32_t* offsets;
  std::int64_t rows, width;
  int experts;
  bool add;  // to dweights
};

// N columns an access, PACKS accesses on their way at a time. Outputs may lie on inputs: an element's inputs are read
// by the lane that writes its outputs, before it does.
template <class T, int N, int PACKS, template <class, int> class Columns, class Activation, bool GRAD>
__global__ void __launch_bounds__(threads, GRAD ? 3 : 4) activation_kernel(Arguments<T> a, Activation activation) {
  const int lane = threadIdx.x % warp;
  const std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / warp;
  if (r >= a.rows) return;
  const std::int64_t row_width = Columns<T, N>::inputs * a.width;
  const T* row = a.gate_up + r * row_width;
  const T* row_bias = a.bias ? a.bias + expert_of(a.offsets, a.experts, r) * row_width : nullptr;
  const float weight = a.weights[r];
  float dot = 0;
  for (std::int64_t begin = lane * N; begin < a.width; begin += PACKS * warp * N) {
    Columns<T, N> in[PACKS];
    Words<T, N> in_dout[PACKS];
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
      if (const std::int64_t i = begin + p * warp * N; i < a.width) {
        in[p].read(row, a.width, i);
        if constexpr (GRAD) in_dout[p] = fetch<N>(a.dout + r * a.width + i);
      }
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
      if (const std::int64_t i = begin + p * warp * N; i < a.width) {
        float gate[N], up[N], y[N];
        in[p].get(gate, up);
        if (row_bias) {  // soon here, and not worth registers until it is needed
          Columns<T, N> in_bias;
          in_bias.read(row_bias, a.width, i);
          float gate_bias[N], up_bias[N];
          in_bias.get(gate_bias, up_bias);
#pragma unroll
          for (int j = 0; j < N; ++j) gate[j] += gate_bias[j], up[j] += up_bias[j];
        }
#pragma unroll
        for (int j = 0; j < N; ++j) y[j] = activation.template operator()<T>(gate[j], up[j]);
        if constexpr (GRAD) {
          float dout[N];
          widen<T>(dout, in_dout[p]);
#pragma unroll
          for (int j = 0; j < N; ++j) {
            dot += dout[j] * y[j];
            const float scaled = dout[j] * weight;
            gate[j] *= scaled;
            up[j] *= scaled;
          }
          Columns<T, N>::write(a.dgate_up + r * row_width, a.width, i, gate, up);
        }
#pragma unroll
        for (int j = 0; j < N; ++j) y[j] *= weight;
        store<N>(a.out + r * a.width + i, y);
      }
  }
  if constexpr (GRAD) {
    dot = warp_sum(dot);
    if (lane == 0) a.dweights[r] = a.add ? a.dweights[r] + dot : dot;
  }
}

template <class T, int N, int PACKS, template <class, int> class Columns, bool GRAD, class Activation>
void launch(const Arguments<T>& a, Activation activation, cudaStream_t on) {
  activation_kernel<T, N, PACKS, Columns, Activation, GRAD>
      <<<blocks_for(a.rows, warps), threads, 0, on>>>(a, activation);
}

// Accesses of gate_up are 16 bytes if rows and pointers allow, two for N columns side by side, one for N in turn.
template <bool GRAD, class T>
void launch(const Arguments<T>& a, const ExpertActivation& activation, cudaStream_t on) {
  if (activation.kind != ExpertActivation::Kind::clamped) {
    constexpr int N = pack_size<T>;
    const bool packs = rows_aligned<T, N>(a.width, a.out, a.dgate_up, a.dout, a.gate_up, a.bias);
    const auto in_halves = [&](auto kind) {
      packs ? launch<T, N, 2, Halves, GRAD>(a, kind, on) : launch<T, 1, 4, Halves, GRAD>(a, kind, on);
    };
    if (activation.kind == ExpertActivation::Kind::relu_squared)
      packs ? launch<T, N, 2, UpAlone, GRAD>(a, ReluSquared{}, on)
            : launch<T, 1, 4, UpAlone, GRAD>(a, ReluSquared{}, on);
    else
      activation.kind == ExpertActivation::Kind::swiglu ? in_halves(Swiglu{}) : in_halves(Geglu{});
  } else {
    constexpr int N = pack_size<T> / 2;
    if (rows_aligned<T, N>(a.width, a.out, a.dout) &&
        rows_aligned<T, 2 * N>(2 * a.width, a.gate_up, a.dgate_up, a.bias))
      launch<T, N, 4, InTurn, GRAD>(a, Clamped{activation.limit}, on);
    else
      launch<T, 1, 4, InTurn, GRAD>(a, Clamped{activation.limit}, on);
  }
}

template <class T>
T* data(const Tensor& tensor) {
  return static_cast<T*>(tensor.data());
}

}  // namespace

void CudaOps::expert_activation(Stream& stream, Tensor out, Tensor gate_up, Tensor bias,
                                const ExpertActivation& activation, const Routing& routing) {
  const char* op = "expert_activation";
  const RoutingSize size = expect_expert_activation(op, out, gate_up, bias, activation, routing);
  const cudaStream_t on = enter(stream);
  if (size.rows == 0) return;
  with_type(out.dtype(), [&]<class T> {
    launch<false>(Arguments<T>{.out = data<T>(out),
                               .gate_up = data<T>(gate_up),
                               .bias = data<T>(bias),
                               .weights = routing.weights.as<float>(),
                               .offsets = bias ? routing.offsets.as<std::int32_t>() : nullptr,
                               .rows = size.rows,
                               .width = out.dim(1),
                               .experts = static_cast<int>(size.experts)},
                  activation, on);
  });
  SO_CUDA_LAUNCHED(op);
}

void CudaOps::expert_activation_grad(Stream& stream, const ExpertActivationGrad& g) {
  const char* op = "expert_activation_grad";
  const RoutingSize size = expect_expert_activation_grad(op, g);
  const cudaStream_t on = enter(stream);
  if (size.rows == 0) return;
  with_type(g.dout.dtype(), [&]<class T> {
    launch<true>(Arguments<T>{.out = data<T>(g.activated),
                              .dgate_up = data<T>(g.dgate_up),
                              .dweights = g.dweights.as<float>(),
                              .dout = data<T>(g.dout),
                              .gate_up = data<T>(g.gate_up),
                              .bias = data<T>(g.bias),
                              .weights = g.routing.weights.as<float>(),
                              .offsets = g.bias ? g.routing.offsets.as<std::int32_t>() : nullptr,
                              .rows = size.rows,
                              .width = g.dout.dim(1),
                              .experts = static_cast<int>(size.experts),
                              .add = g.dweights_mode == Accumulate::add},
                 g.activation, on);
  });
  SO_CUDA_LAUNCHED(op);
}

}  // namespace so
