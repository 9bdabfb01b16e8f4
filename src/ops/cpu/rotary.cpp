// Rotary position embedding, with the normalisation of each head before it, and copies of heads.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ops/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/rotary.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "base/row_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace so::rows {
namespace HWY_NAMESPACE {

// One head: out = rotate(value), where value(d, i) gives elements of what is turned. `half` is R/2.
template <class T, class Value>
HWY_INLINE void rotate_head(T* out, std::int64_t head_dim, const float* cosines, const float* sines, std::int64_t half,
                            const Value& value) {
  for_row(half, [=](auto d, std::int64_t i) HWY_ATTR {
    const auto lo = value(d, i), hi = value(d, i + half);
    const auto cos = load(d, cosines + i), sin = load(d, sines + i);
    store(d, hn::Sub(hn::Mul(lo, cos), hn::Mul(hi, sin)), out + i);
    store(d, hn::Add(hn::Mul(hi, cos), hn::Mul(lo, sin)), out + i + half);
  });
  for_row(head_dim - 2 * half,
          [=](auto d, std::int64_t i) HWY_ATTR { store(d, value(d, 2 * half + i), out + 2 * half + i); });
}

// The transpose of rotate_head: turns by the opposite angle.
template <class To, class T>
HWY_INLINE void rotate_head_back(To* dvalue, const T* dout, std::int64_t head_dim, const float* cosines,
                                 const float* sines, std::int64_t half) {
  for_row(half, [=](auto d, std::int64_t i) HWY_ATTR {
    const auto lo = load(d, dout + i), hi = load(d, dout + i + half);
    const auto cos = load(d, cosines + i), sin = load(d, sines + i);
    store(d, hn::Add(hn::Mul(lo, cos), hn::Mul(hi, sin)), dvalue + i);
    store(d, hn::Sub(hn::Mul(hi, cos), hn::Mul(lo, sin)), dvalue + i + half);
  });
  for_row(head_dim - 2 * half,
          [=](auto d, std::int64_t i) HWY_ATTR { store(d, load(d, dout + 2 * half + i), dvalue + 2 * half + i); });
}

// The same two for pairs of neighbours, which lie in one vector: plain code.
template <class T, class Value>
HWY_INLINE void rotate_neighbours(T* out, std::int64_t head_dim, const float* cosines, const float* sines,
                                  std::int64_t half, const Value& value) {
  const OneFloat d;
  for (std::int64_t i = 0; i < half; ++i) {
    const auto first = value(d, 2 * i), second = value(d, 2 * i + 1);
    const auto cos = load(d, cosines + i), sin = load(d, sines + i);
    store(d, hn::Sub(hn::Mul(first, cos), hn::Mul(second, sin)), out + 2 * i);
    store(d, hn::Add(hn::Mul(second, cos), hn::Mul(first, sin)), out + 2 * i + 1);
  }
  for_row(head_dim - 2 * half,
          [=](auto v, std::int64_t i) HWY_ATTR { store(v, value(v, 2 * half + i), out + 2 * half + i); });
}

template <class To, class T>
HWY_INLINE void rotate_neighbours_back(To* dvalue, const T* dout, std::int64_t head_dim, const float* cosines,
                                       const float* sines, std::int64_t half) {
  const OneFloat d;
  for (std::int64_t i = 0; i < half; ++i) {
    const auto first = load(d, dout + 2 * i), second = load(d, dout + 2 * i + 1);
    const auto cos = load(d, cosines + i), sin = load(d, sines + i);
    store(d, hn::Add(hn::Mul(first, cos), hn::Mul(second, sin)), dvalue + 2 * i);
    store(d, hn::Sub(hn::Mul(second, cos), hn::Mul(first, sin)), dvalue + 2 * i + 1);
  }
  for_row(head_dim - 2 * half,
          [=](auto v, std::int64_t i) HWY_ATTR { store(v, load(v, dout + 2 * half + i), dvalue + 2 * half + i); });
}

template <class T>
void rotary_as(const Heads& out, const Heads& in, const std::int32_t* positions, const Tensor& table,
               const HeadNorm& norm, RotaryPairs pairs, std::int64_t begin, std::int64_t end) {
  const std::int64_t half = table.dim(2), head_dim = in.head_dim;
  const T* weight = norm.weight ? norm.weight.as<T>() : nullptr;
  const float offset = norm.weight_offset;
  for (std::int64_t n = begin; n < end; ++n) {
    const float* cosines = table.as<float>() + positions[n] * 2 * half;
    const float* sines = cosines + half;
    for (std::int64_t h = 0; h < in.heads; ++h) {
      const T* x = head_at<T>(in, n, h);
      T* y = head_at<T>(out, n, h);
      const auto rotate = [=](const auto& value) HWY_ATTR {
        if (pairs == RotaryPairs::neighbours)
          rotate_neighbours(y, head_dim, cosines, sines, half, value);
        else
          rotate_head(y, head_dim, cosines, sines, half, value);
      };
      if (!weight) {
        rotate([=](auto d, std::int64_t i) HWY_ATTR { return load(d, x + i); });
        continue;
      }
      const float squares = sum_row(head_dim, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto v = load(d, x + i);
        return hn::Mul(v, v);
      });
      const float r = 1.0f / std::sqrt(squares / static_cast<float>(head_dim) + norm.epsilon);
      norm.inv_rms.as<float>()[n * in.heads + h] = r;
      rotate([=](auto d, std::int64_t i) HWY_ATTR {
        const auto w = hn::Add(load(d, weight + i), hn::Set(d, offset));
        return hn::Mul(hn::Mul(load(d, x + i), hn::Set(d, r)), w);
      });
    }
  }
}

