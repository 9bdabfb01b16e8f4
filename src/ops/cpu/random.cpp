// Random weights.
#include "base/normal_draw.h"
#include "ops/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

namespace so {
namespace {

template <class T>
void draw(T* out, std::int64_t begin, std::int64_t end, std::uint64_t stream, float standard_deviation) {
  for (std::int64_t i = begin; i < end; ++i)
    out[i] = static_cast<T>(static_cast<float>(static_cast<double>(standard_deviation) *
                                               normal_draw(stream, static_cast<std::uint64_t>(i))));
}

}  // namespace

void CpuOps::random_normal(Stream& stream, Tensor out, std::uint64_t seed, float standard_deviation) {
  const char* op = "random_normal";
  expect_compute_dtype(op, "out", out.dtype());
  SO_CHECK(out || out.size() == 0, "{}: out is empty", op);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("random_normal", WorkCategory::memory_bound, [=, &pool] {
    const std::uint64_t draws = mix_counter(seed);
    pool.parallel_for(out.size(), kElementsPerPiece, [&](std::int64_t begin, std::int64_t end) {
      if (out.dtype() == DType::bf16)
        draw(out.as<bf16>(), begin, end, draws, standard_deviation);
      else
        draw(out.as<float>(), begin, end, draws, standard_deviation);
    });
  });
}

}  // namespace so
