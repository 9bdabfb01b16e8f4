// Which experts a token goes to, and the gradient of that choice's weights.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/sigmoid.h"
#include "ops/cpu/softmax.h"
#include "ops/expert_checks.h"

namespace so {
namespace {

// NaN is the smallest of all, so that a choice is always made. Equal ones: the earlier stays.
bool above(float a, float b) { return a > b || (std::isnan(b) && !std::isnan(a)); }

// The `count` largest of x, largest first.
void choose(std::int32_t* chosen, std::int64_t count, const float* x, std::int64_t experts) {
  std::int64_t held = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    if (held == count && !above(x[e], x[chosen[count - 1]])) continue;
    std::int64_t at = held < count ? held++ : count - 1;
    for (; at > 0 && above(x[e], x[chosen[at - 1]]); --at) chosen[at] = chosen[at - 1];
    chosen[at] = static_cast<std::int32_t>(e);
  }
}

// p = exp(x - largest) of one row, not yet divided by the sum that is returned. NaN if any logit is, or the largest is
// infinite.
float exponentials(float* p, const float* x, std::int64_t experts) {
  std::memcpy(p, x, static_cast<std::size_t>(experts) * sizeof(float));
  return exp_row(p, experts, row_max(x, experts));
}

void softmax(float* p, const float* x, std::int64_t experts) {
  scale_row(p, experts, 1.0f / exponentials(p, x, experts));
}

// p = sigmoid(x) of one row; `sums`, with the bias if there is one, are what chooses. Returns whether any logit is NaN.
bool sigmoids(float* p, float* sums, const float* x, const Tensor& bias, std::int64_t experts) {
  bool poisoned = false;
  for (std::int64_t e = 0; e < experts; ++e) {
    p[e] = Sigmoid(x[e]).value;
    sums[e] = bias ? p[e] + bias.as<float>()[e] : p[e];
    poisoned |= std::isnan(x[e]);
  }
  return poisoned;
}

// The weights that sigmoids are renormalised by never add up to 0, as in transformers.
constexpr float least_total = 1e-20f;

// Tokens [begin, end); the weights of their pairs go to `weights`, [N, K].
void choose_rows(const Routing& out, float* weights, const Tensor& logits, const RouterRule& rule, std::int64_t begin,
                 std::int64_t end) {
  thread_local Scratch scratch;
  const std::int64_t choices = out.experts.dim(1), experts = logits.dim(1);
  const auto [p, sums] = scratch.carve(experts, experts);
  const bool by_sigmoid = rule.scores == RouterRule::Scores::sigmoid;
  for (std::int64_t n = begin; n < end; ++n) {
    const float* x = logits.as<float>() + n * experts;
    std::int32_t* chosen = out.experts.as<std::int32_t>() + n * choices;
    float total = 1;
    if (by_sigmoid && sigmoids(p, sums, x, rule.selection_bias, experts))
      total = std::numeric_limits<float>::quiet_NaN();
    choose(chosen, choices, by_sigmoid ? sums : x, experts);
    if (!by_sigmoid) total = exponentials(p, x, experts);
    if (rule.renormalized && !std::isnan(total)) {  // a NaN shows, whether it was chosen or not
      total = 0;
      for (std::int64_t j = 0; j < choices; ++j) total += p[chosen[j]];
      if (by_sigmoid) total += least_total;
    }
    for (std::int64_t j = 0; j < choices; ++j) weights[n * choices + j] = rule.scale * (p[chosen[j]] / total);
  }
}

// Rows for pairs in order of their experts, and of the pairs within an expert.
void sort_pairs(const Routing& out, const std::vector<float>& weights, const RoutingSize& size) {
  const auto* expert = out.experts.as<std::int32_t>();
  auto *rows = out.rows.as<std::int32_t>(), *pairs = out.pairs.as<std::int32_t>();
  auto* offsets = out.offsets.as<std::int32_t>();
  std::fill_n(offsets, size.experts + 1, 0);
  for (std::int64_t p = 0; p < size.rows; ++p) ++offsets[expert[p] + 1];
  for (std::int64_t e = 0; e < size.experts; ++e) offsets[e + 1] += offsets[e];
  std::vector<std::int32_t> next(offsets, offsets + size.experts);
  for (std::int64_t p = 0; p < size.rows; ++p) {
    const std::int32_t row = next[static_cast<std::size_t>(expert[p])]++;
    rows[p] = row;
    pairs[row] = static_cast<std::int32_t>(p);
    out.weights.as<float>()[row] = weights[static_cast<std::size_t>(p)];
  }
}

struct RouteGrad {
  Tensor dlogits, dweights;
  Routing routing;
  Tensor logits;
  RouterRule rule;
  Tensor counts;
  float balance_scale;
};

// With p = softmax(x) and w = c q the choices' weights, c the rule's scale, q p of the chosen or softmax over these, dw
// their gradients:
//   dx = w (dw - q.dw) of the chosen if q is normalised, else p (c dw - w.dw) of all, dw being 0 where not chosen;
//   and of the balance: scale p (counts - p.counts).
template <class T>
void route_grad_rows(const RouteGrad& a, std::int64_t begin, std::int64_t end) {
  thread_local Scratch scratch;
  const std::int64_t choices = a.routing.experts.dim(1), experts = a.logits.dim(1);
  const auto [p, dx] = scratch.carve(experts, experts);
  const auto *weights = a.routing.weights.as<float>(), *dweights = a.dweights.as<float>();
  const bool renormalized = a.rule.renormalized;
  const float scale = a.rule.scale;
  for (std::int64_t n = begin; n < end; ++n) {
    const auto* chosen = a.routing.experts.as<std::int32_t>() + n * choices;
    const auto* rows = a.routing.rows.as<std::int32_t>() + n * choices;
    if (!renormalized || a.counts) softmax(p, a.logits.as<float>() + n * experts, experts);
    float mean = 0;
    for (std::int64_t j = 0; j < choices; ++j) mean += weights[rows[j]] * dweights[rows[j]];
    if (renormalized) mean /= scale;
    for (std::int64_t e = 0; e < experts; ++e) dx[e] = renormalized ? 0.0f : -p[e] * mean;
    for (std::int64_t j = 0; j < choices; ++j) {
      const float w = weights[rows[j]], dw = dweights[rows[j]];
      dx[chosen[j]] = renormalized ? w * (dw - mean) : p[chosen[j]] * (scale * dw - mean);
    }
    if (a.counts) {
      const float* counts = a.counts.as<float>();
      const float level = dot_row(p, counts, experts);
      for (std::int64_t e = 0; e < experts; ++e) dx[e] += a.balance_scale * (p[e] * (counts[e] - level));
    }
    T* to = a.dlogits.as<T>() + n * experts;
    for (std::int64_t e = 0; e < experts; ++e) to[e] = static_cast<T>(dx[e]);
  }
}

// The same with sigmoids, of which only those that were chosen count: dx = w (1 - p) dw, and if they are renormalised
// w (1 - p) (dw - q.dw).
template <class T>
void sigmoid_route_grad_rows(const RouteGrad& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t choices = a.routing.experts.dim(1), experts = a.logits.dim(1);
  const auto *weights = a.routing.weights.as<float>(), *dweights = a.dweights.as<float>();
  for (std::int64_t n = begin; n < end; ++n) {
    const auto* chosen = a.routing.experts.as<std::int32_t>() + n * choices;
    const auto* rows = a.routing.rows.as<std::int32_t>() + n * choices;
    float mean = 0;
    if (a.rule.renormalized) {
      for (std::int64_t j = 0; j < choices; ++j) mean += weights[rows[j]] * dweights[rows[j]];
      mean /= a.rule.scale;
    }
    T* to = a.dlogits.as<T>() + n * experts;
    std::fill_n(to, experts, T(0.0f));
    for (std::int64_t j = 0; j < choices; ++j) {
      const float complement = Sigmoid(a.logits.as<float>()[n * experts + chosen[j]]).complement;
      to[chosen[j]] = static_cast<T>(weights[rows[j]] * complement * (dweights[rows[j]] - mean));
    }
  }
}

template <class T>
void any_route_grad_rows(const RouteGrad& a, std::int64_t begin, std::int64_t end) {
  if (a.rule.scores == RouterRule::Scores::sigmoid) return sigmoid_route_grad_rows<T>(a, begin, end);
  route_grad_rows<T>(a, begin, end);
}

void load_counts(const Tensor& counts, const Tensor& offsets, Accumulate mode) {
  const auto* first = offsets.as<std::int32_t>();
  auto* count = counts.as<float>();
  for (std::int64_t e = 0; e < counts.dim(0); ++e)
    count[e] = (mode == Accumulate::add ? count[e] : 0.0f) + static_cast<float>(first[e + 1] - first[e]);
}

void load_shares(ThreadPool& pool, const Tensor& shares, const Tensor& logits, Accumulate mode) {
  const std::int64_t experts = logits.dim(1);
  BlockSums sums(logits.dim(0), experts);
  pool.parallel_for(sums.blocks(), 1, [&](std::int64_t begin, std::int64_t end) {
    thread_local Scratch scratch;
    const auto [p] = scratch.carve(experts);
    for (std::int64_t b = begin; b < end; ++b)
      for (std::int64_t n = sums.begin(b); n < sums.end(b); ++n) {
        softmax(p, logits.as<float>() + n * experts, experts);
        float* sum = sums.block(b);
        for (std::int64_t e = 0; e < experts; ++e) sum[e] += p[e];
      }
  });
  sums.finish(pool, shares, mode);
}

}  // namespace

