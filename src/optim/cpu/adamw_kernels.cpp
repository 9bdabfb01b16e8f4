// The AdamW contract of adamw.h in SIMD: one source, compiled once for each instruction set by Highway.
#include "optim/cpu/adamw_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/cpu/adamw_kernels.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace so::adamw {
namespace HWY_NAMESPACE {

// The contract needs a multiply-add that rounds once, correctly rounded division and square root, and subnormals; the
// vectors of 32-bit Arm lack the latter two.
#if HWY_NATIVE_FMA && !HWY_ARCH_ARM_V7

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using DU = hn::RebindToUnsigned<D>;
using DHalf = hn::Rebind<std::uint16_t, D>;      // as many 16-bit lanes as D has lanes
using DTwo = hn::Repartition<std::uint16_t, D>;  // twice as many: a whole vector

HWY_INLINE V load(D d, const float* from) { return hn::LoadU(d, from); }
HWY_INLINE V load(D d, const bf16* from) {
  const DU du;
  const auto bits = hn::LoadU(DHalf(), reinterpret_cast<const std::uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
}

template <bool kStream, class DX, class VX, class T>
HWY_INLINE void store_lanes(VX v, DX d, T* to) {
#if HWY_ARCH_X86
  if constexpr (kStream) return hn::Stream(v, d, to);
#endif
  hn::StoreU(v, d, to);  // other architectures notice by themselves that whole lines are written
}

// bf16::round of a result of arithmetic, whose NaNs are quiet already; in the lanes' upper halves. Not the processors'
// own conversion instructions: some flush subnormals.
HWY_INLINE hn::Vec<DU> round_to_bf16(V x) {
  const DU du;
  const auto u = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1));
  const auto rounded = hn::Add(u, hn::Add(odd, hn::Set(du, 0x7fff)));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), u, rounded);
}

template <bool kStream>
HWY_INLINE void store(D d, V x, float* to) {
  store_lanes<kStream>(x, d, to);
}
template <bool kStream>
HWY_INLINE void store(D, V x, bf16* to) {
  const auto bits = hn::TruncateTo(DHalf(), hn::ShiftRight<16>(round_to_bf16(x)));
  store_lanes<kStream>(bits, DHalf(), reinterpret_cast<std::uint16_t*>(to));
}
template <bool kStream>
HWY_INLINE void store(D, V, std::nullptr_t) {}

// Two vectors, x before y: of bf16 they make a whole one, so that past the cache whole lines are stored where vectors
// are lines.
template <bool kStream>
HWY_INLINE void store_two(D d, V x, V y, float* to) {
  store_lanes<kStream>(x, d, to);
  store_lanes<kStream>(y, d, to + hn::Lanes(d));
}
template <bool kStream>
HWY_INLINE void store_two(D, V x, V y, bf16* to) {
  const DTwo two;
  const auto bits = hn::ConcatOdd(two, hn::BitCast(two, round_to_bf16(y)), hn::BitCast(two, round_to_bf16(x)));
  store_lanes<kStream>(bits, two, reinterpret_cast<std::uint16_t*>(to));
}
template <bool kStream>
HWY_INLINE void store_two(D, V, V, std::nullptr_t) {}

// A state's arrays with the moments' type M, float or bf16, const where they are only read.
template <class F, class M>
struct Arrays {
  F* master;
  M *m, *v;
};

template <class T>
HWY_INLINE T* advance(T* p, std::size_t i) {
  return p + i;
}
HWY_INLINE std::nullptr_t advance(std::nullptr_t, std::size_t) { return nullptr; }
template <class F, class M>
HWY_INLINE Arrays<F, M> advance(const Arrays<F, M>& s, std::size_t i) {
  return {s.master + i, s.m + i, s.v + i};
}

// One array per stream, at the same element.
template <class G, class M, class W, class S>
struct Streams {
  const G* g;
  Arrays<const float, const M> in;
  S out;  // Arrays<float, M>, or nullptr_t in a preview
  W w;    // float*, bf16* or nullptr_t

