#include "commands/bench/bench_state_space_cases.h"

#include <fmt/format.h>

#include <memory>

namespace so {
namespace {

class SpaceCases {
 public:
  SpaceCases(std::vector<Case>& cases, const StateSpaceCases& of)
      : cases_(cases), of_(of), s_(of.spec), n_(of.tokens), t_(of.dtype) {}

  void convolution() const {
    const std::int64_t channels = s_.convolved_width();
    const std::string shape = fmt::format("{} x {} channels, {} taps", n_, channels, s_.convolution);
    const auto call_of = [*this, channels](Tensors& m) {
      return Ops::CausalConv{.out = {m.random(t_, {n_, channels}), 0, 1, channels},
                             .x = {m.random(t_, {n_, s_.projected_width()}), s_.width(), 1, channels},
                             .weight = m.random(t_, {channels, 1, s_.convolution}),
                             .bias = s_.convolution_bias ? m.random(t_, {channels}) : Tensor(),
                             .documents = documents(m)};
    };
    add("causal_conv", shape, of_t(2 * n_ * channels), [=](Tensors& m) {
      const Ops::CausalConv call = call_of(m);
      return Call{[=](Ops& ops, Stream& stream) { ops.causal_conv(stream, call); }};
    });
    add("causal_conv_grad", shape, of_t(3 * n_ * channels), [*this, channels, call_of](Tensors& m) {
      const Ops::CausalConv forward = call_of(m);
      const Ops::CausalConvGrad grad{.dx = {m.random(t_, {n_, s_.projected_width()}), s_.width(), 1, channels},
                                     .dweight = m.random(t_, {channels, 1, s_.convolution}),
                                     .dbias = s_.convolution_bias ? m.random(t_, {channels}) : Tensor(),
                                     .dout = forward.out,
                                     .forward = forward};
      return Call{[=](Ops& ops, Stream& stream) { ops.causal_conv_grad(stream, grad); }};
    });
  }

  void gates() const {
    const std::string shape = fmt::format("{} x {} heads", n_, s_.heads);
    const auto call_of = [*this](Tensors& m) {
      return Ops::StepGates{
          .decay = m.zeros(DType::f32, {n_, s_.heads}),
          .step = m.zeros(DType::f32, {n_, s_.heads}),
          .x = {m.random(t_, {n_, s_.projected_width()}), s_.projected_width() - s_.heads, 1, s_.heads},
          .a_log = m.random(t_, {s_.heads}),
          .dt_bias = m.random(t_, {s_.heads}),
          .low = static_cast<float>(s_.least_step)};
    };
    const double floats = 8 * static_cast<double>(n_ * s_.heads);
    add("step_gates", shape, of_t(n_ * s_.heads) + floats, [=](Tensors& m) {
      const Ops::StepGates call = call_of(m);
      return Call{[=](Ops& ops, Stream& stream) { ops.step_gates(stream, call); }};
    });
    add("step_gates_grad", shape, of_t(2 * n_ * s_.heads) + floats, [*this, call_of](Tensors& m) {
      const Ops::StepGates forward = call_of(m);
      Heads dx = forward.x;
      dx.rows = m.random(t_, {n_, s_.projected_width()});
      const Ops::StepGatesGrad grad{.dx = dx,
                                    .da_log = m.random(t_, {s_.heads}),
                                    .ddt_bias = m.random(t_, {s_.heads}),
                                    .ddecay = forward.decay,
                                    .dstep = forward.step,
                                    .forward = forward};
      return Call{[=](Ops& ops, Stream& stream) { ops.step_gates_grad(stream, grad); }};
    });
  }

