#include "ops/cpu/delta_columns.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/delta_columns.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace so::delta_columns {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// A block is two vectors wide: enough that the sums over a column's elements, which wait for each other, keep the
// multipliers busy, and few enough that a chunk's states stay in the second-level cache.
const hn::ScalableTag<float> d;
std::int64_t lanes() { return static_cast<std::int64_t>(hn::Lanes(d)); }
std::int64_t block_width() { return 2 * lanes(); }

using Vec = hn::Vec<hn::ScalableTag<float>>;
HWY_INLINE float sum_of(Vec v) { return hn::GetLane(hn::SumOfLanes(d, v)); }

// Adds the sums over the lanes of four vectors to sums[4 * sum_parts()], where each is left in sum_parts() parts: to
// sum all lanes at once would cost as much as the products whose sum this is.
#if HWY_HAVE_SCALABLE || HWY_TARGET == HWY_SCALAR
std::int64_t sum_parts() { return 1; }
HWY_INLINE void add_sums(Vec a, Vec b, Vec c, Vec e, float* sums) {
  sums[0] += sum_of(a);
  sums[1] += sum_of(b);
  sums[2] += sum_of(c);
  sums[3] += sum_of(e);
}
#else
std::int64_t sum_parts() { return lanes() / 4; }
// Sums of neighbours: a's in the lower half, b's in the upper.
HWY_INLINE Vec add_neighbours(Vec a, Vec b) { return hn::Add(hn::ConcatEven(d, b, a), hn::ConcatOdd(d, b, a)); }
HWY_INLINE void add_sums(Vec a, Vec b, Vec c, Vec e, float* sums) {
  hn::StoreU(hn::Add(hn::LoadU(d, sums), add_neighbours(add_neighbours(a, b), add_neighbours(c, e))), d, sums);
}
#endif

// Each token's update of the state is also the pass that reads it for the next.
void forward(const DeltaTokens& t, float* HWY_RESTRICT state, const float* v, float* out) {
  const std::int64_t half = lanes(), width = 2 * half;
  auto read0 = hn::Zero(d), read1 = read0, asked0 = read0, asked1 = read0;  // S^T k and S^T q
  for (std::int64_t i = 0; i < t.k_dim; ++i) {
    const auto k = hn::Set(d, t.k[i]), q = hn::Set(d, t.q[i]);
    const auto s0 = hn::Load(d, state + i * width), s1 = hn::Load(d, state + i * width + half);
    read0 = hn::MulAdd(s0, k, read0);
    read1 = hn::MulAdd(s1, k, read1);
    asked0 = hn::MulAdd(s0, q, asked0);
    asked1 = hn::MulAdd(s1, q, asked1);
  }
  for (std::int64_t n = 0; n < t.count; ++n) {
    const auto left = hn::Set(d, t.left[n]), rate = hn::Set(d, t.rates[n]), qk = hn::Set(d, t.qk[n]);
    const auto u0 = hn::Mul(rate, hn::NegMulAdd(left, read0, hn::Load(d, v + n * t.pitch)));
    const auto u1 = hn::Mul(rate, hn::NegMulAdd(left, read1, hn::Load(d, v + n * t.pitch + half)));
    hn::Store(hn::MulAdd(left, asked0, hn::Mul(qk, u0)), d, out + n * t.pitch);
    hn::Store(hn::MulAdd(left, asked1, hn::Mul(qk, u1)), d, out + n * t.pitch + half);
    const std::int64_t next = std::min(n + 1, t.count - 1);  // the last token's next is read by nobody
    const float *key = t.k + n * t.k_dim, *next_key = t.k + next * t.k_dim, *next_query = t.q + next * t.k_dim;
    read0 = read1 = asked0 = asked1 = hn::Zero(d);
    for (std::int64_t i = 0; i < t.k_dim; ++i) {
      float* row = state + i * width;
      const auto k = hn::Set(d, key[i]), next_k = hn::Set(d, next_key[i]), next_q = hn::Set(d, next_query[i]);
      const auto s0 = hn::MulAdd(k, u0, hn::Mul(left, hn::Load(d, row)));
      const auto s1 = hn::MulAdd(k, u1, hn::Mul(left, hn::Load(d, row + half)));
      hn::Store(s0, d, row);
      hn::Store(s1, d, row + half);
      read0 = hn::MulAdd(s0, next_k, read0);
      read1 = hn::MulAdd(s1, next_k, read1);
      asked0 = hn::MulAdd(s0, next_q, asked0);
      asked1 = hn::MulAdd(s1, next_q, asked1);
    }
  }
}

