// Ops that leave what they make in FP8: to the bit what fp8_quantise() makes of what they leave in T.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "ops/fp8_layout.h"
#include "support/instruction_sets.h"
#include "support/random_tensors.h"
#include "support/rig.h"

namespace so::test::fp8_fused_test {
namespace {

using Blocks = Fp8Matrix::Blocks;
using Values = std::vector<double>;

// A matrix in FP8 on the device, every byte of it 0xff.
class DeviceCodes {
 public:
  DeviceCodes(Stream& s, Blocks blocks, std::int64_t rows, std::int64_t k)
      : blocks_(blocks),
        codes_(s, DType::u8, {fp8_stored_rows(rows), Fp8Matrix::width(k)}),
        scales_(s, DType::f32,
                {Fp8Matrix::scale_shape(blocks, rows, k)[0], Fp8Matrix::scale_shape(blocks, rows, k)[1]}) {}

  operator Fp8Matrix() const { return {blocks_, codes_, scales_}; }
  void expect_same(Stream& s, const DeviceCodes& expected, const std::string& what) const {
    EXPECT_EQ(codes_.bytes(s), expected.codes_.bytes(s)) << what;
    EXPECT_EQ(scales_.bytes(s), expected.scales_.bytes(s)) << what << ", scales";
  }

 private:
  Blocks blocks_;
  TestTensor codes_, scales_;
};

// Numbers of magnitudes that differ from 64 columns to the next and from row to row, a block of zeros, and, if wanted,
// some that are not finite.
TestTensor numbers(Stream& s, DType dtype, std::int64_t n, std::int64_t k, unsigned seed, double magnitude,
                   bool not_finite) {
  Values values = random_values(static_cast<std::size_t>(n * k), seed, magnitude);
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t j = 0; j < k; ++j) {
      double& x = values[static_cast<std::size_t>(i * k + j)];
      x = i % 5 == 3 && j < 128 ? 0 : std::ldexp(x, static_cast<int>((i * 5 + j / 64 * 11) % 9 - 6));
    }
  if (not_finite) {
    const double infinity = std::numeric_limits<double>::infinity();
    values.front() = infinity, values[values.size() / 2] = std::nan(""), values.back() = -infinity;
  }
  return TestTensor(s, dtype, {n, k}, values);
}

struct Fp8Case {
  std::int64_t n, width;
  DType dtype;
  bool not_finite;
};
// Rows that fill no four and no 128, and those that do.
std::vector<Fp8Case> fp8_cases() {
  std::vector<Fp8Case> cases;
  for (const DType dtype : {DType::bf16, DType::f32})
    for (const auto& [n, width] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {1, 128}, {4, 256}, {127, 128}, {128, 384}, {131, 256}, {258, 128}})
      for (const bool not_finite : {false, true}) cases.push_back({n, width, dtype, not_finite});
  return cases;
}
std::string name_of(const Fp8Case& c) {
  return fmt::format("{} x {} of {}{}", c.n, c.width, so::name_of(c.dtype), c.not_finite ? ", not finite" : "");
}

// The same for activations. Highway's emulation of vectors, which is one of the instruction sets, makes an int of a NaN
// in the exponential function, and the sanitizers end there.
std::vector<Fp8Case> activation_cases() {
  std::vector<Fp8Case> cases = fp8_cases();
#ifdef SO_SANITIZED
  std::erase_if(cases, [](const Fp8Case& c) { return c.not_finite; });
#endif
  return cases;
}

constexpr MlpActivation kActivations[] = {MlpActivation::silu, MlpActivation::gelu_tanh, MlpActivation::relu_squared};

