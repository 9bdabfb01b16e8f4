// The AdamW contract of adamw.h in SIMD: one source, compiled once for each instruction set by Highway.
#include "optim/adamw_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/adamw_kernels.cpp"
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
using DHalf = hn::Rebind<std::uint16_t, D>;  // as many 16-bit lanes as D has lanes

HWY_INLINE V load_gradient(D d, const float* g) { return hn::LoadU(d, g); }
HWY_INLINE V load_gradient(D d, const bf16* g) {
  const DU du;
  const auto bits = hn::LoadU(DHalf(), reinterpret_cast<const std::uint16_t*>(g));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
}

template <bool kStream, class DX, class VX, class T>
HWY_INLINE void store(VX v, DX d, T* to) {
#if HWY_ARCH_X86
  if constexpr (kStream) return hn::Stream(v, d, to);
#endif
  hn::StoreU(v, d, to);  // other architectures notice by themselves that whole lines are written
}

template <bool kStream>
HWY_INLINE void store_weights(D d, V p, float* w) {
  store<kStream>(p, d, w);
}
template <bool kStream>
HWY_INLINE void store_weights(D, V p, bf16* w) {
  // bf16::round in lanes. Not the processors' own conversion instructions: some flush subnormals.
  const DU du;
  const auto u = hn::BitCast(du, p);
  const auto upper = hn::ShiftRight<16>(u);
  const auto odd = hn::And(upper, hn::Set(du, 1));
  const auto rounded = hn::ShiftRight<16>(hn::Add(u, hn::Add(odd, hn::Set(du, 0x7fff))));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(p));
  const auto bits = hn::IfThenElse(is_nan, hn::Or(upper, hn::Set(du, 0x40)), rounded);
  store<kStream>(hn::TruncateTo(DHalf(), bits), DHalf(), reinterpret_cast<std::uint16_t*>(w));
}
template <bool kStream>
HWY_INLINE void store_weights(D, V, std::nullptr_t) {}

template <class T>
HWY_INLINE T* advance(T* p, std::size_t i) {
  return p + i;
}
HWY_INLINE std::nullptr_t advance(std::nullptr_t, std::size_t) { return nullptr; }
HWY_INLINE AdamWState advance(const AdamWState& s, std::size_t i) { return {s.master + i, s.m + i, s.v + i}; }

// One array per stream, at the same element.
template <class G, class W, class S>
struct Streams {
  const G* g;
  AdamWStateView in;
  S out;  // AdamWState, or nullptr_t in a preview
  W w;    // float*, bf16* or nullptr_t

  HWY_INLINE Streams at(std::size_t i) const {
    return {g + i, {in.master + i, in.m + i, in.v + i}, advance(out, i), advance(w, i)};
  }
};

// One vector of elements; the operations and their order are the contract in adamw.h. Every load precedes every store,
// so the state may be updated in place.
template <Stores kStores, class G, class W, class S>
HWY_INLINE void update_vector(D d, const AdamWStep& s, const Streams<G, W, S>& x) {
  constexpr bool kStreamState = kStores == kStreamAll;
  constexpr bool kStreamW = kStores != kCached;
  const V g = hn::Mul(hn::Set(d, s.grad_scale), load_gradient(d, x.g));
  const V m0 = hn::LoadU(d, x.in.m);
  const V v0 = hn::LoadU(d, x.in.v);
  const V p0 = hn::LoadU(d, x.in.master);
  const V m = hn::MulAdd(hn::Set(d, s.one_minus_beta1), hn::Sub(g, m0), m0);
  const V v = hn::MulAdd(hn::Mul(hn::Set(d, s.one_minus_beta2), g), g, hn::Mul(hn::Set(d, s.beta2), v0));
  const V denom = hn::MulAdd(hn::Sqrt(v), hn::Set(d, s.inv_sqrt_bias2), hn::Set(d, s.epsilon));
  const V q = hn::Div(m, denom);
  const V p = hn::Sub(p0, hn::MulAdd(hn::Set(d, s.step_size), q, hn::Mul(hn::Set(d, s.decay), p0)));
  if constexpr (!std::is_null_pointer_v<S>) {
    store<kStreamState>(m, d, x.out.m);
    store<kStreamState>(v, d, x.out.v);
    store<kStreamState>(p, d, x.out.master);
  }
  store_weights<kStreamW>(d, p, x.w);
}

// Fewer elements than a vector: the same arithmetic on a copy padded with zeros.
template <class G, class W, class S>
HWY_NOINLINE void update_partial(D d, const AdamWStep& s, const Streams<G, W, S>& x, std::size_t count) {
  constexpr std::size_t kLanes = hn::MaxLanes(D());
  using Weight = std::conditional_t<std::is_null_pointer_v<W>, float, std::remove_pointer_t<W>>;
  alignas(64) float p[kLanes] = {}, m[kLanes] = {}, v[kLanes] = {};
  alignas(64) G g[kLanes] = {};
  alignas(64) Weight w[kLanes] = {};
  std::copy_n(x.g, count, g);
  std::copy_n(x.in.master, count, p);
  std::copy_n(x.in.m, count, m);
  std::copy_n(x.in.v, count, v);
  Streams<G, W, S> copy{g, {p, m, v}, {}, {}};
  if constexpr (!std::is_null_pointer_v<S>) copy.out = {p, m, v};
  if constexpr (!std::is_null_pointer_v<W>) copy.w = w;
  update_vector<kCached>(d, s, copy);
  if constexpr (!std::is_null_pointer_v<S>) {
    std::copy_n(p, count, x.out.master);
    std::copy_n(m, count, x.out.m);
    std::copy_n(v, count, x.out.v);
  }
  if constexpr (!std::is_null_pointer_v<W>) std::copy_n(w, count, x.w);
}