// T of a token is made from that of the token before: T = g (T + k u^T), with the g of this token, the rest of that.
void remake(const DeltaTokens& t, const float* HWY_RESTRICT state, const float* v, float* HWY_RESTRICT states,
            float* HWY_RESTRICT errors) {
  const std::int64_t half = lanes(), width = 2 * half;
  const float *from = state, *last_key = t.k;  // of the token before; the first has none, so its u is 0
  auto u0 = hn::Zero(d), u1 = u0;
  for (std::int64_t n = 0; n < t.count; ++n) {
    const auto left = hn::Set(d, t.left[n]), rate = hn::Set(d, t.rates[n]);
    const float* key = t.k + n * t.k_dim;
    float* to = states + n * t.k_dim * width;
    auto read0 = hn::Zero(d), read1 = read0;  // T^T k
    for (std::int64_t i = 0; i < t.k_dim; ++i) {
      const auto k = hn::Set(d, key[i]), last_k = hn::Set(d, last_key[i]);
      const auto t0 = hn::Mul(left, hn::MulAdd(last_k, u0, hn::Load(d, from + i * width)));
      const auto t1 = hn::Mul(left, hn::MulAdd(last_k, u1, hn::Load(d, from + i * width + half)));
      hn::Store(t0, d, to + i * width);
      hn::Store(t1, d, to + i * width + half);
      read0 = hn::MulAdd(t0, k, read0);
      read1 = hn::MulAdd(t1, k, read1);
    }
    const auto e0 = hn::Sub(hn::Load(d, v + n * t.pitch), read0);
    const auto e1 = hn::Sub(hn::Load(d, v + n * t.pitch + half), read1);
    hn::Store(e0, d, errors + n * t.pitch);
    hn::Store(e1, d, errors + n * t.pitch + half);
    u0 = hn::Mul(rate, e0);
    u1 = hn::Mul(rate, e1);
    from = to;
    last_key = key;
  }
}

