#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/spread_heads.h"
#include "support/instruction_sets.h"
#include "support/rig.h"

namespace so::test::causal_conv_test {
namespace {

using Values = std::vector<double>;
constexpr double kU = 0x1p-24;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct Case {
  std::vector<std::int64_t> documents;
  std::int64_t channels, taps, margin = 0;
  bool bias = false;
  std::int64_t rows() const {
    std::int64_t sum = 0;
    for (const std::int64_t length : documents) sum += length;
    return sum;
  }
  std::string name(DType dtype) const {
    return fmt::format("{} rows in {} documents, {} channels, {} taps, margin {}, {}, {}", rows(), documents.size(),
                       channels, taps, margin, bias ? "bias" : "no bias", name_of(dtype));
  }
};
// Documents shorter than the taps, empty ones, ends at and around a block's; channels that no vector divides, and
// more than a tile; all numbers of taps from one to the most.
const Case kCases[] = {{{1}, 1, 4},
                       {{5, 1, 2, 0, 3, 1}, 37, 4, 3},
                       {{64, 63, 65, 200}, 64, 4},
                       {{130, 70}, 520, 4, 8},
                       {{3, 100}, 33, 1, 1},
                       {{7, 3, 90}, 24, 2},
                       {{9, 2, 80}, 40, 3},
                       {{1, 20, 5, 75}, 48, 5},
                       {{10, 7, 66}, 17, 8, 2},
                       {{64, 63, 65, 2}, 64, 4, 0, true},
                       {{5, 1, 200}, 290, 4, 3, true},
                       {{3, 70}, 40, 7, 8, true}};

struct Data {
  Data(Stream& s, const Case& c_, DType dtype_)
      : c(c_),
        dtype(dtype_),
        layout{c.rows(), 1, c.channels, c.margin},
        x(s, dtype, layout, 1, 2),
        dout(s, dtype, layout, 2),
        weight(random_tensor(s, dtype, {c.channels, 1, c.taps}, 3)) {
    if (c.bias) bias = random_tensor(s, dtype, {c.channels}, 7);
    Values bounds{0};
    for (const std::int64_t length : c.documents) bounds.push_back(bounds.back() + static_cast<double>(length));
    starts = TestTensor(s, DType::i32, {static_cast<std::int64_t>(bounds.size())}, bounds);
  }
  PackedDocuments documents() const { return {starts, static_cast<std::int64_t>(c.documents.size())}; }
  Ops::CausalConv call(const SpreadHeads& out) const {
    return {.out = out, .x = x, .weight = weight, .bias = bias, .documents = documents()};
  }