  HWY_INLINE Streams at(std::size_t i) const { return {g + i, advance(in, i), advance(out, i), advance(w, i)}; }
};

// New p, m and v of one vector of elements; the operations and their order are the contract in adamw.h.
template <class X>
HWY_INLINE void compute(D d, const AdamWStep& s, const X& x, V& p, V& m, V& v) {
  const V g = hn::Mul(hn::Set(d, s.grad_scale), load(d, x.g));
  const V m0 = load(d, x.in.m);
  const V v0 = load(d, x.in.v);
  const V p0 = load(d, x.in.master);
  m = hn::MulAdd(hn::Set(d, s.one_minus_beta1), hn::Sub(g, m0), m0);
  v = hn::MulAdd(hn::Mul(hn::Set(d, s.one_minus_beta2), g), g, hn::Mul(hn::Set(d, s.beta2), v0));
  const V denom = hn::MulAdd(hn::Sqrt(v), hn::Set(d, s.inv_sqrt_bias2), hn::Set(d, s.epsilon));
  const V q = hn::Div(m, denom);
  p = hn::Sub(p0, hn::MulAdd(hn::Set(d, s.step_size), q, hn::Mul(hn::Set(d, s.decay), p0)));
}

// One vector of elements, through the cache. Every load precedes every store, so the state may be updated in place.
template <class G, class M, class W, class S>
HWY_INLINE void update_vector(D d, const AdamWStep& s, const Streams<G, M, W, S>& x) {
  V p, m, v;
  compute(d, s, x, p, m, v);
  if constexpr (!std::is_null_pointer_v<S>) {
    store<false>(d, m, x.out.m);
    store<false>(d, v, x.out.v);
    store<false>(d, p, x.out.master);
  }
  store<false>(d, p, x.w);
}

// Two vectors: a whole cache line of 32-byte ones.
template <Stores kStores, class G, class M, class W, class S>
HWY_INLINE void update_two(D d, const AdamWStep& s, const Streams<G, M, W, S>& x) {
  constexpr bool kStreamState = kStores == kStreamAll;
  V p, m, v, p1, m1, v1;
  compute(d, s, x, p, m, v);
  compute(d, s, x.at(hn::Lanes(d)), p1, m1, v1);
  if constexpr (!std::is_null_pointer_v<S>) {
    store_two<kStreamState>(d, m, m1, x.out.m);
    store_two<kStreamState>(d, v, v1, x.out.v);
    store_two<kStreamState>(d, p, p1, x.out.master);
  }
  store_two<kStores != kCached>(d, p, p1, x.w);
}

// Prefetches the cache lines of these elements.
template <class T>
HWY_INLINE void prefetch_lines(const T* from, std::size_t elements) {
  constexpr std::size_t line = 64;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(from);
  for (std::size_t i = 0; i < elements * sizeof(T); i += line) hwy::Prefetch(bytes + i);
}

// Prefetches what the update of these elements will read. A prefetch is a hint that may name any address, so nothing is
// read beyond the arrays' ends.
template <class G, class M, class W, class S>
HWY_INLINE void prefetch(const Streams<G, M, W, S>& x, std::size_t ahead, std::size_t elements) {
  prefetch_lines(x.g + ahead, elements);
  prefetch_lines(x.in.m + ahead, elements);
  prefetch_lines(x.in.v + ahead, elements);
  prefetch_lines(x.in.master + ahead, elements);
}

