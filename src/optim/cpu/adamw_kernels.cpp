// The AdamW contract of adamw.h in SIMD: one source, compiled once for each instruction set by Highway.
#include "optim/cpu/adamw_kernels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "optim/cpu/adamw_kernels.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "optim/cpu/adamw_blocks-inl.h"
#include "optim/cpu/adamw_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace so::adamw {
namespace HWY_NAMESPACE {

#if SO_ADAMW_VECTORS

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

// New p, m and v of one vector of elements.
template <class X>
HWY_INLINE void compute(D d, const AdamWStep& s, const X& x, V& p, V& m, V& v) {
  m = load(d, x.in.m);
  v = load(d, x.in.v);
  p = load(d, x.in.master);
  step_lanes(d, s, load(d, x.g), p, m, v);
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

// The same for moments in 8 bits.
template <class G>
void fill_blocks(KernelTable& table, Gradients g) {
  const auto fill = []<class W, bool kState>(KernelTable::Row& row) {
    row[kCached] = row[kStreamWeights] = row[kStreamAll] = update_blocks<G, W, kState, kCached>;
    if constexpr (!std::is_null_pointer_v<W>)
      row[kStreamWeights] = row[kStreamAll] = update_blocks<G, W, kState, kStreamWeights>;
    if constexpr (kState) row[kStreamAll] = update_blocks<G, W, kState, kStreamAll>;
  };
  auto& update = table.kernel[kStateAndWeights][kMomentsU8][g];
  auto& preview = table.kernel[kWeightsOnly][kMomentsU8][g];
  fill.template operator()<std::nullptr_t, true>(update[kNoWeights]);
  fill.template operator()<float*, true>(update[kWeightsF32]);
  fill.template operator()<bf16*, true>(update[kWeightsBf16]);
  fill.template operator()<float*, false>(preview[kWeightsF32]);
  fill.template operator()<bf16*, false>(preview[kWeightsBf16]);
}

// Fills the table of this target and says so, or returns false if the target cannot keep the contract.
bool fill_table(KernelTable& table) {
  table.lanes = hn::Lanes(D());
  fill_kinds<float, float>(table, kGradientsF32, kMomentsF32);
  fill_kinds<float, bf16>(table, kGradientsF32, kMomentsBf16);
  fill_kinds<bf16, float>(table, kGradientsBf16, kMomentsF32);
  fill_kinds<bf16, bf16>(table, kGradientsBf16, kMomentsBf16);
  fill_blocks<float>(table, kGradientsF32);
  fill_blocks<bf16>(table, kGradientsBf16);
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

struct Element {
  float p, m, v;
};

Element step_element(const AdamWStep& s, float gradient, Element old) {
  const float g = s.grad_scale * gradient;
  const float m = std::fma(s.one_minus_beta1, g - old.m, old.m);
  const float v = std::fma(s.one_minus_beta2 * g, g, s.beta2 * old.v);
  const float denom = std::fma(std::sqrt(v), s.inv_sqrt_bias2, s.epsilon);
  return {old.p - std::fma(s.step_size, m / denom, s.decay * old.p), m, v};
}

template <class G, class M, class W, bool kState>
void update_scalar(const Piece& piece) {
  const G* gradient = static_cast<const G*>(piece.gradient);
  const M *first = piece.in.m.as<const M>(), *second = piece.in.v.as<const M>();
  M* const new_first = kState ? piece.out.m.as<M>() : nullptr;
  M* const new_second = kState ? piece.out.v.as<M>() : nullptr;
  for (std::size_t i = 0; i < piece.count; ++i) {
    const Element updated =
        step_element(piece.step, static_cast<float>(gradient[i]),
                     {piece.in.master[i], static_cast<float>(first[i]), static_cast<float>(second[i])});
    if constexpr (kState) {
      new_first[i] = M(updated.m);
      new_second[i] = M(updated.v);
      piece.out.master[i] = updated.p;
    }
    if constexpr (!std::is_null_pointer_v<W>) static_cast<W>(piece.weights)[i] = std::remove_pointer_t<W>(updated.p);
  }
}

// Codes of a block's moments, and its scales.
void encode_scalar(std::uint32_t step, std::span<const float> first, std::span<const float> second,
                   const Moments& out_first, const Moments& out_second) {
  const MomentScale first_scale(largest_magnitude(first)), second_scale(largest_magnitude(second));
  *out_first.scales() = first_scale.value;
  *out_second.scales() = second_scale.value;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const std::uint32_t hash =
        moment_hash(std::bit_cast<std::uint32_t>(first[i]), std::bit_cast<std::uint32_t>(second[i]), step);
    out_first.as<std::uint8_t>()[i] = first_moment_code(first[i], first_scale, moment_dither<FirstMomentCodes>(hash));
    out_second.as<std::uint8_t>()[i] =
        second_moment_code(second[i], second_scale, moment_dither<SecondMomentCodes>(hash));
  }
}

template <class G, class W, bool kState>
void update_blocks_scalar(const Piece& piece) {
  const G* gradient = static_cast<const G*>(piece.gradient);
  std::size_t begin = 0;
  while (begin < piece.count) {
    const auto at = static_cast<std::ptrdiff_t>(begin);
    const MomentsView first = piece.in.m + at, second = piece.in.v + at;
    const std::size_t count = std::min(static_cast<std::size_t>(moment_block - first.in_block()), piece.count - begin);
    std::array<float, moment_block> new_first, new_second;
    for (std::size_t i = 0; i < count; ++i) {
      const Element old{piece.in.master[begin + i],
                        first_moment_value(first.as<const std::uint8_t>()[i], *first.scales()),
                        second_moment_value(second.as<const std::uint8_t>()[i], *second.scales())};
      const Element updated = step_element(piece.step, static_cast<float>(gradient[begin + i]), old);
      new_first[i] = updated.m;
      new_second[i] = updated.v;
      if constexpr (kState) piece.out.master[begin + i] = updated.p;
      if constexpr (!std::is_null_pointer_v<W>)
        static_cast<W>(piece.weights)[begin + i] = std::remove_pointer_t<W>(updated.p);
    }
    if constexpr (kState)
      encode_scalar(piece.step.dither, std::span(new_first).first(count), std::span(new_second).first(count),
                    piece.out.m + at, piece.out.v + at);
    begin += count;
  }
}

void fill(KernelTable::Row& row, Kernel kernel) { std::fill(std::begin(row), std::end(row), kernel); }

template <class G, class M>
void fill_scalar(KernelTable& table, Gradients g, MomentKinds m) {
  fill(table.kernel[kStateAndWeights][m][g][kNoWeights], update_scalar<G, M, std::nullptr_t, true>);
  fill(table.kernel[kStateAndWeights][m][g][kWeightsF32], update_scalar<G, M, float*, true>);
  fill(table.kernel[kStateAndWeights][m][g][kWeightsBf16], update_scalar<G, M, bf16*, true>);
  fill(table.kernel[kWeightsOnly][m][g][kWeightsF32], update_scalar<G, M, float*, false>);
  fill(table.kernel[kWeightsOnly][m][g][kWeightsBf16], update_scalar<G, M, bf16*, false>);
}

template <class G>
void fill_blocks_scalar(KernelTable& table, Gradients g) {
  auto& update = table.kernel[kStateAndWeights][kMomentsU8][g];
  auto& preview = table.kernel[kWeightsOnly][kMomentsU8][g];
  fill(update[kNoWeights], update_blocks_scalar<G, std::nullptr_t, true>);
  fill(update[kWeightsF32], update_blocks_scalar<G, float*, true>);
  fill(update[kWeightsBf16], update_blocks_scalar<G, bf16*, true>);
  fill(preview[kWeightsF32], update_blocks_scalar<G, float*, false>);
  fill(preview[kWeightsBf16], update_blocks_scalar<G, bf16*, false>);
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
  fill_blocks_scalar<float>(table, kGradientsF32);
  fill_blocks_scalar<bf16>(table, kGradientsBf16);
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