  Case c;
  DType dtype;
  HeadLayout layout;
  SpreadHeads x, dout;
  TestTensor weight, bias, starts;
  // Zeros where there is no bias.
  Values biases(Stream& s) const { return c.bias ? bias.values(s) : Values(static_cast<std::size_t>(c.channels), 0.0); }
};

struct Reference {
  Values out, dx, dweight, dbias;
  Values out_scale, dx_scale, dweight_scale, dbias_scale;  // sums of magnitudes
};

Reference reference(const Case& c, const Values& x, const Values& weight, const Values& bias, const Values& dout) {
  Reference ref;
  ref.out = ref.out_scale = ref.dx = ref.dx_scale = Values(x.size(), 0.0);
  ref.dweight = ref.dweight_scale = Values(weight.size(), 0.0);
  ref.dbias = ref.dbias_scale = Values(bias.size(), 0.0);
  std::int64_t begin = 0;
  for (const std::int64_t length : c.documents) {
    for (std::int64_t n = begin; n < begin + length; ++n)
      for (std::int64_t channel = 0; channel < c.channels; ++channel) {
        const auto at = [&](std::int64_t row) { return static_cast<std::size_t>(row * c.channels + channel); };
        const auto b = static_cast<std::size_t>(channel);
        double z = bias[b], z_scale = std::abs(bias[b]);
        const auto each = [&](const auto& f) {
          for (std::int64_t j = 0; j < c.taps; ++j)
            if (const std::int64_t row = n - c.taps + 1 + j; row >= begin)
              f(at(row), static_cast<std::size_t>(channel * c.taps + j));
        };
        each([&](std::size_t i, std::size_t w) { z += weight[w] * x[i], z_scale += std::abs(weight[w] * x[i]); });
        const double s = sigmoid(z), slope = s * (1 + z * sigmoid(-z)), dz = dout[at(n)] * slope;
        ref.out[at(n)] = z * s;
        ref.out_scale[at(n)] = z_scale;
        // z's error counts by the second derivative of SiLU, which is at most 1/2.
        const double dz_scale = std::abs(dout[at(n)]) * (1 + z_scale);
        each([&](std::size_t i, std::size_t w) {
          ref.dx[i] += weight[w] * dz;
          ref.dx_scale[i] += std::abs(weight[w]) * dz_scale;
          ref.dweight[w] += x[i] * dz;
          ref.dweight_scale[w] += std::abs(x[i]) * dz_scale;
        });
        ref.dbias[b] += dz;
        ref.dbias_scale[b] += dz_scale;
      }
    begin += length;
  }
  return ref;
}

void check(Rig& rig, const Case& c, DType dtype, DType weight_grad, Accumulate mode) {
  Stream& s = rig.stream();
  const Data data(s, c, dtype);
  const SpreadHeads out(s, dtype, data.layout, 4), dx(s, dtype, data.layout, 5);
  const TestTensor dweight = random_tensor(s, weight_grad, {c.channels, 1, c.taps}, 6),
                   dbias = c.bias ? random_tensor(s, weight_grad, {c.channels}, 8) : TestTensor();
  const Values before = dweight.values(s), bias_before = c.bias ? dbias.values(s) : Values();
  rig.ops().causal_conv(s, data.call(out));
  rig.ops().causal_conv_grad(s, {.dx = dx,
                                 .dweight = dweight,
                                 .dweight_mode = mode,
                                 .dbias = dbias,
                                 .dbias_mode = mode,
                                 .dout = data.dout,
                                 .forward = data.call(out)});
  Reference ref = reference(c, data.x.values(s), data.weight.values(s), data.biases(s), data.dout.values(s));
  // A sum of at most 9 terms, an exponential of 4 roundoffs and some operations more.
  const double error = (9 + 4 + 8) * kU;
  Values out_off, dx_off;
  for (std::size_t i = 0; i < ref.out.size(); ++i) {
    out_off.push_back(error * 2 * ref.out_scale[i] + unit_roundoff(dtype) * std::abs(ref.out[i]));
    dx_off.push_back(2 * error * ref.dx_scale[i] + unit_roundoff(dtype) * std::abs(ref.dx[i]));
  }
  out.expect(s, ref.out, out_off, c.name(dtype) + ", out");
  dx.expect(s, ref.dx, dx_off, c.name(dtype) + ", dx");
  const auto expect_sums = [&](const TestTensor& got, Values want, Values off, const Values& held, const char* name) {
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (mode == Accumulate::add) want[i] += held[i];
      off[i] = (64 * kU + 2 * error) * off[i] + unit_roundoff(weight_grad) * std::abs(want[i]);
    }
    expect_within(got.values(s), want, off, c.name(dtype) + name);
  };
  expect_sums(dweight, ref.dweight, ref.dweight_scale, before, ", dweight");
  if (c.bias) expect_sums(dbias, ref.dbias, ref.dbias_scale, bias_before, ", dbias");
}

TEST(CausalConv, AgreesWithDoublePrecision) {
  Rig rig;
  for_each_instruction_set([&] {
    for (const Case& c : kCases) {
      check(rig, c, DType::f32, DType::f32, Accumulate::overwrite);
      check(rig, c, DType::f32, DType::f32, Accumulate::add);
      check(rig, c, DType::bf16, DType::f32, Accumulate::add);
      check(rig, c, DType::bf16, DType::bf16, Accumulate::overwrite);
    }
  });
}

// Differences of the forward pass in double: independent of the derivative's formula.
TEST(CausalConv, TheGradientAgreesWithFiniteDifferences) {
  Rig rig;
  Stream& s = rig.stream();
  const Data data(s, {{5, 2, 4}, 6, 4, 0, true}, DType::f32);
  const SpreadHeads out(s, DType::f32, data.layout, 4), dx(s, DType::f32, data.layout, 5);
  const TestTensor dweight(s, DType::f32, {6, 1, 4}), dbias(s, DType::f32, {6});
  rig.ops().causal_conv_grad(
      s, {.dx = dx, .dweight = dweight, .dbias = dbias, .dout = data.dout, .forward = data.call(out)});
  Values x = data.x.values(s), weight = data.weight.values(s), bias = data.bias.values(s);
  const Values dy = data.dout.values(s);
  const auto slopes = [&](Values& of) {
    const double step = 1e-5;
    Values result;
    for (double& at : of) {
      const double kept = at;
      double loss[2] = {0, 0};
      for (const int side : {0, 1}) {
        at = kept + (2 * side - 1) * step;
        const Values y = reference(data.c, x, weight, bias, dy).out;
        for (std::size_t i = 0; i < y.size(); ++i) loss[side] += y[i] * dy[i];
      }
      at = kept;
      result.push_back((loss[1] - loss[0]) / (2 * step));
    }
    return result;
  };
  // Gradients of order 1 in fp32, differences good to step^2 = 1e-10 and 1e-15 / step.
  expect_close(dx.values(s), slopes(x), 0, 1e-5, "dx");
  expect_close(dweight.values(s), slopes(weight), 0, 1e-5, "dweight");
  expect_close(dbias.values(s), slopes(bias), 0, 1e-5, "dbias");
}

// Documents together are, bit for bit, what each is alone, whatever stands before it: nothing leaks.
TEST(CausalConv, DocumentsTogetherAreWhatTheyAreApart) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::vector<std::int64_t>& lengths :
         {std::vector<std::int64_t>{1, 64, 150, 2, 63}, {150, 2, 63, 64, 1}, {2, 1, 63, 150, 64}}) {
      const std::int64_t channels = 72, taps = 4;
      // The contents of a document depend on its length alone.
      const auto rows_of = [&](std::int64_t length, unsigned seed) {
        return random_values(static_cast<std::size_t>(length * channels), static_cast<unsigned>(length) * 10 + seed);
      };
      const TestTensor weight = random_tensor(s, dtype, {channels, 1, taps}, 3);
      const auto run = [&](const std::vector<std::int64_t>& documents) {
        Values x, dout, bounds{0};
        for (const std::int64_t length : documents) {
          const Values xs = rows_of(length, 1), douts = rows_of(length, 2);
          x.insert(x.end(), xs.begin(), xs.end());
          dout.insert(dout.end(), douts.begin(), douts.end());
          bounds.push_back(bounds.back() + static_cast<double>(length));
        }
        const auto n = static_cast<std::int64_t>(bounds.back());
        const TestTensor xt(s, dtype, {n, channels}, x), doutt(s, dtype, {n, channels}, dout),
            y(s, dtype, {n, channels}), dx(s, dtype, {n, channels}), dweight(s, DType::f32, {channels, 1, taps}),
            starts(s, DType::i32, {static_cast<std::int64_t>(bounds.size())}, bounds);
        const Ops::CausalConv call{.out = {y, 0, 1, channels},
                                   .x = {xt, 0, 1, channels},
                                   .weight = weight,
                                   .documents = {starts, static_cast<std::int64_t>(documents.size())}};
        rig.ops().causal_conv(s, call);
        rig.ops().causal_conv_grad(
            s, {.dx = {dx, 0, 1, channels}, .dweight = dweight, .dout = {doutt, 0, 1, channels}, .forward = call});
        return std::pair(y.values(s), dx.values(s));
      };
      const auto [y, dx] = run(lengths);
      std::size_t at = 0;
      for (const std::int64_t length : lengths) {
        const auto [y_alone, dx_alone] = run({length});
        EXPECT_TRUE(std::equal(y_alone.begin(), y_alone.end(), y.begin() + static_cast<std::ptrdiff_t>(at)))
            << length << " rows of " << name_of(dtype);
        EXPECT_TRUE(std::equal(dx_alone.begin(), dx_alone.end(), dx.begin() + static_cast<std::ptrdiff_t>(at)))
            << length << " rows of " << name_of(dtype) << ", dx";
        at += y_alone.size();
      }
    }
}