  void scan() const {
    const std::string shape =
        fmt::format("{} documents, {} heads of {} x {}", documents_count(), s_.heads, s_.state, s_.head_dim);
    const StateSpaceSize size{n_, documents_count(), s_.groups, s_.heads, s_.state, s_.head_dim, t_};
    const auto decays = std::make_shared<std::vector<float>>(static_cast<std::size_t>(n_ * s_.heads), -0.1f);
    const auto call_of = [*this, size, decays](Tensors& m) {
      const Tensor xbc = m.random(t_, {n_, s_.convolved_width()});
      return Ops::StateSpace{.out = values(m.random(t_, {n_, s_.width()})),
                             .x = values(xbc),
                             .b = projections(xbc, 0),
                             .c = projections(xbc, 1),
                             .decay = m.floats(*decays, {n_, s_.heads}),
                             .step = m.zeros(DType::f32, {n_, s_.heads}),
                             .skip = m.random(t_, {s_.heads}),
                             .documents = documents(m),
                             .scratch = m.scratch(of_.memory.state_space(size))};
    };
    const std::int64_t projected = n_ * 2 * s_.groups * s_.state, values_read = n_ * s_.width();
    const double floats = 8 * static_cast<double>(n_ * s_.heads);
    add("state_space", shape, of_t(2 * values_read + projected) + floats, [=](Tensors& m) {
      const Ops::StateSpace call = call_of(m);
      return Call{[=](Ops& ops, Stream& stream) { ops.state_space(stream, call); }};
    });
    add("state_space_grad", shape, of_t(3 * values_read + 2 * projected) + 2 * floats,
        [*this, size, call_of](Tensors& m) {
          Ops::StateSpace forward = call_of(m);
          const Tensor dxbc = m.random(t_, {n_, s_.convolved_width()});
          const Ops::StateSpaceGrad grad{.dx = values(dxbc),
                                         .db = projections(dxbc, 0),
                                         .dc = projections(dxbc, 1),
                                         .ddecay = m.zeros(DType::f32, {n_, s_.heads}),
                                         .dstep = m.zeros(DType::f32, {n_, s_.heads}),
                                         .dskip = m.random(t_, {s_.heads}),
                                         .dout = forward.out,
                                         .forward = forward,
                                         .scratch = m.scratch(of_.memory.state_space_grad(size))};
          return Call{[=](Ops& ops, Stream& stream) { ops.state_space_grad(stream, grad); }};
        });
  }

  void norm() const {
    const std::int64_t width = s_.width();
    const std::string shape = fmt::format("{} x {} groups of {}", n_, s_.groups, width / s_.groups);
    const auto in_groups = [*this](Tensor rows) { return Heads{rows, 0, s_.groups, s_.width() / s_.groups}; };
    const auto norm_of = [*this](Tensors& m) {
      return HeadNorm{m.random(t_, {s_.width()}), 1e-5f, m.zeros(DType::f32, {n_, s_.groups})};
    };
    add("gate_then_norm", shape, of_t(3 * n_ * width), [=, *this](Tensors& m) {
      const Heads out = in_groups(m.random(t_, {n_, width})), x = in_groups(m.random(t_, {n_, width})),
                  gate = in_groups(m.random(t_, {n_, s_.projected_width()}));
      const HeadNorm norm = norm_of(m);
      return Call{[=](Ops& ops, Stream& stream) { ops.gate_then_norm(stream, out, x, gate, norm); }};
    });
    add("gate_then_norm_grad", shape, of_t(6 * n_ * width), [=, *this](Tensors& m) {
      const Ops::GateThenNormGrad grad{.dx = in_groups(m.random(t_, {n_, width})),
                                       .dgate = in_groups(m.random(t_, {n_, s_.projected_width()})),
                                       .normed = in_groups(m.random(t_, {n_, width})),
                                       .dweight = m.random(t_, {width}),
                                       .dout = in_groups(m.random(t_, {n_, width})),
                                       .x = in_groups(m.random(t_, {n_, width})),
                                       .gate = in_groups(m.random(t_, {n_, s_.projected_width()})),
                                       .norm = norm_of(m)};
      return Call{[=](Ops& ops, Stream& stream) { ops.gate_then_norm_grad(stream, grad); }};
    });
  }

 private:
  double of_t(std::int64_t elements) const { return static_cast<double>(elements) * static_cast<double>(size_of(t_)); }
  void add(std::string name, std::string shape, double bytes, std::function<Call(Tensors&)> make) const {
    cases_.push_back({std::move(name), std::move(shape), bytes, 0, std::move(make)});
  }
  std::int64_t documents_count() const { return static_cast<std::int64_t>(of_.starts.size()) - 1; }
  PackedDocuments documents(Tensors& m) const { return {m.integers(of_.starts), documents_count()}; }
  Heads values(Tensor rows) const { return {rows, 0, s_.heads, s_.head_dim}; }
  Heads projections(Tensor rows, std::int64_t which) const {
    return {rows, s_.width() + which * s_.groups * s_.state, s_.groups, s_.state};
  }

  std::vector<Case>& cases_;
  const StateSpaceCases of_;
  const StateSpaceSpec s_;
  const std::int64_t n_;
  const DType t_;
};

}  // namespace

void add_state_space_cases(std::vector<Case>& cases, const StateSpaceCases& of) {
  const SpaceCases all(cases, of);
  all.convolution();
  all.gates();
  all.scan();
  all.norm();
}

}  // namespace so
