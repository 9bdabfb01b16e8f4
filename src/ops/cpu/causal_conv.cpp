// Causal depthwise convolution within documents, then SiLU, and its gradient.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "ops/cpu/convert.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/scratch.h"
#include "ops/delta_checks.h"

#ifndef SO_OPS_CPU_CAUSAL_CONV_CALLS
#define SO_OPS_CPU_CAUSAL_CONV_CALLS
namespace so::rows {

struct ConvCall {
  Heads x;
  const float* weight;  // [taps, channels]: a tap's weights lie side by side
  const float* bias;    // [channels] or null
  std::int64_t channels, taps;
  Tensor before;
};
struct ConvGradCall {
  ConvCall forward;
  Heads dx, dout;
};
// Channels at a time in the gradient: what a block of rows needs of them stays in the second-level cache.
inline constexpr std::int64_t conv_tile = 256;

}  // namespace so::rows
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/causal_conv.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "base/row_simd-inl.h"
#include "ops/cpu/sigmoid-inl.h"

HWY_BEFORE_NAMESPACE();
namespace so::rows {
namespace HWY_NAMESPACE {

// The rows that row n of a document sees, one a tap; those of the taps before `first` do not exist.
template <class T>
struct SeenRows {
  SeenRows(const ConvCall& c, std::int64_t document_begin, std::int64_t n)
      : first(c.before ? 0 : std::max<std::int64_t>(0, c.taps - 1 - (n - document_begin))) {
    for (std::int64_t j = first; j < c.taps; ++j) {
      const std::int64_t r = n - c.taps + 1 + j;
      at[j] = r >= document_begin ? head_at<T>(c.x, r, 0)
                                  : c.before.as<T>() + (r - document_begin + c.taps - 1) * c.channels;
    }
  }
  std::int64_t first;
  const T* at[kMaxTaps];
};

// The sum over taps, and the bias, for the channels i, i + 1, ...
template <class D, class T>
HWY_INLINE hn::Vec<D> convolve(D d, const ConvCall& c, const SeenRows<T>& seen, std::int64_t i) {
  auto sum = c.bias ? load(d, c.bias + i) : hn::Zero(d);
  for (std::int64_t j = seen.first; j < c.taps; ++j)
    sum = hn::MulAdd(load(d, c.weight + j * c.channels + i), load(d, seen.at[j] + i), sum);
  return sum;
}

template <class T>
void causal_conv_as(const ConvCall& c, const Heads& out, std::int64_t document_begin, std::int64_t begin,
                    std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    const SeenRows<T> seen(c, document_begin, n);
    T* to = head_at<T>(out, n, 0);
    for_row(c.channels, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto z = convolve(d, c, seen, i);
      auto s = hn::Undefined(d), complement = hn::Undefined(d);
      sigmoid(d, z, s, complement);
      store(d, hn::Mul(z, s), to + i);
    });
  }
}