// A document in pieces of any lengths, with the rows before a piece kept between, is bit for bit what it is at once.
TEST(CausalConv, IsContinued) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t taps : {1, 4, 8}) {
      const std::int64_t channels = 40, rows = 97;
      const TestTensor weight = random_tensor(s, dtype, {channels, 1, taps}, 3),
                       x = random_tensor(s, dtype, {rows, channels}, 1, 2.0), at_once(s, dtype, {rows, channels}),
                       in_pieces(s, dtype, {rows, channels});
      const TestTensor all(s, DType::i32, {2}, {0, static_cast<double>(rows)});
      rig.ops().causal_conv(
          s, {.out = {at_once, 0, 1, channels}, .x = {x, 0, 1, channels}, .weight = weight, .documents = {all, 1}});
      const TestTensor before(s, dtype, {taps - 1, channels},
                              Values(static_cast<std::size_t>((taps - 1) * channels), 0.0));
      std::int64_t begin = 0;
      for (const std::int64_t length : {1, 1, 3, 60, 2, 5, 25}) {
        const TestTensor piece(s, DType::i32, {2}, {0, static_cast<double>(length)});
        rig.ops().causal_conv(s, {.out = {in_pieces.tensor().rows(begin, length), 0, 1, channels},
                                  .x = {x.tensor().rows(begin, length), 0, 1, channels},
                                  .weight = weight,
                                  .documents = {piece, 1},
                                  .before = taps > 1 ? before.tensor() : Tensor()});
        s.synchronize();
        begin += length;
      }
      ASSERT_EQ(begin, rows);
      EXPECT_EQ(in_pieces.bytes(s), at_once.bytes(s)) << taps << " taps of " << name_of(dtype);
      if (taps == 1) continue;
      const Values rows_of_x = x.values(s);
      EXPECT_EQ(before.values(s), Values(rows_of_x.end() - (taps - 1) * channels, rows_of_x.end()));
    }
}

