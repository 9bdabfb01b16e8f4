// Random weights.
#include "base/normal_draw.h"
#include "device/cuda/kernel.h"
#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 256;

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