TEST(Fp8Swiglu, LeavesTheRowsOfWhatItMakes) {
  Rig rig;
  Stream& s = rig.stream();
  for_each_instruction_set([&] {
    for (const Fp8Case& c : activation_cases())
      for (const MlpActivation activation : kActivations) {
        const TestTensor gate_up = numbers(s, c.dtype, c.n, inputs_of(activation) * c.width, 1, 40, c.not_finite);
        const TestTensor out(s, c.dtype, {c.n, c.width}), again(s, c.dtype, {c.n, c.width});
        const DeviceCodes expected(s, Blocks::rows, c.n, c.width), alone(s, Blocks::rows, c.n, c.width),
            beside(s, Blocks::rows, c.n, c.width);
        rig.ops().swiglu(s, out, gate_up, activation);
        rig.ops().fp8_quantise(s, expected, {}, out);
        rig.ops().swiglu(s, Tensor(), gate_up, activation, alone);
        rig.ops().swiglu(s, again, gate_up, activation, beside);
        alone.expect_same(s, expected, name_of(c));
        beside.expect_same(s, expected, name_of(c));
        EXPECT_EQ(again.bytes(s), out.bytes(s)) << name_of(c);
      }
  });
}

TEST(Fp8SwigluGrad, LeavesRowsAndColumnsOfWhatItMakes) {
  Rig rig;
  Stream& s = rig.stream();
  if (!rig.ops().multiplies_fp8()) GTEST_SKIP() << "this GPU has no products in FP8";
  for_each_instruction_set([&] {
    for (const Fp8Case& c : activation_cases())
      for (const MlpActivation activation : kActivations) {
        const std::int64_t inputs = inputs_of(activation) * c.width;
        const TestTensor gate_up = numbers(s, c.dtype, c.n, inputs, 1, 40, c.not_finite),
                         dout = numbers(s, c.dtype, c.n, c.width, 2, 1, c.not_finite);
        const TestTensor dgate_up(s, c.dtype, {c.n, inputs}), activated(s, c.dtype, {c.n, c.width});
        const DeviceCodes rows(s, Blocks::rows, c.n, inputs), columns(s, Blocks::rows, inputs, c.n),
            squares(s, Blocks::squares, c.width, c.n);
        rig.ops().swiglu_grad(s, dgate_up, dout, gate_up, activated, activation);
        rig.ops().fp8_quantise(s, rows, columns, dgate_up);
        rig.ops().fp8_quantise(s, {}, squares, activated);

        const DeviceCodes got_rows(s, Blocks::rows, c.n, inputs), got_columns(s, Blocks::rows, inputs, c.n),
            got_squares(s, Blocks::squares, c.width, c.n), rows_alone(s, Blocks::rows, c.n, inputs),
            rows_beside(s, Blocks::rows, c.n, inputs), squares_beside(s, Blocks::squares, c.width, c.n);
        rig.ops().fp8_swiglu_grad(s, {.rows = got_rows,
                                      .columns = got_columns,
                                      .activated = got_squares,
                                      .dout = dout,
                                      .gate_up = gate_up,
                                      .activation = activation});
        rig.ops().fp8_swiglu_grad(s, {.rows = rows_alone, .dout = dout, .gate_up = gate_up, .activation = activation});
        // In the place of what it reads, so this is the last.
        rig.ops().fp8_swiglu_grad(s, {.rows = rows_beside,
                                      .activated = squares_beside,
                                      .dgate_up = gate_up,
                                      .dout = dout,
                                      .gate_up = gate_up,
                                      .activation = activation});
        got_rows.expect_same(s, rows, name_of(c) + ", rows");
        got_columns.expect_same(s, columns, name_of(c) + ", columns");
        got_squares.expect_same(s, squares, name_of(c) + ", activated");
        rows_alone.expect_same(s, rows, name_of(c) + ", rows alone");
        rows_beside.expect_same(s, rows, name_of(c) + ", rows beside the gradient");
        squares_beside.expect_same(s, squares, name_of(c) + ", activated beside the gradient");
        EXPECT_EQ(gate_up.bytes(s), dgate_up.bytes(s)) << name_of(c);
      }
  });
}

