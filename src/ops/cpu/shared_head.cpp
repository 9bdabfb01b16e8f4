// One head that several share, and the sum of their gradients.
#include <cstdint>
#include <cstring>

#include "base/error.h"
#include "ops/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

namespace so {
namespace {

template <class T>
void spread(const Heads& out, const Heads& in, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n)
    for (std::int64_t h = 0; h < out.heads; ++h)
      std::memcpy(head_at<T>(out, n, h), head_at<T>(in, n, 0), static_cast<std::size_t>(out.head_dim) * sizeof(T));
}

template <class T>
void add_up(const Heads& out, const Heads& in, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    T* to = head_at<T>(out, n, 0);
    for (std::int64_t d = 0; d < in.head_dim; ++d) {
      float sum = 0;
      for (std::int64_t h = 0; h < in.heads; ++h) sum += static_cast<float>(head_at<T>(in, n, h)[d]);
      to[d] = static_cast<T>(sum);
    }
  }
}

}  // namespace

void CpuOps::spread_head(Stream& stream, Heads out, Heads in) {
  expect_shared_head("spread_head", "in", in, "out", out);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("spread_head", WorkCategory::memory_bound, [=, &pool] {
    pool.parallel_for(in.rows.dim(0), row_grain(out.heads * out.head_dim), [&](std::int64_t begin, std::int64_t end) {
      in.rows.dtype() == DType::bf16 ? spread<bf16>(out, in, begin, end) : spread<float>(out, in, begin, end);
    });
  });
}

void CpuOps::sum_heads(Stream& stream, Heads out, Heads in) {
  expect_shared_head("sum_heads", "out", out, "in", in);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("sum_heads", WorkCategory::memory_bound, [=, &pool] {
    pool.parallel_for(in.rows.dim(0), row_grain(in.heads * in.head_dim), [&](std::int64_t begin, std::int64_t end) {
      in.rows.dtype() == DType::bf16 ? add_up<bf16>(out, in, begin, end) : add_up<float>(out, in, begin, end);
    });
  });
}

}  // namespace so
