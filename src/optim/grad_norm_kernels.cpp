// The summation order of grad_norm.h in SIMD: one source, compiled once for each instruction set by Highway.
#include "optim/grad_norm_kernels.h"

#include <algorithm>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/grad_norm_kernels.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace so::grad_norm {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// At most 8 lanes, so that four vectors fit in the 32 lanes of the order whatever the vector length.
using D = hn::CappedTag<double, 8>;
using V = hn::Vec<D>;

HWY_INLINE V load(D d, const float* x) { return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), x)); }
HWY_INLINE V load(D d, const bf16* x) {
  const hn::Rebind<float, D> df;
  const hn::Rebind<std::uint32_t, D> du;
  const auto bits = hn::LoadU(hn::Rebind<std::uint16_t, D>(), reinterpret_cast<const std::uint16_t*>(x));
  return hn::PromoteTo(d, hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(du, bits))));
}

template <class T>
HWY_INLINE V add_square(D d, V sum, const T* x) {
  const V value = load(d, x);
  return hn::MulAdd(value, value, sum);
}

// Narrow vectors go over the chunk several times, four vectors of lanes a time: it stays in the first-level cache, and
// the sums stay in registers on every instruction set.
template <class T>
double sum_chunk(const T* x, std::size_t count) {
  const D d;
  const std::size_t n = hn::Lanes(d);
  const std::size_t rows = count / kLanes;
  T rest[kLanes] = {};
  std::copy(x + rows * kLanes, x + count, rest);

  alignas(64) double lanes[kLanes];
  for (std::size_t j = 0; j < kLanes; j += 4 * n) {
    V sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
    for (std::size_t row = 0; row <= rows; ++row) {
      const T* at = (row < rows ? x + row * kLanes : rest) + j;
      sum0 = add_square(d, sum0, at);
      sum1 = add_square(d, sum1, at + n);
      sum2 = add_square(d, sum2, at + 2 * n);
      sum3 = add_square(d, sum3, at + 3 * n);
    }
    hn::StoreU(sum0, d, lanes + j);
    hn::StoreU(sum1, d, lanes + j + n);
    hn::StoreU(sum2, d, lanes + j + 2 * n);
    hn::StoreU(sum3, d, lanes + j + 3 * n);
  }
  for (std::size_t width = kLanes / 2; width > 0; width /= 2)
    for (std::size_t j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  return lanes[0];
}

void fill_table(KernelTable& table) {
  table.chunk_f32 = sum_chunk<float>;
  table.chunk_bf16 = sum_chunk<bf16>;
}

}  // namespace HWY_NAMESPACE
}  // namespace so::grad_norm
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so::grad_norm {
namespace {

HWY_EXPORT(fill_table);

std::vector<KernelTable> make_tables() {
  std::vector<KernelTable> tables;
  KernelTable table;
#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0  // a build for one instruction set only, e.g. with -march=native
  table.name = hwy::TargetName(HWY_TARGETS);
  HWY_STATIC_DISPATCH(fill_table)(table);
  tables.push_back(table);
#else
  // Highway lists the best target first. Its own dispatch state is left alone: other code may be dispatching just now.
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::ChosenTarget chosen;
    chosen.Update(target);
    table.name = hwy::TargetName(target);
    HWY_DISPATCH_TABLE(fill_table)[chosen.GetIndex()](table);
    tables.push_back(table);
  }
#endif
  return tables;
}

}  // namespace

const std::vector<KernelTable>& kernel_tables() {
  static const std::vector<KernelTable> tables = make_tables();
  return tables;
}

}  // namespace so::grad_norm
#endif  // HWY_ONCE