// With a norm, the gradient g of the rotation's input goes through it as in rms_norm_grad.
template <class T>
void rotary_grad_as(const Heads& din, const Heads& dout, const Heads& in, const std::int32_t* positions,
                    const Tensor& table, const HeadNorm& norm, RotaryPairs pairs, float* dweight, std::int64_t begin,
                    std::int64_t end) {
  const std::int64_t half = table.dim(2), head_dim = din.head_dim;
  const T* weight = norm.weight ? norm.weight.as<T>() : nullptr;
  const float offset = norm.weight_offset;
  std::vector<float> turned(weight ? static_cast<std::size_t>(head_dim) : 0);
  float* g = turned.data();
  for (std::int64_t n = begin; n < end; ++n) {
    const float* cosines = table.as<float>() + positions[n] * 2 * half;
    const float* sines = cosines + half;
    for (std::int64_t h = 0; h < din.heads; ++h) {
      const T* dy = head_at<T>(dout, n, h);
      T* dx = head_at<T>(din, n, h);
      const auto rotate_back = [=](auto* to) HWY_ATTR {
        if (pairs == RotaryPairs::neighbours)
          rotate_neighbours_back(to, dy, head_dim, cosines, sines, half);
        else
          rotate_head_back(to, dy, head_dim, cosines, sines, half);
      };
      if (!weight) {
        rotate_back(dx);
        continue;
      }
      rotate_back(g);
      const T* x = head_at<T>(in, n, h);
      const float r = norm.inv_rms.as<float>()[n * din.heads + h];
      const float dot = sum_row(head_dim, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto xi = load(d, x + i), gi = load(d, g + i);
        const auto dw = hn::Mul(gi, hn::Mul(xi, hn::Set(d, r)));
        store(d, hn::Add(load(d, dweight + i), dw), dweight + i);
        const auto gw = hn::Mul(gi, hn::Add(load(d, weight + i), hn::Set(d, offset)));
        store(d, gw, g + i);
        return hn::Mul(gw, xi);
      });
      const float k = dot * r / static_cast<float>(head_dim) * r;
      for_row(head_dim, [=](auto d, std::int64_t i) HWY_ATTR {
        const auto v = hn::NegMulAdd(load(d, x + i), hn::Set(d, k), load(d, g + i));
        store(d, hn::Mul(hn::Set(d, r), v), dx + i);
      });
    }
  }
}

void rotary_rows(const Heads& out, const Heads& in, const Tensor& positions, const Tensor& table, const HeadNorm& norm,
                 RotaryPairs pairs, std::int64_t begin, std::int64_t end) {
  if (in.rows.dtype() == DType::bf16)
    rotary_as<bf16>(out, in, positions.as<std::int32_t>(), table, norm, pairs, begin, end);
  else
    rotary_as<float>(out, in, positions.as<std::int32_t>(), table, norm, pairs, begin, end);
}