// Fewer elements than a vector: the same arithmetic on a copy padded with zeros.
template <class G, class M, class W, class S>
HWY_NOINLINE void update_partial(D d, const AdamWStep& s, const Streams<G, M, W, S>& x, std::size_t count) {
  constexpr std::size_t kLanes = hn::MaxLanes(D());
  using Weight = std::conditional_t<std::is_null_pointer_v<W>, float, std::remove_pointer_t<W>>;
  alignas(64) float p[kLanes] = {};
  alignas(64) M m[kLanes] = {}, v[kLanes] = {};
  alignas(64) G g[kLanes] = {};
  alignas(64) Weight w[kLanes] = {};
  std::copy_n(x.g, count, g);
  std::copy_n(x.in.master, count, p);
  std::copy_n(x.in.m, count, m);
  std::copy_n(x.in.v, count, v);
  Streams<G, M, W, S> copy{g, {p, m, v}, {}, {}};
  if constexpr (!std::is_null_pointer_v<S>) copy.out = {p, m, v};
  if constexpr (!std::is_null_pointer_v<W>) copy.w = w;
  update_vector(d, s, copy);
  if constexpr (!std::is_null_pointer_v<S>) {
    std::copy_n(p, count, x.out.master);
    std::copy_n(m, count, x.out.m);
    std::copy_n(v, count, x.out.v);
  }
  if constexpr (!std::is_null_pointer_v<W>) std::copy_n(w, count, x.w);
}

template <class G, class M, class W, class S, Stores kStores>
void update(const Piece& piece) {
  const D d;
  const std::size_t lanes = hn::Lanes(d);
  const AdamWStep s = piece.step;
  const AdamWStateView& in = piece.in;
  const AdamWState& out = piece.out;
  Streams<G, M, W, S> x{
      static_cast<const G*>(piece.gradient), {in.master, in.m.as<const M>(), in.v.as<const M>()}, {}, {}};
  if constexpr (!std::is_null_pointer_v<S>) x.out = {out.master, out.m.as<M>(), out.v.as<M>()};
  if constexpr (!std::is_null_pointer_v<W>) x.w = static_cast<W>(piece.weights);

  const std::size_t count = piece.count, head = piece.head;

  std::size_t i = 0;
  for (; i + lanes <= head; i += lanes) update_vector(d, s, x.at(i));
  if (i < head) update_partial(d, s, x.at(i), head - i);
  i = head;
  const std::size_t ahead = piece.prefetch;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    if (ahead != 0) prefetch(x.at(i), ahead, 2 * lanes);
    update_two<kStores>(d, s, x.at(i));
  }
  for (; i + lanes <= count; i += lanes) update_vector(d, s, x.at(i));
  if (i < count) update_partial(d, s, x.at(i), count - i);
  if constexpr (kStores != kCached) hwy::FlushStream();
}

template <class G, class M, class W, class S>
void fill_row(KernelTable::Row& row) {
  row[kCached] = row[kStreamWeights] = update<G, M, W, S, kCached>;
  if constexpr (!std::is_null_pointer_v<W>) row[kStreamWeights] = update<G, M, W, S, kStreamWeights>;
  row[kStreamAll] = row[kStreamWeights];
  if constexpr (!std::is_null_pointer_v<S>) row[kStreamAll] = update<G, M, W, S, kStreamAll>;
}

template <class G, class M>
void fill_kinds(KernelTable& table, Gradients g, MomentKinds m) {
  using State = Arrays<float, M>;
  fill_row<G, M, std::nullptr_t, State>(table.kernel[kStateAndWeights][m][g][kNoWeights]);
  fill_row<G, M, float*, State>(table.kernel[kStateAndWeights][m][g][kWeightsF32]);
  fill_row<G, M, bf16*, State>(table.kernel[kStateAndWeights][m][g][kWeightsBf16]);
  fill_row<G, M, float*, std::nullptr_t>(table.kernel[kWeightsOnly][m][g][kWeightsF32]);
  fill_row<G, M, bf16*, std::nullptr_t>(table.kernel[kWeightsOnly][m][g][kWeightsBf16]);
}

// Fills the table of this target and says so, or returns false if the target cannot keep the contract.
bool fill_table(KernelTable& table) {
  table.lanes = hn::Lanes(D());
  fill_kinds<float, float>(table, kGradientsF32, kMomentsF32);
  fill_kinds<float, bf16>(table, kGradientsF32, kMomentsBf16);
  fill_kinds<bf16, float>(table, kGradientsBf16, kMomentsF32);
  fill_kinds<bf16, bf16>(table, kGradientsBf16, kMomentsBf16);
  return true;
}

