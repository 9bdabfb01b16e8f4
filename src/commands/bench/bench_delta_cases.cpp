#include "commands/bench/bench_delta_cases.h"

#include <fmt/format.h>

#include <array>
#include <memory>

namespace so {
namespace {

std::int64_t documents_of(const DeltaCases& of) { return static_cast<std::int64_t>(of.starts.size()) - 1; }
PackedDocuments documents_in(Tensors& m, const DeltaCases& of) { return {m.integers(of.starts), documents_of(of)}; }

// Queries, keys and values, before they are convolved and after.
void add_convolution(std::vector<Case>& cases, const DeltaCases& of) {
  const DeltaSpec d = of.spec;
  const std::int64_t n = of.tokens, channels = d.convolved_width();
  const std::string shape = fmt::format("{} x {} channels, {} taps", n, channels, d.convolution);
  const double once = static_cast<double>(n * channels) * static_cast<double>(size_of(of.dtype));
  const auto rows_in = [=](Tensors& m) { return Heads{m.random(of.dtype, {n, d.projected_width()}), 0, 1, channels}; };
  const auto call_of = [=](Tensors& m) {
    return Ops::CausalConv{.out = {m.random(of.dtype, {n, channels}), 0, 1, channels},
                           .x = rows_in(m),
                           .weight = m.random(of.dtype, {channels, 1, d.convolution}),
                           .documents = documents_in(m, of)};
  };
  cases.push_back({"causal_conv", shape, 2 * once, 0, [=](Tensors& m) {
                     const Ops::CausalConv call = call_of(m);
                     return Call{[=](Ops& ops, Stream& stream) { ops.causal_conv(stream, call); }};
                   }});
  cases.push_back({"causal_conv_grad", shape, 3 * once, 0, [=](Tensors& m) {
                     const Ops::CausalConv forward = call_of(m);
                     const Ops::CausalConvGrad grad{.dx = rows_in(m),
                                                    .dweight = m.random(of.dtype, {channels, 1, d.convolution}),
                                                    .dout = forward.out,
                                                    .forward = forward};
                     return Call{[=](Ops& ops, Stream& stream) { ops.causal_conv_grad(stream, grad); }};
                   }});
}

// The products of chunks of 64 rows (ops/cuda/hopper/delta_chunks.h): those with a state, and those with a matrix of
// the chunk. Backward makes the states again.
void add_rule(std::vector<Case>& cases, const DeltaCases& of) {
  const DeltaSpec d = of.spec;
  const std::int64_t n = of.tokens;
  const auto products = [&](int with_state, int of_values, int of_keys) {
    constexpr std::int64_t chunk = 64;
    const std::int64_t of_head = with_state * d.k_dim * d.v_dim + chunk * (of_values * d.v_dim + of_keys * d.k_dim);
    return 2 * static_cast<double>(n) * static_cast<double>(d.v_heads * of_head + d.k_heads * 2 * chunk * d.k_dim);
  };
  const std::string shape = fmt::format("{} documents of {}, {} / {} heads of {}", documents_of(of), of.longest,
                                        d.k_heads, d.v_heads, d.k_dim);
  const DeltaSize size{n, documents_of(of), d.k_heads, d.v_heads, d.k_dim, d.v_dim, of.dtype};
  const auto heads_in = [of, d, n](Tensors& m) {
    const Tensor rows = m.random(of.dtype, {n, d.convolved_width()});
    return std::array<Heads, 3>{Heads{rows, 0, d.k_heads, d.k_dim}, Heads{rows, d.k_width(), d.k_heads, d.k_dim},
                                Heads{rows, 2 * d.k_width(), d.v_heads, d.v_dim}};
  };
  const auto decays = std::make_shared<std::vector<float>>(static_cast<std::size_t>(n * d.v_heads), -0.1f);
  const auto call_of = [=](Tensors& m) {
    const auto [q, k, v] = heads_in(m);
    return Ops::DeltaRule{.out = {m.random(of.dtype, {n, d.v_width()}), 0, d.v_heads, d.v_dim},
                          .q = q,
                          .k = k,
                          .v = v,
                          .decay = m.floats(*decays, {n, d.v_heads}),
                          .rate = m.zeros(DType::f32, {n, d.v_heads}),
                          .documents = documents_in(m, of),
                          .scratch = m.scratch(of.memory.delta_rule(size))};
  };
  cases.push_back({"delta_rule", shape, 0, products(3, 2, 0), [=](Tensors& m) {
                     const Ops::DeltaRule call = call_of(m);
                     return Call{[=](Ops& ops, Stream& stream) { ops.delta_rule(stream, call); }};
                   }});
  cases.push_back({"delta_rule_grad", shape, 0, products(8, 5, 4), [=](Tensors& m) {
                     const Ops::DeltaRule forward = call_of(m);
                     const auto [dq, dk, dv] = heads_in(m);
                     const Ops::DeltaRuleGrad grad{.dq = dq,
                                                   .dk = dk,
                                                   .dv = dv,
                                                   .ddecay = m.zeros(DType::f32, {n, d.v_heads}),
                                                   .drate = m.zeros(DType::f32, {n, d.v_heads}),
                                                   .dout = forward.out,
                                                   .forward = forward,
                                                   .scratch = m.scratch(of.memory.delta_rule_grad(size))};
                     return Call{[=](Ops& ops, Stream& stream) { ops.delta_rule_grad(stream, grad); }};
                   }});
}

}  // namespace

void add_delta_cases(std::vector<Case>& cases, const DeltaCases& of) {
  add_convolution(cases, of);
  add_rule(cases, of);
}

}  // namespace so