void backward(const DeltaTokens& t, const DeltaColumnsGrad& g) {
  const std::int64_t half = lanes(), width = 2 * half;
  const std::int64_t parts = sum_parts();
  float* HWY_RESTRICT dstate = g.dstate;
  auto read0 = hn::Zero(d), read1 = read0;  // E^T k
  const float* last = t.k + (t.count - 1) * t.k_dim;
  for (std::int64_t i = 0; i < t.k_dim; ++i) {
    const auto k = hn::Set(d, last[i]);
    read0 = hn::MulAdd(hn::Load(d, dstate + i * width), k, read0);
    read1 = hn::MulAdd(hn::Load(d, dstate + i * width + half), k, read1);
  }
  for (std::int64_t n = t.count - 1; n >= 0; --n) {
    const auto left = hn::Set(d, t.left[n]), rate = hn::Set(d, t.rates[n]), qk = hn::Set(d, t.qk[n]);
    const auto o0 = hn::Load(d, g.dout + n * t.pitch), o1 = hn::Load(d, g.dout + n * t.pitch + half);
    const auto e0 = hn::Load(d, g.errors + n * t.pitch), e1 = hn::Load(d, g.errors + n * t.pitch + half);
    const auto u0 = hn::Mul(rate, e0), u1 = hn::Mul(rate, e1);
    const auto du0 = hn::MulAdd(qk, o0, read0), du1 = hn::MulAdd(qk, o1, read1);
    const auto dv0 = hn::Mul(rate, du0), dv1 = hn::Mul(rate, du1);
    g.drate[n] += sum_of(hn::MulAdd(du0, e0, hn::Mul(du1, e1)));
    g.u_dout[n] += sum_of(hn::MulAdd(u0, o0, hn::Mul(u1, o1)));
    hn::Store(dv0, d, g.dv + n * t.pitch);
    hn::Store(dv1, d, g.dv + n * t.pitch + half);
    const float *key = t.k + n * t.k_dim, *query = t.q + n * t.k_dim;
    const float* before = t.k + std::max<std::int64_t>(n - 1, 0) * t.k_dim;  // the first token's is read by nobody
    const float* HWY_RESTRICT states = g.states + n * t.k_dim * width;
    float* HWY_RESTRICT sums = g.dq_dk + n * t.k_dim * 2 * parts;
    read0 = read1 = hn::Zero(d);
    auto decay0 = hn::Zero(d), decay1 = decay0;
    // Row i of the state; dq and dk receive what is to be summed over lanes.
    const auto step = [&](std::int64_t i, auto& dq, auto& dk) HWY_ATTR __attribute__((always_inline)) {
      float* row = dstate + i * width;
      const auto k = hn::Set(d, key[i]), q = hn::Set(d, query[i]), next_k = hn::Set(d, before[i]);
      const auto t0 = hn::Load(d, states + i * width), t1 = hn::Load(d, states + i * width + half);
      auto d0 = hn::Load(d, row), d1 = hn::Load(d, row + half);
      dq = hn::MulAdd(t0, o0, hn::Mul(t1, o1));
      dk = hn::NegMulAdd(t0, dv0, hn::NegMulAdd(t1, dv1, hn::MulAdd(d0, u0, hn::Mul(d1, u1))));
      d0 = hn::NegMulAdd(k, dv0, hn::MulAdd(q, o0, d0));
      d1 = hn::NegMulAdd(k, dv1, hn::MulAdd(q, o1, d1));
      decay0 = hn::MulAdd(d0, t0, decay0);
      decay1 = hn::MulAdd(d1, t1, decay1);
      d0 = hn::Mul(left, d0);
      d1 = hn::Mul(left, d1);
      hn::Store(d0, d, row);
      hn::Store(d1, d, row + half);
      read0 = hn::MulAdd(d0, next_k, read0);
      read1 = hn::MulAdd(d1, next_k, read1);
    };
    for (std::int64_t i = 0; i < t.k_dim; i += 2) {
      auto dq0 = hn::Undefined(d), dk0 = dq0, dq1 = dq0, dk1 = dq0;
      step(i, dq0, dk0);
      step(i + 1, dq1, dk1);
      add_sums(dq0, dq1, dk0, dk1, sums + i * 2 * parts);
    }
    g.ddecay[n] += sum_of(hn::Add(decay0, decay1));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace so::delta_columns
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so {
namespace delta_columns {
namespace {

HWY_EXPORT(block_width);
HWY_EXPORT(sum_parts);
HWY_EXPORT(forward);
HWY_EXPORT(remake);
HWY_EXPORT(backward);

}  // namespace
}  // namespace delta_columns

std::int64_t delta_block_width() { return HWY_DYNAMIC_DISPATCH(delta_columns::block_width)(); }

std::int64_t delta_sum_parts() { return HWY_DYNAMIC_DISPATCH(delta_columns::sum_parts)(); }

void delta_forward_columns(const DeltaTokens& tokens, float* state, const float* v, float* out) {
  HWY_DYNAMIC_DISPATCH(delta_columns::forward)(tokens, state, v, out);
}

void delta_remake_columns(const DeltaTokens& tokens, const float* state, const float* v, float* states, float* errors) {
  HWY_DYNAMIC_DISPATCH(delta_columns::remake)(tokens, state, v, states, errors);
}

void delta_backward_columns(const DeltaTokens& tokens, const DeltaColumnsGrad& grad) {
  HWY_DYNAMIC_DISPATCH(delta_columns::backward)(tokens, grad);
}

}  // namespace so
#endif
