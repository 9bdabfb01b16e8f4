#include "commands/bench/bench_ops_fp8.h"

#include <fmt/format.h>

#include "ops/fp8_layout.h"

namespace so {
namespace {

using Blocks = Fp8Matrix::Blocks;

Fp8Matrix acquire(Tensors& m, Blocks blocks, std::int64_t rows, std::int64_t k) {
  return make_fp8_matrix(blocks, rows, k, [&](DType dtype, std::int64_t across, std::int64_t along) {
    return m.zeros(dtype, {across, along});
  });
}

// out [rows, columns] = a b^T over k; operands are rounded from random numbers.
Case product(const std::string& name, std::int64_t rows, std::int64_t columns, std::int64_t k, DType t) {
  const double flops = 2 * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(k);
  return {name, fmt::format("{} x {} x {}", rows, k, columns), 0, flops, [=](Tensors& m) {
            const Tensor out = m.random(t, {rows, columns}), x = m.random(t, {rows, k}), w = m.random(t, {columns, k});
            const Fp8Matrix a = acquire(m, Blocks::rows, rows, k), b = acquire(m, Blocks::squares, columns, k);
            return Call{
                [=](Ops& ops, Stream& stream) { ops.fp8_product(stream, out, a, b, Tensor(), Accumulate::overwrite); },
                [=](Ops& ops, Stream& stream) {
                  ops.fp8_quantise(stream, a, {}, x);
                  ops.fp8_quantise(stream, b, {}, w);
                }};
          }};
}

Case rounding(const std::string& name, std::int64_t rows, std::int64_t k, Blocks blocks, bool by_row, bool by_column,
              DType t) {
  const double written = (by_row ? 1 : 0) + (by_column ? 1 : 0);
  const double elements = static_cast<double>(rows) * static_cast<double>(k);
  return {name, fmt::format("{} x {}", rows, k), elements * (static_cast<double>(size_of(t)) + written), 0,
          [=](Tensors& m) {
            const Tensor x = m.random(t, {rows, k});
            const Fp8Matrix to_rows = by_row ? acquire(m, blocks, rows, k) : Fp8Matrix(),
                            to_columns = by_column ? acquire(m, blocks, k, rows) : Fp8Matrix();
            return Call{[=](Ops& ops, Stream& stream) { ops.fp8_quantise(stream, to_rows, to_columns, x); }};
          }};
}

}  // namespace

std::vector<Case> fp8_cases(const std::string& which, std::int64_t tokens, std::int64_t in, std::int64_t out,
                            DType activations) {
  const DType t = activations;
  // The gradient of a weight adds up over tokens, in whole blocks.
  const std::int64_t whole = Fp8Matrix::width(tokens);
  return {product("fp8 linear " + which, tokens, out, in, t),
          product("fp8 linear_grad_input " + which, tokens, in, out, t),
          product("fp8 linear_grad_weight " + which, out, in, whole, t),
          rounding("fp8_quantise x " + which, tokens, in, Blocks::rows, true, false, t),
          rounding("fp8_quantise x by column " + which, tokens, in, Blocks::squares, false, true, t),
          rounding("fp8_quantise dy, both, " + which, tokens, out, Blocks::rows, true, true, t),
          rounding("fp8_quantise w " + which, out, in, Blocks::squares, true, false, t)};
}

std::vector<Case> fp8_operand_cases(std::int64_t n, std::int64_t hidden, std::int64_t width, MlpActivation gate,
                                    DType activations) {
  const DType t = activations;
  const std::int64_t inputs = inputs_of(gate) * width;
  const std::string of_norm = fmt::format("{} x {}", n, hidden), of_activation = fmt::format("{} x {}", n, width);
  const auto bytes = [t](std::int64_t elements, std::int64_t codes) {
    return static_cast<double>(size_of(t)) * static_cast<double>(elements) + static_cast<double>(codes);
  };
  return {
      {"add_rms_norm to fp8", of_norm, bytes(3 * n * hidden, n * hidden), 0,
       [=](Tensors& m) {
         const Tensor sum = m.random(t, {n, hidden}), x = m.random(t, {n, hidden}), delta = m.random(t, {n, hidden}),
                      weight = m.random(t, {hidden}), inv_rms = m.random(DType::f32, {n});
         const Fp8Matrix rows = acquire(m, Blocks::rows, n, hidden);
         return Call{[=](Ops& ops, Stream& stream) {
           ops.add_rms_norm(stream, Tensor(), sum, inv_rms, x, delta, weight, 1e-6f, rows);
         }};
       }},
      {"fp8_quantise_norm", of_norm, bytes(n * hidden, n * hidden), 0,
       [=](Tensors& m) {
         const Tensor x = m.random(t, {n, hidden}), weight = m.random(t, {hidden}), inv_rms = m.random(DType::f32, {n});
         const Fp8Matrix columns = acquire(m, Blocks::squares, hidden, n);
         return Call{[=](Ops& ops, Stream& stream) { ops.fp8_quantise_norm(stream, columns, x, inv_rms, weight, 0); }};
       }},
      {"swiglu to fp8", of_activation, bytes(n * inputs, n * width), 0,
       [=](Tensors& m) {
         const Tensor gate_up = m.random(t, {n, inputs});
         const Fp8Matrix rows = acquire(m, Blocks::rows, n, width);
         return Call{[=](Ops& ops, Stream& stream) { ops.swiglu(stream, Tensor(), gate_up, gate, rows); }};
       }},
      {"fp8_swiglu_grad", of_activation, bytes(n * (inputs + width), n * (2 * inputs + width)), 0, [=](Tensors& m) {
         const Tensor gate_up = m.random(t, {n, inputs}), dout = m.random(t, {n, width});
         const Fp8Matrix rows = acquire(m, Blocks::rows, n, inputs), columns = acquire(m, Blocks::rows, inputs, n),
                         activated = acquire(m, Blocks::squares, width, n);
         return Call{[=](Ops& ops, Stream& stream) {
           ops.fp8_swiglu_grad(stream, {.rows = rows,
                                        .columns = columns,
                                        .activated = activated,
                                        .dout = dout,
                                        .gate_up = gate_up,
                                        .activation = gate});
         }};
       }}};
}

}  // namespace so