// `dweight` f32 [head_dim], added to; not used without a norm.
void rotary_grad_rows(const Ops::RotaryGrad& g, float* dweight, std::int64_t begin, std::int64_t end) {
  const auto* positions = g.positions.as<std::int32_t>();
  if (g.din.rows.dtype() == DType::bf16)
    rotary_grad_as<bf16>(g.din, g.dout, g.in, positions, g.table, g.norm, g.pairs, dweight, begin, end);
  else
    rotary_grad_as<float>(g.din, g.dout, g.in, positions, g.table, g.norm, g.pairs, dweight, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace so::rows
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so {
namespace rows {
namespace {

HWY_EXPORT(rotary_rows);
HWY_EXPORT(rotary_grad_rows);

// Positions are data of the device, so they are looked at when the op runs.
void check_positions(const char* op, const Tensor& positions, const Tensor& table, std::int64_t begin,
                     std::int64_t end) {
  const auto* position = positions.as<std::int32_t>();
  for (std::int64_t n = begin; n < end; ++n)
    SO_CHECK(position[n] >= 0 && position[n] < table.dim(0), "{}: positions[{}] is {}, the table has {}", op, n,
             position[n], table.dim(0));
}

void rotary(ThreadPool& pool, const Heads& out, const Heads& in, const Tensor& positions, const Tensor& table,
            const HeadNorm& norm, RotaryPairs pairs) {
  pool.parallel_for(in.rows.dim(0), row_grain(in.heads * in.head_dim), [&](std::int64_t begin, std::int64_t end) {
    check_positions("rotary", positions, table, begin, end);
    HWY_DYNAMIC_DISPATCH(rotary_rows)(out, in, positions, table, norm, pairs, begin, end);
  });
}

void rotary_grad(ThreadPool& pool, const Ops::RotaryGrad& g) {
  BlockSums sums(g.din.rows.dim(0), g.norm.weight ? g.din.head_dim : 0);
  pool.parallel_for(sums.blocks(), 1, [&](std::int64_t first, std::int64_t last) {
    const auto grad_rows = HWY_DYNAMIC_DISPATCH(rotary_grad_rows);
    for (std::int64_t b = first; b < last; ++b) {
      check_positions("rotary_grad", g.positions, g.table, sums.begin(b), sums.end(b));
      grad_rows(g, sums.block(b), sums.begin(b), sums.end(b));
    }
  });
  if (g.norm.weight) sums.finish(pool, g.dweight, g.dweight_mode);
}

void copy_heads(ThreadPool& pool, const Heads& out, const Heads& in) {
  const std::size_t element = size_of(in.rows.dtype());
  const auto bytes = [=](std::int64_t elements) { return static_cast<std::size_t>(elements) * element; };
  const auto* from = static_cast<const std::byte*>(in.rows.data()) + bytes(in.offset);
  auto* to = static_cast<std::byte*>(out.rows.data()) + bytes(out.offset);
  // Heads of a row that lie side by side go in one copy.
  const bool dense = in.step() == in.head_dim && out.step() == out.head_dim;
  const std::int64_t row = in.heads * in.head_dim, copies = dense ? 1 : in.heads, length = row / copies;
  const std::int64_t from_width = in.rows.dim(1), to_width = out.rows.dim(1);
  const std::int64_t from_step = in.step(), to_step = out.step();
  pool.parallel_for(in.rows.dim(0), row_grain(row), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n)
      for (std::int64_t i = 0; i < copies; ++i)
        std::memcpy(to + bytes(n * to_width + i * to_step), from + bytes(n * from_width + i * from_step),
                    bytes(length));
  });
}

}  // namespace
}  // namespace rows

void CpuOps::rotary(Stream& stream, Heads out, Heads in, Tensor positions, Tensor table, HeadNorm norm,
                    RotaryPairs pairs) {
  const char* op = "rotary";
  expect_compute_dtype(op, "in", in.rows.dtype());
  expect_same_heads(op, "in", in, "out", out);
  expect_rotation(op, in, positions, table, norm);
  SO_CHECK(!norm.weight || in.rows.data() != out.rows.data() || in.offset != out.offset,
           "{}: with a norm, out must not be in: the backward pass reads it", op);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("rotary", WorkCategory::memory_bound,
                      [=, &pool] { rows::rotary(pool, out, in, positions, table, norm, pairs); });
}

void CpuOps::rotary_grad(Stream& stream, const RotaryGrad& g) {
  const char* op = "rotary_grad";
  expect_compute_dtype(op, "dout", g.dout.rows.dtype());
  expect_same_heads(op, "dout", g.dout, "din", g.din);
  expect_rotation(op, g.din, g.positions, g.table, g.norm);
  SO_CHECK(static_cast<bool>(g.norm.weight) == static_cast<bool>(g.dweight), "{}: dweight goes with a norm", op);
  if (g.norm.weight) {
    expect_same_heads(op, "dout", g.dout, "in", g.in);
    expect_gradient(op, "dweight", g.dweight, g.din.rows.dtype(), {g.din.head_dim});
  }
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("rotary_grad", WorkCategory::memory_bound, [=, &pool] { rows::rotary_grad(pool, g); });
}

void CpuOps::copy_heads(Stream& stream, Heads out, Heads in) {
  const char* op = "copy_heads";
  expect_compute_dtype(op, "in", in.rows.dtype());
  expect_same_heads(op, "in", in, "out", out);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("copy_heads", WorkCategory::memory_bound, [=, &pool] { rows::copy_heads(pool, out, in); });
}

}  // namespace so
#endif