TEST(CausalConv, RowsOfNoDocumentAreLeftAlone) {
  Rig rig;
  Stream& s = rig.stream();
  const std::int64_t channels = 16, rows = 300;
  const TestTensor x = random_tensor(s, DType::f32, {rows, channels}, 1),
                   dout = random_tensor(s, DType::f32, {rows, channels}, 2),
                   out = random_tensor(s, DType::f32, {rows, channels}, 3),
                   dx = random_tensor(s, DType::f32, {rows, channels}, 4);
  const TestTensor weight = random_tensor(s, DType::f32, {channels, 1, 4}, 5), dweight(s, DType::f32, {channels, 1, 4}),
                   alone(s, DType::f32, {channels, 1, 4});
  const TestTensor starts(s, DType::i32, {3}, {70, 90, 200}), inner_starts(s, DType::i32, {3}, {0, 20, 130});
  const auto call = [&](std::int64_t begin, std::int64_t count, Tensor bounds) {
    return Ops::CausalConv{.out = {out.tensor().rows(begin, count), 0, 1, channels},
                           .x = {x.tensor().rows(begin, count), 0, 1, channels},
                           .weight = weight,
                           .documents = {bounds, 2}};
  };
  const auto grad = [&](std::int64_t begin, std::int64_t count, Tensor bounds, Tensor dw) {
    return Ops::CausalConvGrad{.dx = {dx.tensor().rows(begin, count), 0, 1, channels},
                               .dweight = dw,
                               .dout = {dout.tensor().rows(begin, count), 0, 1, channels},
                               .forward = call(begin, count, bounds)};
  };
  const Values out_before = out.values(s), dx_before = dx.values(s);
  rig.ops().causal_conv(s, call(0, rows, starts));
  rig.ops().causal_conv_grad(s, grad(0, rows, starts, dweight));
  const Values out_after = out.values(s), dx_after = dx.values(s);
  rig.ops().causal_conv(s, call(70, 130, inner_starts));
  rig.ops().causal_conv_grad(s, grad(70, 130, inner_starts, alone));
  EXPECT_EQ(out.values(s), out_after);  // the same rows again
  EXPECT_EQ(dx.values(s), dx_after);
  expect_close(dweight.values(s), alone.values(s), 1e-5, 1e-5, "dweight");  // the same terms in other blocks
  for (std::size_t i = 0; i < out_before.size(); ++i)
    if (i < 70 * 16 || i >= 200 * 16) {
      ASSERT_EQ(out_after[i], out_before[i]) << i;
      ASSERT_EQ(dx_after[i], dx_before[i]) << i;
    }
}

