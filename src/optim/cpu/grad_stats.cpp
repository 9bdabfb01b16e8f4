// Sum of squares and count of non-finite elements, for the gradient norm and the verdict on a step, in the order that
// optim/engine_ops_checks.h explains.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "device/cpu/cpu_device.h"
#include "optim/cpu/cpu_engine_ops.h"
#include "optim/engine_ops_checks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/cpu/grad_stats.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "base/row_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace so::rows {
namespace HWY_NAMESPACE {

// lanes[j] = sum of x[i]^2 over i = j, j + L, j + 2 L, ...; L a power of two.
template <class T, std::size_t L>
void sum_squares_in_lanes(const T* x, std::int64_t count, double (&lanes)[L]) {
  const hn::CappedTag<double, L / 4> d;
  const hn::Rebind<float, decltype(d)> df;
  const auto vector = static_cast<std::int64_t>(hn::Lanes(d));
  const auto stride = static_cast<std::int64_t>(L);
  const std::int64_t whole = count / stride * stride;
  // Short vectors need several passes over the block, which the cache holds: four vectors of lanes at a time, so that
  // four additions are in flight.
  for (std::int64_t lane = 0; lane < stride; lane += 4 * vector) {
    auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    const auto add_square = [=](auto sum, const T* p) HWY_ATTR {
      const auto v = hn::PromoteTo(d, load(df, p));
      return hn::MulAdd(v, v, sum);
    };
    for (std::int64_t i = lane; i < whole; i += stride) {
      s0 = add_square(s0, x + i);
      s1 = add_square(s1, x + i + vector);
      s2 = add_square(s2, x + i + 2 * vector);
      s3 = add_square(s3, x + i + 3 * vector);
    }
    hn::StoreU(s0, d, lanes + lane);
    hn::StoreU(s1, d, lanes + lane + vector);
    hn::StoreU(s2, d, lanes + lane + 2 * vector);
    hn::StoreU(s3, d, lanes + lane + 3 * vector);
  }
  for (std::int64_t i = whole; i < count; ++i) {
    const auto v = static_cast<double>(static_cast<float>(x[i]));
    lanes[i - whole] += v * v;
  }
}

double sum_squares_of_block(Tensor grad, std::int64_t begin, std::int64_t end) {
  constexpr std::size_t lane_count = StatsOrder::lanes;
  double lanes[lane_count];
  if (grad.dtype() == DType::bf16)
    sum_squares_in_lanes(grad.as<bf16>() + begin, end - begin, lanes);
  else
    sum_squares_in_lanes(grad.as<float>() + begin, end - begin, lanes);
  for (std::size_t half = lane_count / 2; half > 0; half /= 2)
    for (std::size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  return lanes[0];
}

}  // namespace HWY_NAMESPACE
}  // namespace so::rows
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so {
namespace rows {
namespace {

HWY_EXPORT(sum_squares_of_block);

constexpr std::int64_t blocks_per_piece = 16;

template <class T>
std::uint64_t count_non_finite(const T* x, std::int64_t count) {
  std::uint64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) found += std::isfinite(static_cast<float>(x[i])) ? 0 : 1;
  return found;
}

// `parts`: room for a block's each.
GradStats grad_stats(ThreadPool& pool, const Tensor& grad, GradStats* parts) {
  const std::int64_t size = grad.size(), blocks = stats_blocks(size);
  pool.parallel_for(blocks, blocks_per_piece, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t b = first; b < last; ++b) {
      const std::int64_t begin = b * StatsOrder::block, end = std::min(size, begin + StatsOrder::block);
      GradStats& part = parts[b];
      part = {HWY_DYNAMIC_DISPATCH(sum_squares_of_block)(grad, begin, end), 0};
      if (std::isfinite(part.sum_of_squares)) continue;
      part.non_finite = grad.dtype() == DType::bf16 ? count_non_finite(grad.as<bf16>() + begin, end - begin)
                                                    : count_non_finite(grad.as<float>() + begin, end - begin);
    }
  });
  constexpr std::size_t lane_count = StatsOrder::block_lanes;
  std::vector<double> lanes(lane_count);
  GradStats total;
  for (std::int64_t b = 0; b < blocks; ++b) {
    lanes[static_cast<std::size_t>(b) % lane_count] += parts[b].sum_of_squares;
    total.non_finite += parts[b].non_finite;
  }
  for (std::size_t half = lane_count / 2; half > 0; half /= 2)
    for (std::size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  total.sum_of_squares = lanes[0];
  return total;
}

}  // namespace
}  // namespace rows

void CpuEngineOps::grad_stats(Stream& stream, std::span<const StatsOf> gradients, Tensor scratch) {
  check_grad_stats(gradients, scratch);
  ThreadPool& pool = cpu(stream).pool();
  auto* parts = static_cast<GradStats*>(scratch.data());
  for (const auto& [out, grad] : gradients)
    cpu(stream).enqueue("grad_stats", WorkCategory::memory_bound,
                        [=, &pool, out = out, grad = grad] { *out = rows::grad_stats(pool, grad, parts); });
}

}  // namespace so
#endif