void CpuOps::route(Stream& stream, const Routing& out, Tensor logits, const RouterRule& rule) {
  const RoutingSize size = expect_route("route", out, logits, rule);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("route", WorkCategory::memory_bound, [=, &pool] {
    std::vector<float> weights(static_cast<std::size_t>(size.rows));
    pool.parallel_for(size.tokens, row_grain(size.experts), [&](std::int64_t begin, std::int64_t end) {
      choose_rows(out, weights.data(), logits, rule, begin, end);
    });
    sort_pairs(out, weights, size);
  });
}

void CpuOps::route_grad(Stream& stream, Tensor dlogits, Tensor dweights, const Routing& routing, Tensor logits,
                        const RouterRule& rule, Tensor counts, float balance_scale) {
  const RoutingSize size = expect_route_grad("route_grad", dlogits, dweights, routing, logits, rule, counts);
  const RouteGrad grad{dlogits, dweights, routing, logits, rule, counts, balance_scale};
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("route_grad", WorkCategory::memory_bound, [=, &pool] {
    pool.parallel_for(size.tokens, row_grain(size.experts), [&](std::int64_t begin, std::int64_t end) {
      grad.dlogits.dtype() == DType::bf16 ? any_route_grad_rows<bf16>(grad, begin, end)
                                          : any_route_grad_rows<float>(grad, begin, end);
    });
  });
}

void CpuOps::router_load(Stream& stream, Tensor counts, Tensor shares, const Routing& routing, Tensor logits,
                         Accumulate mode) {
  expect_router_load("router_load", counts, shares, routing, logits);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("router_load", WorkCategory::memory_bound, [=, &pool] {
    load_counts(counts, routing.offsets, mode);
    load_shares(pool, shares, logits, mode);
  });
}

void CpuOps::add_router_loss(Stream& stream, Tensor losses, Tensor targets, Tensor counts, Tensor shares, float scale) {
  expect_router_loss("add_router_loss", losses, targets, counts, shares);
  cpu(stream).enqueue("add_router_loss", WorkCategory::memory_bound, [=] {
    double sum = 0;
    for (std::int64_t e = 0; e < counts.dim(0); ++e)
      sum += static_cast<double>(counts.as<float>()[e]) * static_cast<double>(shares.as<float>()[e]);
    const auto term = static_cast<float>(static_cast<double>(scale) * sum);
    for (std::int64_t n = 0; n < losses.dim(0); ++n)
      if (targets.as<std::int32_t>()[n] >= 0) losses.as<float>()[n] += term;
  });
}

}  // namespace so