#else

bool fill_table(KernelTable&) { return false; }

#endif

}  // namespace HWY_NAMESPACE
}  // namespace so::adamw
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so::adamw {
namespace {

HWY_EXPORT(fill_table);

template <class G, class M, class W, bool kState>
void update_scalar(const Piece& piece) {
  const AdamWStep& s = piece.step;
  const G* gradient = static_cast<const G*>(piece.gradient);
  const M *first = piece.in.m.as<const M>(), *second = piece.in.v.as<const M>();
  M* const new_first = kState ? piece.out.m.as<M>() : nullptr;
  M* const new_second = kState ? piece.out.v.as<M>() : nullptr;
  for (std::size_t i = 0; i < piece.count; ++i) {
    const float g = s.grad_scale * static_cast<float>(gradient[i]);
    const float m0 = static_cast<float>(first[i]), v0 = static_cast<float>(second[i]), p0 = piece.in.master[i];
    const float m = std::fma(s.one_minus_beta1, g - m0, m0);
    const float v = std::fma(s.one_minus_beta2 * g, g, s.beta2 * v0);
    const float denom = std::fma(std::sqrt(v), s.inv_sqrt_bias2, s.epsilon);
    const float p = p0 - std::fma(s.step_size, m / denom, s.decay * p0);
    if constexpr (kState) {
      new_first[i] = M(m);
      new_second[i] = M(v);
      piece.out.master[i] = p;
    }
    if constexpr (!std::is_null_pointer_v<W>) static_cast<W>(piece.weights)[i] = std::remove_pointer_t<W>(p);
  }
}

template <class G, class M>
void fill_scalar(KernelTable& table, Gradients g, MomentKinds m) {
  const auto fill = [](KernelTable::Row& row, Kernel kernel) { std::fill(std::begin(row), std::end(row), kernel); };
  fill(table.kernel[kStateAndWeights][m][g][kNoWeights], update_scalar<G, M, std::nullptr_t, true>);
  fill(table.kernel[kStateAndWeights][m][g][kWeightsF32], update_scalar<G, M, float*, true>);
  fill(table.kernel[kStateAndWeights][m][g][kWeightsBf16], update_scalar<G, M, bf16*, true>);
  fill(table.kernel[kWeightsOnly][m][g][kWeightsF32], update_scalar<G, M, float*, false>);
  fill(table.kernel[kWeightsOnly][m][g][kWeightsBf16], update_scalar<G, M, bf16*, false>);
}

std::vector<KernelTable> make_tables() {
  std::vector<KernelTable> tables;
  KernelTable table;
#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0  // a build for one instruction set only, e.g. with -march=native
  table.name = hwy::TargetName(HWY_TARGETS);
  if (HWY_STATIC_DISPATCH(fill_table)(table)) tables.push_back(table);
#else
  // Highway lists the best target first. Its own dispatch state is left alone: other code may be dispatching just now.
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::ChosenTarget chosen;
    chosen.Update(target);
    table.name = hwy::TargetName(target);
    if (HWY_DISPATCH_TABLE(fill_table)[chosen.GetIndex()](table)) tables.push_back(table);
  }
#endif
  table = {};
  table.name = "scalar";
  fill_scalar<float, float>(table, kGradientsF32, kMomentsF32);
  fill_scalar<float, bf16>(table, kGradientsF32, kMomentsBf16);
  fill_scalar<bf16, float>(table, kGradientsBf16, kMomentsF32);
  fill_scalar<bf16, bf16>(table, kGradientsBf16, kMomentsBf16);
  tables.push_back(table);
  return tables;
}

}  // namespace

const std::vector<KernelTable>& kernel_tables() {
  static const std::vector<KernelTable> tables = make_tables();
  return tables;
}

}  // namespace so::adamw
#endif  // HWY_ONCE