// Rows [begin, end) of a document. With z the convolution and dz = dout silu'(z):
//   dx[m] = sum over j of weight[j] dz[m + K - 1 - j],  dweight[j] = sum over n of dz[n] x[n - K + 1 + j],
// and dbias the sum of dz. dz [rows, conv_tile] is scratch; dweight [taps, channels], behind which dbias [channels]
// lies if there is one, is added to.
template <class T>
void causal_conv_grad_as(const ConvGradCall& g, float* dweight, float* dz, std::int64_t document_begin,
                         std::int64_t document_end, std::int64_t begin, std::int64_t end) {
  const ConvCall& c = g.forward;
  const std::int64_t last = std::min(document_end, end + c.taps - 1);  // beyond the rows that see any of these
  for (std::int64_t at = 0; at < c.channels; at += conv_tile) {
    const std::int64_t width = std::min(conv_tile, c.channels - at);
    for (std::int64_t n = begin; n < last; ++n) {
      const SeenRows<T> seen(c, document_begin, n);
      const T* dy = head_at<T>(g.dout, n, 0) + at;
      float* to = dz + (n - begin) * conv_tile;
      for_row(width, [&](auto d, std::int64_t i) HWY_ATTR {
        const auto z = convolve(d, c, seen, at + i);
        auto s = hn::Undefined(d), complement = hn::Undefined(d);
        sigmoid(d, z, s, complement);
        store(d, hn::Mul(load(d, dy + i), hn::MulAdd(hn::Mul(z, s), complement, s)), to + i);
      });
    }
    for (std::int64_t m = begin; m < end; ++m) {
      const std::int64_t seeing = std::min(c.taps, last - m);
      const float *from = dz + (m - begin) * conv_tile, *weight = c.weight + (c.taps - 1) * c.channels + at;
      T* to = head_at<T>(g.dx, m, 0) + at;
      for_row(width, [&](auto d, std::int64_t i) HWY_ATTR {
        auto sum = hn::Zero(d);
        for (std::int64_t k = 0; k < seeing; ++k)
          sum = hn::MulAdd(load(d, weight - k * c.channels + i), load(d, from + k * conv_tile + i), sum);
        store(d, sum, to + i);
      });
    }
    for (std::int64_t j = 0; j < c.taps; ++j) {
      const std::int64_t back = c.taps - 1 - j, first = std::max(begin, document_begin + back);
      const T* x = c.x.rows.as<T>() + c.x.offset + at;
      const std::int64_t pitch = c.x.rows.dim(1);
      float* to = dweight + j * c.channels + at;
      for_row(width, [&](auto d, std::int64_t i) HWY_ATTR {
        auto sum = load(d, to + i);
        for (std::int64_t n = first; n < end; ++n)
          sum = hn::MulAdd(load(d, dz + (n - begin) * conv_tile + i), load(d, x + (n - back) * pitch + i), sum);
        store(d, sum, to + i);
      });
    }
    if (!c.bias) continue;
    float* dbias = dweight + c.taps * c.channels + at;
    for_row(width, [&](auto d, std::int64_t i) HWY_ATTR {
      auto sum = load(d, dbias + i);
      for (std::int64_t n = begin; n < end; ++n) sum = hn::Add(sum, load(d, dz + (n - begin) * conv_tile + i));
      store(d, sum, dbias + i);
    });
  }
}

void causal_conv_rows(const ConvCall& c, const Heads& out, std::int64_t document_begin, std::int64_t begin,
                      std::int64_t end) {
  out.rows.dtype() == DType::bf16 ? causal_conv_as<bf16>(c, out, document_begin, begin, end)
                                  : causal_conv_as<float>(c, out, document_begin, begin, end);
}

