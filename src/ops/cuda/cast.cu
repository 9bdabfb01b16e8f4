// Conversion between dtypes, and random numbers.
#include "base/normal_draw.h"
#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"
#include "device/cuda/kernel.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 256;

template <class To, class From, int N>
__global__ void __launch_bounds__(threads) cast_kernel(To* out, const From* in, std::int64_t count) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) * N;
  if (i + N <= count) {
    float x[N];
    load<N>(x, in + i);
    store<N>(out + i, x);
  } else {
    for (std::int64_t j = i; j < count; ++j) out[j] = from_float<To>(to_float(in[j]));
  }
}

template <class To, class From>
void launch_cast(Tensor out, Tensor in, cudaStream_t on) {
  constexpr int N = 8;
  auto* to = static_cast<To*>(out.data());
  const auto* from = static_cast<const From*>(in.data());
  const std::int64_t count = in.size();
  if (rows_aligned<To, N>(N, to) && rows_aligned<From, N>(N, from))
    cast_kernel<To, From, N><<<blocks_for(count, threads * N), threads, 0, on>>>(to, from, count);
  else
    cast_kernel<To, From, 1><<<blocks_for(count, threads), threads, 0, on>>>(to, from, count);
}

// base/normal_draw.h in fp32: the same draws, a little less exact.
template <class T>
__global__ void __launch_bounds__(threads)
    random_normal_kernel(T* out, std::int64_t count, std::uint64_t draws, float standard_deviation) {
  const std::int64_t pair = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x, i = 2 * pair;
  if (i >= count) return;
  std::uint64_t x = (draws ^ static_cast<std::uint64_t>(pair)) + 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  const float u = (static_cast<float>(x >> 40) + 0.5f) * 0x1p-24f;
  const float half_turns = static_cast<float>(x & 0xffffffu) * 0x1p-23f;
  const float radius = standard_deviation * sqrtf(-2.0f * logf(u));
  float sine, cosine;
  sincospif(half_turns, &sine, &cosine);
  out[i] = from_float<T>(radius * cosine);
  if (i + 1 < count) out[i + 1] = from_float<T>(radius * sine);
}

}  // namespace

void CudaOps::cast(Stream& stream, Tensor out, Tensor in) {
  const char* op = "cast";
  expect_compute_dtype(op, "in", in.dtype());
  expect_compute_dtype(op, "out", out.dtype());
  SO_CHECK(in.dtype() != out.dtype(), "{}: both are {}: that is a copy", op, name_of(in.dtype()));
  SO_CHECK(in.size() == out.size(), "{}: from {} to {}", op, shape_string(in.shape()), shape_string(out.shape()));
  SO_CHECK((in && out) || in.size() == 0, "{}: a tensor is empty", op);
  const cudaStream_t on = enter(stream);
  if (in.size() == 0) return;
  if (out.dtype() == DType::bf16)
    launch_cast<__nv_bfloat16, float>(out, in, on);
  else
    launch_cast<float, __nv_bfloat16>(out, in, on);
  SO_CUDA_LAUNCHED(op);
}

void CudaOps::random_normal(Stream& stream, Tensor out, std::uint64_t seed, float standard_deviation) {
  const char* op = "random_normal";
  expect_compute_dtype(op, "out", out.dtype());
  SO_CHECK(out || out.size() == 0, "{}: out is empty", op);
  const cudaStream_t on = enter(stream);
  if (out.size() == 0) return;
  with_type(out.dtype(), [&]<class T> {
    random_normal_kernel<<<blocks_for(out.size(), 2 * threads), threads, 0, on>>>(
        static_cast<T*>(out.data()), out.size(), mix_counter(seed), standard_deviation);
  });
  SO_CUDA_LAUNCHED(op);
}

}  // namespace so