template <class G, class W, class S, Stores kStores>
void update(const Piece& piece) {
  const D d;
  const std::size_t lanes = hn::Lanes(d);
  const AdamWStep s = piece.step;
  Streams<G, W, S> x{static_cast<const G*>(piece.gradient), piece.in, {}, {}};
  if constexpr (!std::is_null_pointer_v<S>) x.out = piece.out;
  if constexpr (!std::is_null_pointer_v<W>) x.w = static_cast<W>(piece.weights);

  const std::size_t count = piece.count, head = piece.head;

  std::size_t i = 0;
  for (; i + lanes <= head; i += lanes) update_vector<kCached>(d, s, x.at(i));
  if (i < head) update_partial(d, s, x.at(i), head - i);
  // No software prefetch: measured at distances of 0.5 to 2 KiB it cost 2 to 15%, the hardware follows these streams.
  i = head;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {  // two vectors: a whole cache line of 32-byte vectors
    update_vector<kStores>(d, s, x.at(i));
    update_vector<kStores>(d, s, x.at(i + lanes));
  }
  for (; i + lanes <= count; i += lanes) update_vector<kCached>(d, s, x.at(i));
  if (i < count) update_partial(d, s, x.at(i), count - i);
  if constexpr (kStores != kCached) hwy::FlushStream();
}

template <class G, class W, class S>
void fill_row(KernelTable::Row& row) {
  row[kCached] = row[kStreamWeights] = update<G, W, S, kCached>;
  if constexpr (!std::is_null_pointer_v<W>) row[kStreamWeights] = update<G, W, S, kStreamWeights>;
  row[kStreamAll] = row[kStreamWeights];
  if constexpr (!std::is_null_pointer_v<S>) row[kStreamAll] = update<G, W, S, kStreamAll>;
}

template <class G>
void fill_gradient_kind(KernelTable& table, Gradients kind) {
  fill_row<G, std::nullptr_t, AdamWState>(table.kernel[kStateAndWeights][kind][kNoWeights]);
  fill_row<G, float*, AdamWState>(table.kernel[kStateAndWeights][kind][kWeightsF32]);
  fill_row<G, bf16*, AdamWState>(table.kernel[kStateAndWeights][kind][kWeightsBf16]);
  fill_row<G, float*, std::nullptr_t>(table.kernel[kWeightsOnly][kind][kWeightsF32]);
  fill_row<G, bf16*, std::nullptr_t>(table.kernel[kWeightsOnly][kind][kWeightsBf16]);
}

// Fills the table of this target and says so, or returns false if the target cannot keep the contract.
bool fill_table(KernelTable& table) {
  fill_gradient_kind<float>(table, kGradientsF32);
  fill_gradient_kind<bf16>(table, kGradientsBf16);
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

template <class G, class W, class S>
void update_scalar(const Piece& piece) {
  const AdamWStep& s = piece.step;
  const G* gradient = static_cast<const G*>(piece.gradient);
  for (std::size_t i = 0; i < piece.count; ++i) {
    const float g = s.grad_scale * static_cast<float>(gradient[i]);
    const float m0 = piece.in.m[i], v0 = piece.in.v[i], p0 = piece.in.master[i];
    const float m = std::fma(s.one_minus_beta1, g - m0, m0);
    const float v = std::fma(s.one_minus_beta2 * g, g, s.beta2 * v0);
    const float denom = std::fma(std::sqrt(v), s.inv_sqrt_bias2, s.epsilon);
    const float p = p0 - std::fma(s.step_size, m / denom, s.decay * p0);
    if constexpr (!std::is_null_pointer_v<S>) {
      piece.out.m[i] = m;
      piece.out.v[i] = v;
      piece.out.master[i] = p;
    }
    if constexpr (!std::is_null_pointer_v<W>) static_cast<W>(piece.weights)[i] = std::remove_pointer_t<W>(p);
  }
}

template <class G>
void fill_scalar(KernelTable& table, Gradients kind) {
  const auto fill = [](KernelTable::Row& row, Kernel kernel) { std::fill(std::begin(row), std::end(row), kernel); };
  fill(table.kernel[kStateAndWeights][kind][kNoWeights], update_scalar<G, std::nullptr_t, AdamWState>);
  fill(table.kernel[kStateAndWeights][kind][kWeightsF32], update_scalar<G, float*, AdamWState>);
  fill(table.kernel[kStateAndWeights][kind][kWeightsBf16], update_scalar<G, bf16*, AdamWState>);
  fill(table.kernel[kWeightsOnly][kind][kWeightsF32], update_scalar<G, float*, std::nullptr_t>);
  fill(table.kernel[kWeightsOnly][kind][kWeightsBf16], update_scalar<G, bf16*, std::nullptr_t>);
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
  table.name = "scalar";
  fill_scalar<float>(table, kGradientsF32);
  fill_scalar<bf16>(table, kGradientsBf16);
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
