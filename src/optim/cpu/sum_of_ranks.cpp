// The sum over ranks, in their order.
#include <cstdint>

#include "device/cpu/cpu_device.h"
#include "optim/cpu/cpu_engine_ops.h"
#include "optim/engine_ops_checks.h"

namespace so {
namespace {

constexpr std::int64_t sum_piece_elements = 1 << 15;  // as cast.cpp

template <class T, class Out>
void sum_elements(Tensor out, Accumulate mode, Tensor own, Tensor others, int rank, std::int64_t begin,
                  std::int64_t end) {
  const std::int64_t count = own.size(), ranks = others.dim(0) + 1;
  const T *const mine = own.as<const T>(), *const theirs = others.as<const T>();
  auto* const to = out.as<Out>();
  const auto value = [&](std::int64_t r, std::int64_t i) {
    return static_cast<float>(r == rank ? mine[i] : theirs[(r < rank ? r : r - 1) * count + i]);
  };
  for (std::int64_t i = begin; i < end; ++i) {
    float sum = value(0, i);
    for (std::int64_t r = 1; r < ranks; ++r) sum += value(r, i);
    to[i] = static_cast<Out>(mode == Accumulate::add ? static_cast<float>(to[i]) + sum : sum);
  }
}

}  // namespace

void CpuEngineOps::sum_of_ranks(Stream& stream, std::span<const RankSum> sums, Accumulate mode, int rank) {
  check_sum_of_ranks(sums, rank);
  ThreadPool& pool = cpu(stream).pool();
  for (const RankSum& sum : sums)
    cpu(stream).enqueue("sum_of_ranks", WorkCategory::memory_bound, [=, &pool] {
      pool.parallel_for(sum.own.size(), sum_piece_elements, [&](std::int64_t begin, std::int64_t end) {
        if (sum.out.dtype() == DType::bf16)
          sum_elements<bf16, bf16>(sum.out, mode, sum.own, sum.others, rank, begin, end);
        else if (sum.own.dtype() == DType::bf16)
          sum_elements<bf16, float>(sum.out, mode, sum.own, sum.others, rank, begin, end);
        else
          sum_elements<float, float>(sum.out, mode, sum.own, sum.others, rank, begin, end);
      });
    });
}

}  // namespace so