void causal_conv_grad_rows(const ConvGradCall& g, float* dweight, float* dz, std::int64_t document_begin,
                           std::int64_t document_end, std::int64_t begin, std::int64_t end) {
  g.dx.rows.dtype() == DType::bf16
      ? causal_conv_grad_as<bf16>(g, dweight, dz, document_begin, document_end, begin, end)
      : causal_conv_grad_as<float>(g, dweight, dz, document_begin, document_end, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace so::rows
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so {
namespace rows {
namespace {

HWY_EXPORT(causal_conv_rows);
HWY_EXPORT(causal_conv_grad_rows);

// As fp32; empty if there is none.
std::vector<float> widened(const Tensor& bias) {
  std::vector<float> result(static_cast<std::size_t>(bias.size()));
  if (bias) load_row(result.data(), bias.data(), bias.dtype(), bias.size());
  return result;
}

// [C, 1, K] as fp32 [K, C].
std::vector<float> taps_side_by_side(const Tensor& weight) {
  const std::int64_t channels = weight.dim(0), taps = weight.dim(2);
  std::vector<float> result(static_cast<std::size_t>(weight.size()));
  const auto turn = [&](const auto* from) {
    for (std::int64_t c = 0; c < channels; ++c)
      for (std::int64_t j = 0; j < taps; ++j)
        result[static_cast<std::size_t>(j * channels + c)] = static_cast<float>(from[c * taps + j]);
  };
  weight.dtype() == DType::bf16 ? turn(weight.as<bf16>()) : turn(weight.as<float>());
  return result;
}

// Calls piece(document_begin, document_end, begin, end) for the documents that rows [begin, end) are of, in order.
template <class Piece>
void for_documents(std::span<const std::int32_t> starts, std::int64_t begin, std::int64_t end, const Piece& piece) {
  auto next = std::upper_bound(starts.begin(), starts.end(), begin);
  if (next == starts.begin()) ++next;  // these rows begin before the first document
  for (; next != starts.end() && next[-1] < end; ++next)
    piece(next[-1], *next, std::max<std::int64_t>(begin, next[-1]), std::min<std::int64_t>(end, *next));
}

// The last rows of what was before and of x together, for the next call.
void keep_last_rows(const Tensor& before, const Heads& x) {
  const std::int64_t kept = before.dim(0), rows = x.rows.dim(0);
  const auto move = [&](auto* to) {
    using T = std::remove_pointer_t<decltype(to)>;
    const std::int64_t channels = before.dim(1);
    for (std::int64_t i = 0; i < kept; ++i) {
      const std::int64_t r = rows - kept + i;
      const T* from = r >= 0 ? head_at<T>(x, r, 0) : to + (i + rows) * channels;
      std::memmove(to + i * channels, from, static_cast<std::size_t>(channels) * sizeof(T));
    }
  };
  before.dtype() == DType::bf16 ? move(before.as<bf16>()) : move(before.as<float>());
}

void causal_conv(ThreadPool& pool, const Ops::CausalConv& args, const ConvSize& size) {
  const auto starts = document_starts("causal_conv", args.documents, size.rows);
  SO_CHECK(!args.before || (starts.front() == 0 && starts.back() == size.rows),
           "causal_conv: the continued document has the rows [{}, {}) of {}", starts.front(), starts.back(), size.rows);
  const std::vector<float> weight = taps_side_by_side(args.weight), bias = widened(args.bias);
  const ConvCall call{args.x, weight.data(), args.bias ? bias.data() : nullptr, size.channels, size.taps, args.before};
  pool.parallel_for(size.rows, row_grain(size.channels), [&](std::int64_t begin, std::int64_t end) {
    for_documents(starts, begin, end,
                  [&](std::int64_t document_begin, std::int64_t, std::int64_t from, std::int64_t to) {
                    HWY_DYNAMIC_DISPATCH(causal_conv_rows)(call, args.out, document_begin, from, to);
                  });
  });
  if (args.before) keep_last_rows(args.before, args.x);
}

void causal_conv_grad(ThreadPool& pool, const Ops::CausalConvGrad& g, const ConvSize& size) {
  const auto starts = document_starts("causal_conv_grad", g.forward.documents, size.rows);
  const std::vector<float> weight = taps_side_by_side(g.forward.weight), bias = widened(g.forward.bias);
  const ConvGradCall call{
      {g.forward.x, weight.data(), g.forward.bias ? bias.data() : nullptr, size.channels, size.taps, Tensor()},
      g.dx,
      g.dout};
  const std::int64_t columns = size.channels * size.taps, biases = g.dbias ? size.channels : 0;
  BlockSums sums(size.rows, columns), bias_sums(size.rows, biases);
  pool.parallel_for(sums.blocks(), 1, [&](std::int64_t first, std::int64_t last) {
    thread_local Scratch memory;
    const auto [dz, dweight] = memory.carve((BlockSums::kRows + kMaxTaps - 1) * conv_tile, columns + biases);
    for (std::int64_t b = first; b < last; ++b) {
      std::fill_n(dweight, columns + biases, 0.0f);
      for_documents(starts, sums.begin(b), sums.end(b),
                    [&, dz = dz, dweight = dweight](std::int64_t document_begin, std::int64_t document_end,
                                                    std::int64_t begin, std::int64_t end) {
                      HWY_DYNAMIC_DISPATCH(causal_conv_grad_rows)
                      (call, dweight, dz, document_begin, document_end, begin, end);
                    });
      for (std::int64_t c = 0; c < size.channels; ++c)
        for (std::int64_t j = 0; j < size.taps; ++j) sums.block(b)[c * size.taps + j] = dweight[j * size.channels + c];
      std::copy_n(dweight + columns, biases, bias_sums.block(b));
    }
  });
  sums.finish(pool, g.dweight, g.dweight_mode);
  if (g.dbias) bias_sums.finish(pool, g.dbias, g.dbias_mode);
}

}  // namespace
}  // namespace rows

void CpuOps::causal_conv(Stream& stream, const CausalConv& c) {
  const ConvSize size = expect_causal_conv("causal_conv", c);
  cpu(stream).enqueue("causal_conv", WorkCategory::memory_bound,
                      [c, size, &pool = cpu(stream).pool()] { rows::causal_conv(pool, c, size); });
}

void CpuOps::causal_conv_grad(Stream& stream, const CausalConvGrad& g) {
  const ConvSize size = expect_causal_conv_grad("causal_conv_grad", g);
  cpu(stream).enqueue("causal_conv_grad", WorkCategory::memory_bound,
                      [g, size, &pool = cpu(stream).pool()] { rows::causal_conv_grad(pool, g, size); });
}

}  // namespace so
#endif
