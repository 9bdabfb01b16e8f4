// AdamW over moments in 8 bits (optim/moment_blocks.h), a block at a time: its new moments are computed and kept in the
// core's cache, until the largest are known and with them the scales. Included once for each instruction set: only in
// files that use hwy/foreach_target.h.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "optim/cpu/adamw_kernels.h"
#include "optim/moment_blocks.h"
#include "optim/cpu/adamw_vectors-inl.h"

#if defined(SO_OPTIM_ADAMW_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SO_OPTIM_ADAMW_BLOCKS_INL_H_
#undef SO_OPTIM_ADAMW_BLOCKS_INL_H_
#else
#define SO_OPTIM_ADAMW_BLOCKS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace so::adamw {
namespace HWY_NAMESPACE {

#if SO_ADAMW_VECTORS

using VU = hn::Vec<DU>;
using DByte = hn::Rebind<std::uint8_t, D>;  // as many bytes as D has lanes

// Magnitudes, by their codes. Read as a normal number and as a subnormal one, it is the smaller of the two; either is
// infinite where the scale is.
template <class Codes>
HWY_INLINE V code_values(D d, VU codes, float scale) {
  const DU du;
  const V twice = hn::BitCast(d, hn::Add(hn::ShiftLeft<Codes::shift>(codes), hn::Set(du, Codes::smallest_normal)));
  const float least = std::isinf(scale) ? 0 : Codes::least() * scale;
  return hn::Min(hn::Mul(twice, hn::Set(d, 0.5f * scale)), hn::MulSub(twice, hn::Set(d, scale), hn::Set(d, least)));
}

// Written as a normal number and as a subnormal one, it is the larger of the two, as signed numbers. `magnitude` has no
// sign unless it is not a number.
template <class Codes>
HWY_INLINE VU codes_of(D d, V magnitude, const MomentScale& scale, VU dither) {
  const DU du;
  const hn::RebindToSigned<D> whole;
  const V sum = hn::MulAdd(magnitude, hn::Set(d, scale.inverse), hn::Set(d, Codes::least()));
  const VU subnormal = hn::Sub(hn::BitCast(du, sum), hn::Set(du, Codes::smallest_normal)),
           normal = hn::Sub(hn::BitCast(du, magnitude), hn::Set(du, scale.bits_below<Codes>())),
           exact = hn::BitCast(du, hn::Max(hn::BitCast(whole, normal), hn::BitCast(whole, subnormal)));
  return hn::Min(hn::ShiftRight<Codes::shift>(hn::Add(exact, dither)), hn::Set(du, Codes::largest_code));
}

HWY_INLINE VU load_codes(const std::uint8_t* from) { return hn::PromoteTo(DU(), hn::LoadU(DByte(), from)); }

HWY_INLINE V first_moments(D d, const std::uint8_t* codes, float scale) {
  const DU du;
  const VU all = load_codes(codes), sign = hn::Set(du, moment_sign << 24);
  const V magnitude = code_values<FirstMomentCodes>(d, hn::And(all, hn::Set(du, moment_sign - 1)), scale);
  return hn::BitCast(d, hn::OrAnd(hn::BitCast(du, magnitude), hn::ShiftLeft<24>(all), sign));
}
HWY_INLINE V second_moments(D d, const std::uint8_t* codes, float scale) {
  return code_values<SecondMomentCodes>(d, load_codes(codes), scale);
}

// A block or a part of one.
template <class G, class W>
struct BlockStreams {
  const G* g;
  const float* p;
  const std::uint8_t *m, *v;
  float m_scale, v_scale;
  float* new_p;  // null in a preview
  W w;           // float*, bf16* or nullptr_t
};

// New moments of a block, with room for a vector beyond it; and the bits of the largest.
struct NewMoments {
  static constexpr std::size_t room = static_cast<std::size_t>(moment_block) + hn::MaxLanes(D());
  alignas(64) float m[room], v[room];
};

template <class G, class W>
HWY_INLINE void step_in_block(D d, const AdamWStep& s, const BlockStreams<G, W>& x, std::size_t i, V& p, V& m, V& v) {
  m = first_moments(d, x.m + i, x.m_scale);
  v = second_moments(d, x.v + i, x.v_scale);
  p = load(d, x.p + i);
  step_lanes(d, s, load(d, x.g + i), p, m, v);
}

// Elements [i, i + count), fewer than a vector: the same on a copy padded with zeros.
template <bool kState, class G, class W>
HWY_NOINLINE void step_partial(D d, const AdamWStep& s, const BlockStreams<G, W>& x, std::size_t i, std::size_t count,
                               NewMoments& moments) {
  constexpr std::size_t kLanes = hn::MaxLanes(D());
  using Weight = std::conditional_t<std::is_null_pointer_v<W>, float, std::remove_pointer_t<W>>;
  alignas(64) float p[kLanes] = {};
  alignas(64) G g[kLanes] = {};
  alignas(64) Weight w[kLanes] = {};
  alignas(64) std::uint8_t m_codes[kLanes] = {}, v_codes[kLanes] = {};
  std::copy_n(x.g + i, count, g);
  std::copy_n(x.p + i, count, p);
  std::copy_n(x.m + i, count, m_codes);
  std::copy_n(x.v + i, count, v_codes);
  const BlockStreams<G, W> copy{g, p, m_codes, v_codes, x.m_scale, x.v_scale, nullptr, {}};
  V new_p, m, v;
  step_in_block(d, s, copy, 0, new_p, m, v);
  hn::StoreU(m, d, moments.m + i);
  hn::StoreU(v, d, moments.v + i);
  hn::StoreU(new_p, d, p);
  if constexpr (kState) std::copy_n(p, count, x.new_p + i);
  if constexpr (!std::is_null_pointer_v<W>) {
    store<false>(d, new_p, static_cast<Weight*>(w));
    std::copy_n(w, count, x.w + i);
  }
}

// Scales and codes of a block's `count` new moments.
HWY_INLINE void encode_block(D d, std::uint32_t step, NewMoments& moments, std::size_t count, const Moments& out_m,
                             const Moments& out_v) {
  const DU du;
  const std::size_t lanes = hn::Lanes(d);
  VU largest_m = hn::Zero(du), largest_v = largest_m;
  for (std::size_t i = 0; i < count; i += lanes) {
    largest_m = hn::Max(largest_m, hn::BitCast(du, hn::Abs(hn::LoadU(d, moments.m + i))));
    largest_v = hn::Max(largest_v, hn::BitCast(du, hn::LoadU(d, moments.v + i)));
  }
  const MomentScale m_scale(hn::GetLane(hn::MaxOfLanes(du, largest_m))),
      v_scale(hn::GetLane(hn::MaxOfLanes(du, largest_v)));
  *out_m.scales() = m_scale.value;
  *out_v.scales() = v_scale.value;

  // A short block's last vector holds more than it has.
  alignas(64) std::uint8_t short_m[NewMoments::room], short_v[NewMoments::room];
  const bool whole = count == static_cast<std::size_t>(moment_block);
  auto *const m_codes = whole ? out_m.as<std::uint8_t>() : short_m, *const v_codes =
                                                                        whole ? out_v.as<std::uint8_t>() : short_v;
  const VU least_v = hn::Set(du, v_scale.value > 0 ? 1u : 0u);  // code of what is above 0
  for (std::size_t i = 0; i < count; i += lanes) {
    const V m = hn::LoadU(d, moments.m + i), v = hn::LoadU(d, moments.v + i);
    const VU m_bits = hn::BitCast(du, m), v_bits = hn::BitCast(du, v);
    const VU hash =
        hn::Mul(hn::Xor3(m_bits, hn::ShiftLeft<11>(v_bits), hn::Set(du, step)), hn::Set(du, moment_hash_factor));
    const VU m_code =
        codes_of<FirstMomentCodes>(d, hn::Abs(m), m_scale, hn::ShiftRight<32 - FirstMomentCodes::shift>(hash));
    const VU v_code = codes_of<SecondMomentCodes>(d, v, v_scale, hn::ShiftRight<32 - SecondMomentCodes::shift>(hash));
    const VU m_all = hn::OrAnd(m_code, hn::ShiftRight<24>(m_bits), hn::Set(du, moment_sign)),
             v_all = hn::Max(v_code, hn::Min(v_bits, least_v));
    hn::StoreU(hn::TruncateTo(DByte(), m_all), DByte(), m_codes + i);
    hn::StoreU(hn::TruncateTo(DByte(), v_all), DByte(), v_codes + i);
  }
  if (whole) return;
  std::copy_n(m_codes, count, out_m.as<std::uint8_t>());
  std::copy_n(v_codes, count, out_v.as<std::uint8_t>());
}

template <class G, class W, bool kState, Stores kStores>
void update_blocks(const Piece& piece) {
  const D d;
  const std::size_t lanes = hn::Lanes(d);
  const AdamWStep s = piece.step;
  NewMoments moments;
  for (std::size_t begin = 0; begin < piece.count;) {
    const auto at = static_cast<std::ptrdiff_t>(begin);
    const MomentsView in_m = piece.in.m + at, in_v = piece.in.v + at;
    const std::size_t count = std::min(static_cast<std::size_t>(moment_block - in_m.in_block()), piece.count - begin);
    BlockStreams<G, W> x{static_cast<const G*>(piece.gradient) + begin,
                         piece.in.master + begin,
                         in_m.as<const std::uint8_t>(),
                         in_v.as<const std::uint8_t>(),
                         *in_m.scales(),
                         *in_v.scales(),
                         nullptr,
                         {}};
    if constexpr (kState) x.new_p = piece.out.master + begin;
    if constexpr (!std::is_null_pointer_v<W>) x.w = static_cast<W>(piece.weights) + begin;

    std::size_t i = 0;
    for (; i + 2 * lanes <= count; i += 2 * lanes) {
      if (piece.prefetch != 0) {
        prefetch_lines(x.g + i + piece.prefetch, 2 * lanes);
        prefetch_lines(x.p + i + piece.prefetch, 2 * lanes);
        prefetch_lines(x.m + i + piece.prefetch, 2 * lanes);
        prefetch_lines(x.v + i + piece.prefetch, 2 * lanes);
      }
      V p, m, v, p1, m1, v1;
      step_in_block(d, s, x, i, p, m, v);
      step_in_block(d, s, x, i + lanes, p1, m1, v1);
      if constexpr (kState) {
        store_two<false>(d, m, m1, moments.m + i);
        store_two<false>(d, v, v1, moments.v + i);
        store_two<kStores == kStreamAll>(d, p, p1, x.new_p + i);
      }
      if constexpr (!std::is_null_pointer_v<W>) store_two<kStores != kCached>(d, p, p1, x.w + i);
    }
    for (; i < count; i += lanes) step_partial<kState>(d, s, x, i, std::min(lanes, count - i), moments);
    if constexpr (kState) encode_block(d, s.dither, moments, count, piece.out.m + at, piece.out.v + at);
    begin += count;
  }
  if constexpr (kStores != kCached) hwy::FlushStream();
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace so::adamw
HWY_AFTER_NAMESPACE();

#endif