TEST(CausalConv, TheNumberOfThreadsDoesNotShow) {
  std::vector<std::vector<std::byte>> first;
  for (const int threads : {1, 2, 5}) {
    Rig rig(threads);
    Stream& s = rig.stream();
    const Data data(s, {{300, 1, 700, 33}, 75, 4, 3}, DType::bf16);
    const SpreadHeads out(s, DType::bf16, data.layout, 4), dx(s, DType::bf16, data.layout, 5);
    const TestTensor dweight(s, DType::f32, {75, 1, 4});
    rig.ops().causal_conv(s, data.call(out));
    rig.ops().causal_conv_grad(s, {.dx = dx, .dweight = dweight, .dout = data.dout, .forward = data.call(out)});
    const std::vector<std::vector<std::byte>> all = {out.bytes(s), dx.bytes(s), dweight.bytes(s)};
    if (first.empty()) first = all;
    EXPECT_EQ(all, first) << threads << " threads";
  }
}

TEST(CausalConv, RefusesWrongArguments) {
  Rig rig;
  Stream& s = rig.stream();
  const Data data(s, {{4}, 8, 4}, DType::bf16), two(s, {{2, 2}, 8, 4}, DType::bf16),
      long_taps(s, {{4}, 8, 9}, DType::bf16);
  const SpreadHeads out(s, DType::bf16, data.layout, 4);
  const TestTensor before(s, DType::bf16, {3, 8}), short_before(s, DType::bf16, {2, 8}),
      dweight(s, DType::f32, {8, 1, 4});
  Ops& ops = rig.ops();
  EXPECT_THROW(ops.causal_conv(s, long_taps.call(out)), Bug);
  EXPECT_THROW(ops.causal_conv(s, data.call(data.x)), Bug);  // in place
  Ops::CausalConv call = data.call(out);
  call.before = short_before;
  EXPECT_THROW(ops.causal_conv(s, call), Bug);
  call = two.call(out), call.before = before;
  EXPECT_THROW(ops.causal_conv(s, call), Bug);
  call = data.call(out), call.weight = dweight;
  EXPECT_THROW(ops.causal_conv(s, call), Bug);
  Ops::CausalConvGrad grad{.dx = out, .dweight = dweight, .dout = data.dout, .forward = data.call(out)};
  grad.forward.before = before;
  EXPECT_THROW(ops.causal_conv_grad(s, grad), Bug);
  grad.forward.before = Tensor(), grad.dx = data.dout;
  EXPECT_THROW(ops.causal_conv_grad(s, grad), Bug);
  grad.dx = data.x;
  EXPECT_THROW(ops.causal_conv_grad(s, grad), Bug);
  call = data.call(out), call.bias = dweight;
  EXPECT_THROW(ops.causal_conv(s, call), Bug);
  grad.dx = out, grad.dbias = data.weight;  // without a bias
  EXPECT_THROW(ops.causal_conv_grad(s, grad), Bug);
}

TEST(CausalConv, DocumentsOutsideTheRowsPoisonTheStream) {
  SO_CPU_ONLY("on a GPU a trap ends the program");
  for (const Values& bounds : {Values{0, 5}, Values{-1, 4}, Values{3, 2}}) {
    Rig rig;
    Stream& s = rig.stream();
    const Data data(s, {{4}, 8, 4}, DType::f32);
    const SpreadHeads out(s, DType::f32, data.layout, 4);
    const TestTensor starts(s, DType::i32, {2}, bounds);
    Ops::CausalConv call = data.call(out);
    call.documents.starts = starts;
    rig.ops().causal_conv(s, call);
    EXPECT_THROW(s.synchronize(), Bug);
  }
}

}  // namespace
}  // namespace so::test::causal_conv_test