TEST(Fp8Norm, LeavesTheRowsOfWhatItMakesAndMakesColumnsAgain) {
  Rig rig;
  Stream& s = rig.stream();
  std::vector<Fp8Case> cases = fp8_cases();
  // As wide as models are, and wider than a block of threads holds in two accesses each.
  for (const std::int64_t width : {5120, 16384}) cases.push_back({5, width, DType::bf16, false});
  for_each_instruction_set([&] {
    for (const Fp8Case& c : cases)
      for (const bool add : {false, true}) {
        const std::string what = name_of(c) + (add ? ", a sum" : "");
        const TestTensor x = numbers(s, c.dtype, c.n, c.width, 1, 4, c.not_finite),
                         delta = numbers(s, c.dtype, c.n, c.width, 2, 4, false),
                         weight = random_tensor(s, c.dtype, {c.width}, 3, 2);
        const NormTerms terms{1e-6f, 0.5f, 0.25f};
        struct Made {
          TestTensor out, sum, inv_rms;
          DeviceCodes rows;
        };
        const auto make = [&](bool out, bool rows) {
          Made made{TestTensor(s, c.dtype, {c.n, c.width}), TestTensor(s, c.dtype, {c.n, c.width}),
                    TestTensor(s, DType::f32, {c.n}), DeviceCodes(s, Blocks::rows, c.n, c.width)};
          rig.ops().add_rms_norm(s, out ? made.out.tensor() : Tensor(), add ? made.sum.tensor() : Tensor(),
                                 made.inv_rms, x, add ? delta.tensor() : Tensor(), weight, terms,
                                 rows ? made.rows : Fp8Matrix());
          return made;
        };
        const Made plain = make(true, false), alone = make(false, true), beside = make(true, true);
        rig.ops().fp8_quantise(s, plain.rows, {}, plain.out);
        for (const Made* made : {&alone, &beside}) {
          made->rows.expect_same(s, plain.rows, what);
          EXPECT_EQ(made->sum.bytes(s), plain.sum.bytes(s)) << what;
          EXPECT_EQ(made->inv_rms.bytes(s), plain.inv_rms.bytes(s)) << what;
        }
        EXPECT_EQ(beside.out.bytes(s), plain.out.bytes(s)) << what;

        const DeviceCodes columns(s, Blocks::squares, c.width, c.n), again(s, Blocks::squares, c.width, c.n);
        rig.ops().fp8_quantise(s, {}, columns, plain.out);
        rig.ops().fp8_quantise_norm(s, again, add ? plain.sum : x, plain.inv_rms, weight, terms.weight_offset);
        again.expect_same(s, columns, what + ", columns");
      }
  });
}

TEST(Fp8Fused, RefusesWhatDoesNotFit) {
  Rig rig;
  Stream& s = rig.stream();
  const TestTensor x(s, DType::bf16, {4, 128}), gate_up(s, DType::bf16, {4, 256}), weight(s, DType::bf16, {128}),
      inv_rms(s, DType::f32, {4});
  const DeviceCodes wide(s, Blocks::rows, 4, 256), squares(s, Blocks::squares, 128, 4), rows(s, Blocks::rows, 4, 128);
  EXPECT_THROW(rig.ops().swiglu(s, Tensor(), gate_up), Bug);
  EXPECT_THROW(rig.ops().swiglu(s, x, gate_up, MlpActivation::silu, wide), Bug);
  EXPECT_THROW(rig.ops().add_rms_norm(s, Tensor(), Tensor(), inv_rms, x, Tensor(), weight, 0), Bug);
  EXPECT_THROW(rig.ops().add_rms_norm(s, x, Tensor(), inv_rms, x, Tensor(), weight, 0, wide), Bug);
  EXPECT_THROW(rig.ops().fp8_quantise_norm(s, rows, x, inv_rms, weight, 0), Bug);
  EXPECT_THROW(rig.ops().fp8_swiglu_grad(s, {.rows = rows, .dout = x, .gate_up = gate_up}), Bug);
  EXPECT_THROW(rig.ops().fp8_swiglu_grad(s, {.dout = x, .gate_up = gate_up}), Bug);
}

}  // namespace
}  // namespace so::test::fp8_fused_test
