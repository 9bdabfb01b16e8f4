#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "support/instruction_sets.h"
#include "support/random_tensors.h"
#include "support/rig.h"

namespace so::test::norm_test {
namespace {

using Values = std::vector<double>;
constexpr double kU = 0x1p-24;  // unit roundoff of the arithmetic inside

// A sum over a row of `width` terms: the shortest vectors hold 4 floats and 4 sums run side by side, so no term meets
// more than width / 16 additions, plus those that join the sums and the row's end, plus the roundings of the term.
double sum_error(std::int64_t width) { return (static_cast<double>(width) / 16 + 24) * kU; }

struct Reference {
  Values out, inv_rms;
};

Reference rms_norm(const Values& x, const Values& weight, double epsilon) {
  const std::size_t width = weight.size(), n = x.size() / width;
  Reference ref{Values(x.size()), Values(n)};
  for (std::size_t row = 0; row < n; ++row) {
    double squares = 0;
    for (std::size_t i = 0; i < width; ++i) squares += x[row * width + i] * x[row * width + i];
    ref.inv_rms[row] = 1.0 / std::sqrt(squares / static_cast<double>(width) + epsilon);
    for (std::size_t i = 0; i < width; ++i)
      ref.out[row * width + i] = x[row * width + i] * ref.inv_rms[row] * weight[i];
  }
  return ref;
}

struct Gradients {
  Values dx, dweight;
  Values dx_scale, dweight_scale;  // sums of magnitudes: what relative errors of the parts are relative to
};

Gradients rms_norm_grad(const Values& dout, const Values& residual, const Values& x, const Values& inv_rms,
                        const Values& weight) {
  const std::size_t width = weight.size(), n = x.size() / width;
  Gradients grad{Values(x.size()), Values(width), Values(x.size()), Values(width)};
  for (std::size_t row = 0; row < n; ++row) {
    const double r = inv_rms[row];
    double mean = 0, mean_magnitude = 0;
    for (std::size_t i = 0; i < width; ++i) {
      const double term = dout[row * width + i] * weight[i] * x[row * width + i] * r / static_cast<double>(width);
      mean += term;
      mean_magnitude += std::abs(term);
    }
    for (std::size_t i = 0; i < width; ++i) {
      const std::size_t at = row * width + i;
      const double g = dout[at] * weight[i], normed = x[at] * r, res = residual.empty() ? 0.0 : residual[at];
      grad.dx[at] = r * (g - normed * mean) + res;
      grad.dx_scale[at] = r * (std::abs(g) + std::abs(normed) * mean_magnitude) + std::abs(res);
      grad.dweight[i] += dout[at] * normed;
      grad.dweight_scale[i] += std::abs(dout[at] * normed);
    }
  }
  return grad;
}

struct Case {
  std::int64_t n, width;
  double magnitude;
  float epsilon;
};
// One row and one column, lengths that are no multiple of any vector, several blocks of rows, magnitudes at which
// epsilon is everything and nothing.
const Case kCases[] = {{1, 1, 1, 1e-6f},      {1, 384, 1, 1e-6f},   {3, 33, 1, 1e-5f},
                       {65, 127, 1, 1e-6f},   {130, 260, 1, 1e-6f}, {5, 96, 1e-4, 1e-6f},
                       {5, 96, 1e-12, 1e-6f}, {5, 97, 3e4, 1e-6f},  {2, 64, 1e15, 1e-6f}};

std::string name(const Case& c, DType dtype) {
  return fmt::format("{}x{} of {}, magnitude {}", c.n, c.width, name_of(dtype), c.magnitude);
}

void check_forward(Rig& rig, const Case& c, DType dtype, bool add) {
  Stream& s = rig.stream();
  const auto [n, width, magnitude, epsilon] = c;
  const TestTensor x = random_tensor(s, dtype, {n, width}, 1, magnitude);
  const TestTensor delta = random_tensor(s, dtype, {n, width}, 2, 0.5 * magnitude);
  const TestTensor weight = random_tensor(s, dtype, {width}, 3, 2.0);
  const TestTensor out(s, dtype, {n, width}), sum(s, dtype, {n, width}), inv_rms(s, DType::f32, {n});
  rig.ops().add_rms_norm(s, out, add ? sum : Tensor(), inv_rms, x, add ? delta : Tensor(), weight, epsilon);
  Values normed = x.values(s);
  if (add) {
    const Values d = delta.values(s);
    for (std::size_t i = 0; i < normed.size(); ++i) {
      const float exact_order = static_cast<float>(normed[i]) + static_cast<float>(d[i]);
      normed[i] = dtype == DType::bf16 ? static_cast<float>(bf16(exact_order)) : exact_order;
    }
    EXPECT_EQ(sum.values(s), normed) << name(c, dtype);  // one addition, one rounding: nothing to differ in
  }
  const Reference ref = rms_norm(normed, weight.values(s), epsilon);
  expect_close(inv_rms.values(s), ref.inv_rms, sum_error(width), 0, name(c, dtype) + ", inv_rms");
  expect_close(out.values(s), ref.out, sum_error(width) + unit_roundoff(dtype), 0, name(c, dtype) + ", out");
}

void check_backward(Rig& rig, const Case& c, DType dtype, DType weight_grad, Accumulate mode, bool with_residual) {
  Stream& s = rig.stream();
  const auto [n, width, magnitude, epsilon] = c;
  const TestTensor x = random_tensor(s, dtype, {n, width}, 1, magnitude);
  const TestTensor dout = random_tensor(s, dtype, {n, width}, 2), weight = random_tensor(s, dtype, {width}, 3, 2.0);
  const Values r = rms_norm(x.values(s), weight.values(s), epsilon).inv_rms;
  const TestTensor inv_rms(s, DType::f32, {n}, r);
  const TestTensor residual = random_tensor(s, dtype, {n, width}, 4, r[0]);  // as large as the other part of dx
  const TestTensor dx(s, dtype, {n, width}), dweight = random_tensor(s, weight_grad, {width}, 5);
  const Values before = dweight.values(s);
  rig.ops().rms_norm_grad(s, {.dx = dx,
                              .dweight = dweight,
                              .dout = dout,
                              .residual = with_residual ? residual : Tensor(),
                              .x = x,
                              .inv_rms = inv_rms,
                              .weight = weight,
                              .dweight_mode = mode});

  Gradients ref = rms_norm_grad(dout.values(s), with_residual ? residual.values(s) : Values(), x.values(s),
                                inv_rms.values(s), weight.values(s));
  for (std::size_t i = 0; i < ref.dx.size(); ++i)
    ref.dx_scale[i] = sum_error(width) * ref.dx_scale[i] + unit_roundoff(dtype) * std::abs(ref.dx[i]);
  expect_within(dx.values(s), ref.dx, ref.dx_scale, name(c, dtype) + ", dx");
  for (std::size_t i = 0; i < ref.dweight.size(); ++i) {
    if (mode == Accumulate::add) ref.dweight[i] += before[i];
    // 64 additions in a block, 3 roundings in a term; the blocks meet in double.
    ref.dweight_scale[i] = 67 * kU * ref.dweight_scale[i] + unit_roundoff(weight_grad) * std::abs(ref.dweight[i]);
  }
  expect_within(dweight.values(s), ref.dweight, ref.dweight_scale, name(c, dtype) + ", dweight");
}

TEST(AddRmsNorm, AgreesWithDoublePrecision) {
  Rig rig;
  for_each_instruction_set([&] {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Case& c : kCases)
        for (const bool add : {false, true}) check_forward(rig, c, dtype, add);
  });
}

TEST(RmsNormGrad, AgreesWithDoublePrecision) {
  Rig rig;
  for_each_instruction_set([&] {
    for (const Case& c : kCases) {
      for (const bool residual : {false, true}) {
        check_backward(rig, c, DType::f32, DType::f32, Accumulate::overwrite, residual);
        check_backward(rig, c, DType::f32, DType::f32, Accumulate::add, residual);
        check_backward(rig, c, DType::bf16, DType::f32, Accumulate::add, residual);
        check_backward(rig, c, DType::bf16, DType::bf16, Accumulate::add, residual);
      }
    }
  });
}

// The gradient of loss = sum(dout * out) against differences of the forward pass in double, independent of any formula.
TEST(RmsNormGrad, AgreesWithFiniteDifferences) {
  Rig rig;
  Stream& s = rig.stream();
  const std::int64_t n = 3, width = 19;
  const double epsilon = 1e-2, step = 1e-5;
  const TestTensor x = random_tensor(s, DType::f32, {n, width}, 1), dout = random_tensor(s, DType::f32, {n, width}, 2);
  const TestTensor weight = random_tensor(s, DType::f32, {width}, 3);
  const TestTensor out(s, DType::f32, {n, width}), inv_rms(s, DType::f32, {n});
  const TestTensor dx(s, DType::f32, {n, width}), dweight(s, DType::f32, {width});
  rig.ops().add_rms_norm(s, out, Tensor(), inv_rms, x, Tensor(), weight, static_cast<float>(epsilon));
  rig.ops().rms_norm_grad(s,
                          {.dx = dx, .dweight = dweight, .dout = dout, .x = x, .inv_rms = inv_rms, .weight = weight});
  const Values dy = dout.values(s);
  Values xs = x.values(s), ws = weight.values(s);
  const auto slope = [&](double& at) {
    const double kept = at;
    double loss[2] = {};
    for (const int side : {0, 1}) {
      at = side == 0 ? kept - step : kept + step;
      const Values y = rms_norm(xs, ws, static_cast<float>(epsilon)).out;
      for (std::size_t i = 0; i < y.size(); ++i) loss[side] += dy[i] * y[i];
    }
    at = kept;
    return (loss[1] - loss[0]) / (2 * step);
  };
  Values dx_ref, dweight_ref;
  for (double& at : xs) dx_ref.push_back(slope(at));
  for (double& at : ws) dweight_ref.push_back(slope(at));
  // Gradients of order 1 in fp32, differences good to step^2 = 1e-10 and 1e-16 / step.
  expect_close(dx.values(s), dx_ref, 0, 1e-5, "dx");
  expect_close(dweight.values(s), dweight_ref, 0, 1e-5, "dweight");
}

TEST(AddRmsNorm, TheSumMayBeEitherAddend) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::int64_t n = 70, width = 83;
    const TestTensor weight = random_tensor(s, dtype, {width}, 3);
    std::vector<std::byte> out_bytes, sum_bytes;
    for (const int alias : {0, 1, 2}) {
      const TestTensor x = random_tensor(s, dtype, {n, width}, 1), delta = random_tensor(s, dtype, {n, width}, 2);
      const TestTensor out(s, dtype, {n, width}), own(s, dtype, {n, width}), inv_rms(s, DType::f32, {n});
      const TestTensor& sum = alias == 0 ? own : alias == 1 ? x : delta;
      rig.ops().add_rms_norm(s, out, sum, inv_rms, x, delta, weight, 1e-6f);
      if (alias == 0) {
        out_bytes = out.bytes(s);
        sum_bytes = sum.bytes(s);
      }
      EXPECT_EQ(out.bytes(s), out_bytes);
      EXPECT_EQ(sum.bytes(s), sum_bytes);
    }
  }
}

TEST(RmsNormGrad, DxMayBeTheResidualOrDout) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::int64_t n = 70, width = 83;
    const TestTensor x = random_tensor(s, dtype, {n, width}, 1), weight = random_tensor(s, dtype, {width}, 3);
    const TestTensor inv_rms = random_tensor(s, DType::f32, {n}, 4);
    std::vector<std::byte> dx_bytes, dweight_bytes;
    for (const int alias : {0, 1, 2}) {
      const TestTensor dout = random_tensor(s, dtype, {n, width}, 2), residual = random_tensor(s, dtype, {n, width}, 5);
      const TestTensor own(s, dtype, {n, width}), dweight(s, DType::f32, {width});
      const TestTensor& dx = alias == 0 ? own : alias == 1 ? residual : dout;
      rig.ops().rms_norm_grad(s, {.dx = dx,
                                  .dweight = dweight,
                                  .dout = dout,
                                  .residual = residual,
                                  .x = x,
                                  .inv_rms = inv_rms,
                                  .weight = weight});
      if (alias == 0) {
        dx_bytes = dx.bytes(s);
        dweight_bytes = dweight.bytes(s);
      }
      EXPECT_EQ(dx.bytes(s), dx_bytes);
      EXPECT_EQ(dweight.bytes(s), dweight_bytes);
    }
  }
}

TEST(RmsNorm, TheNumberOfThreadsDoesNotShow) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::vector<std::vector<std::byte>> first;
    for (const int threads : {1, 2, 3, 5}) {
      Rig rig(threads);
      Stream& s = rig.stream();
      const std::int64_t n = 333, width = 777;
      const TestTensor x = random_tensor(s, dtype, {n, width}, 1), dout = random_tensor(s, dtype, {n, width}, 2);
      const TestTensor weight = random_tensor(s, dtype, {width}, 3), inv_rms(s, DType::f32, {n});
      const TestTensor out(s, dtype, {n, width}), sum(s, dtype, {n, width}), dx(s, dtype, {n, width});
      const TestTensor dweight = random_tensor(s, DType::f32, {width}, 4);
      rig.ops().add_rms_norm(s, out, sum, inv_rms, x, dout, weight, 1e-6f);
      rig.ops().rms_norm_grad(s, {.dx = dx,
                                  .dweight = dweight,
                                  .dout = dout,
                                  .residual = x,
                                  .x = sum,
                                  .inv_rms = inv_rms,
                                  .weight = weight,
                                  .dweight_mode = Accumulate::add});
      const std::vector<std::vector<std::byte>> all = {out.bytes(s), sum.bytes(s), inv_rms.bytes(s), dx.bytes(s),
                                                       dweight.bytes(s)};
      if (first.empty()) first = all;
      EXPECT_EQ(all, first) << threads << " threads";
    }
  }
}

TEST(RmsNorm, ANaNStaysInItsRow) {
  Rig rig;
  Stream& s = rig.stream();
  Values xs = random_values(3 * 40, 1);
  xs[40 + 7] = std::nan("");
  const TestTensor x(s, DType::f32, {3, 40}, xs), weight = random_tensor(s, DType::f32, {40}, 2);
  const TestTensor out(s, DType::f32, {3, 40}), inv_rms(s, DType::f32, {3});
  rig.ops().add_rms_norm(s, out, Tensor(), inv_rms, x, Tensor(), weight, 1e-6f);
  const Values y = out.values(s);
  for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y[i]), i / 40 == 1) << i;
}

// With terms, the norm is that with the offset added to the weight, of the sum with the scaled addend: the same numbers
// written in another way, which are exact where offset and scale are powers of two and the weight has few digits.
TEST(RmsNorm, TermsAreThoseOfTheFormula) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t width : {33, 256}) {
      const std::int64_t n = 70;
      Values stored = random_values(static_cast<std::size_t>(width), 3), plain = stored;
      for (std::size_t i = 0; i < stored.size(); ++i) {
        stored[i] = std::round(stored[i] * 16) / 32;  // with the offset 6 bits: exact in bf16
        plain[i] = stored[i] + 1;
      }
      const TestTensor x = random_tensor(s, dtype, {n, width}, 1), delta = random_tensor(s, dtype, {n, width}, 2);
      Values quarter = delta.values(s);
      for (double& d : quarter) d *= 0.25;
      const TestTensor scaled(s, dtype, {n, width}, quarter), offset_weight(s, dtype, {width}, stored),
          weight(s, dtype, {width}, plain);
      std::vector<std::vector<std::byte>> results;
      for (const bool terms : {false, true}) {
        const TestTensor out(s, dtype, {n, width}), sum(s, dtype, {n, width}), inv_rms(s, DType::f32, {n});
        const TestTensor dx(s, dtype, {n, width}), dweight(s, DType::f32, {width});
        const float offset = terms ? 1.0f : 0.0f;
        const Tensor w = terms ? offset_weight : weight;
        rig.ops().add_rms_norm(s, out, sum, inv_rms, x, terms ? delta : scaled, w, {1e-6f, offset, terms ? 0.25f : 1});
        rig.ops().rms_norm_grad(s, {.dx = dx,
                                    .dweight = dweight,
                                    .dout = delta,
                                    .residual = x,
                                    .x = sum,
                                    .inv_rms = inv_rms,
                                    .weight = w,
                                    .weight_offset = offset});
        for (const TestTensor* t : {&out, &sum, &inv_rms, &dx, &dweight}) results.push_back(t->bytes(s));
      }
      for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(results[i + 5], results[i]) << i << ' ' << name_of(dtype);
    }
}

// A projection inside wider rows is normed as the same rows would be by themselves, and nothing beside it is written.
TEST(ProjectionNorm, IsTheNormOfTheRowsByThemselves) {
  Rig rig;
  Stream& s = rig.stream();
  struct Shape {
    std::int64_t heads, head_dim, before, after;
  };
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [heads, head_dim, before, after] : {Shape{3, 11, 5, 2}, Shape{4, 16, 64, 32}, Shape{1, 8, 0, 8}}) {
      const std::int64_t n = 130, width = heads * head_dim, pitch = before + width + after;
      const auto column = [&, before = before](const Values& rows, std::int64_t of) {
        Values inside;
        for (std::int64_t row = 0; row < n; ++row)
          inside.insert(inside.end(), rows.begin() + row * of + before, rows.begin() + row * of + before + width);
        return inside;
      };
      const TestTensor in = random_tensor(s, dtype, {n, pitch}, 1), dout = random_tensor(s, dtype, {n, pitch}, 2);
      const TestTensor weight = random_tensor(s, dtype, {width}, 3, 2.0);
      const TestTensor out = random_tensor(s, dtype, {n, pitch}, 4), din = random_tensor(s, dtype, {n, pitch}, 5);
      const TestTensor inv_rms(s, DType::f32, {n}), dweight(s, DType::f32, {width});
      Values out_expected = out.values(s), din_expected = din.values(s);
      const auto part = [&, heads = heads, head_dim = head_dim, before = before](Tensor rows) {
        return Heads{rows, before, heads, head_dim};
      };
      const HeadNorm norm{weight, 1e-5f, inv_rms, 0.5f};
      rig.ops().projection_norm(s, part(out), part(in), norm);
      rig.ops().projection_norm_grad(
          s, {.din = part(din), .dout = part(dout), .in = part(in), .norm = norm, .dweight = dweight});

      const TestTensor x(s, dtype, {n, width}, column(in.values(s), pitch)),
          dy(s, dtype, {n, width}, column(dout.values(s), pitch));
      const TestTensor y(s, dtype, {n, width}), dx(s, dtype, {n, width}), r(s, DType::f32, {n}),
          dw(s, DType::f32, {width});
      rig.ops().add_rms_norm(s, y, Tensor(), r, x, Tensor(), weight, {1e-5f, 0.5f});
      rig.ops().rms_norm_grad(
          s, {.dx = dx, .dweight = dw, .dout = dy, .x = x, .inv_rms = r, .weight = weight, .weight_offset = 0.5f});
      const Values inside = y.values(s), gradient = dx.values(s);
      for (std::int64_t row = 0; row < n; ++row)
        for (std::int64_t i = 0; i < width; ++i) {
          out_expected[static_cast<std::size_t>(row * pitch + before + i)] =
              inside[static_cast<std::size_t>(row * width + i)];
          din_expected[static_cast<std::size_t>(row * pitch + before + i)] =
              gradient[static_cast<std::size_t>(row * width + i)];
        }
      // Rows that are not aligned take other kernels of a GPU, which add in another order: a few roundings.
      const double close = sum_error(width) + unit_roundoff(dtype);
      expect_close(out.values(s), out_expected, close, 0, "out");
      expect_close(inv_rms.values(s), r.values(s), sum_error(width), 0, "inv_rms");
      const double largest = 8;  // of the gradients, which are sums of terms of order 1
      expect_close(din.values(s), din_expected, close, close * largest, "din");
      expect_close(dweight.values(s), dw.values(s), 0, sum_error(width) * largest * static_cast<double>(n), "dweight");
    }
}

TEST(ProjectionNorm, TheGradientMayLieOnItsInput) {
  Rig rig;
  Stream& s = rig.stream();
  const std::int64_t n = 70, width = 24;
  const TestTensor in = random_tensor(s, DType::f32, {n, width}, 1), dout = random_tensor(s, DType::f32, {n, width}, 2);
  const TestTensor weight = random_tensor(s, DType::f32, {12}, 3), inv_rms(s, DType::f32, {n}, Values(n, 0.5));
  const TestTensor din = random_tensor(s, DType::f32, {n, width}, 2), dw(s, DType::f32, {12}),
                   same(s, DType::f32, {12});
  const auto part = [](Tensor rows) { return Heads{rows, 6, 2, 6}; };
  const HeadNorm norm{weight, 0, inv_rms};
  rig.ops().projection_norm_grad(s,
                                 {.din = part(din), .dout = part(dout), .in = part(in), .norm = norm, .dweight = dw});
  rig.ops().projection_norm_grad(
      s, {.din = part(dout), .dout = part(dout), .in = part(in), .norm = norm, .dweight = same});
  EXPECT_EQ(dout.bytes(s), din.bytes(s));
  EXPECT_EQ(same.bytes(s), dw.bytes(s));
  EXPECT_THROW(rig.ops().projection_norm(s, part(in), part(in), norm), Bug);
  EXPECT_THROW(rig.ops().projection_norm(s, {dout, 6, 3, 6}, {in, 6, 3, 6}, norm), Bug);  // a weight of 2 heads
}

TEST(AddScaled, AgreesWithDoublePrecisionWhereverItIsWritten) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t width : {1, 37, 512})
      for (const bool sum : {false, true})
        for (const int alias : {0, 1, 2}) {
          if (alias == 1 && !sum) continue;
          const TestTensor x = random_tensor(s, dtype, {33, width}, 1), delta = random_tensor(s, dtype, {33, width}, 2);
          const TestTensor own(s, dtype, {33, width});
          Values expected = delta.values(s), allowed;
          const Values xs = x.values(s);
          for (std::size_t i = 0; i < expected.size(); ++i) {
            const double scaled = static_cast<double>(0.3f) * expected[i];
            expected[i] = scaled + (sum ? xs[i] : 0);
            allowed.push_back(2 * kU * (std::abs(scaled) + std::abs(xs[i])) +
                              unit_roundoff(dtype) * std::abs(expected[i]));
          }
          const TestTensor& out = alias == 0 ? own : alias == 1 ? x : delta;
          rig.ops().add_scaled(s, out, sum ? x : Tensor(), delta, 0.3f);
          expect_within(out.values(s), expected, allowed, "add_scaled");
        }
  const TestTensor a(s, DType::f32, {2, 3}), b(s, DType::f32, {3, 2});
  EXPECT_THROW(rig.ops().add_scaled(s, a, Tensor(), b, 1), Bug);
  EXPECT_THROW(rig.ops().add_scaled(s, a, b, a, 1), Bug);
}

TEST(ScaleSum, AgreesWithDoublePrecisionWhereverItIsWritten) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t width : {1, 37, 512})
      for (const bool sum : {false, true})
        for (const int alias : {0, 1, 2}) {
          if (alias == 1 && !sum) continue;
          const TestTensor x = random_tensor(s, dtype, {33, width}, 1), delta = random_tensor(s, dtype, {33, width}, 2);
          const TestTensor own(s, dtype, {33, width}), factor(s, dtype, {1}, {0.40625});
          Values expected = delta.values(s), allowed;
          const Values xs = x.values(s);
          for (std::size_t i = 0; i < expected.size(); ++i) {
            const double size = std::abs(expected[i]) + std::abs(xs[i]);
            expected[i] = 0.40625 * (expected[i] + (sum ? xs[i] : 0));
            allowed.push_back(2 * kU * size + unit_roundoff(dtype) * std::abs(expected[i]));
          }
          const TestTensor& out = alias == 0 ? own : alias == 1 ? x : delta;
          rig.ops().scale_sum(s, out, sum ? x : Tensor(), delta, factor);
          expect_within(out.values(s), expected, allowed, "scale_sum");
        }
  const TestTensor a(s, DType::f32, {2, 3}), b(s, DType::f32, {3, 2}), one(s, DType::f32, {1}), two(s, DType::f32, {2});
  EXPECT_THROW(rig.ops().scale_sum(s, a, Tensor(), b, one), Bug);
  EXPECT_THROW(rig.ops().scale_sum(s, a, Tensor(), a, two), Bug);
}

TEST(RmsNorm, RefusesWrongArguments) {
  Rig rig;
  Stream& s = rig.stream();
  const TestTensor x(s, DType::bf16, {4, 8}), out(s, DType::bf16, {4, 8}), single(s, DType::f32, {4, 8});
  const TestTensor weight(s, DType::bf16, {8}), short_weight(s, DType::bf16, {7}), inv_rms(s, DType::f32, {4});
  const TestTensor inv_rms_bf16(s, DType::bf16, {4}), dweight(s, DType::f32, {8});
  Ops& ops = rig.ops();
  EXPECT_THROW(ops.add_rms_norm(s, out, Tensor(), inv_rms, x, Tensor(), short_weight, 0), Bug);
  EXPECT_THROW(ops.add_rms_norm(s, single, Tensor(), inv_rms, x, Tensor(), weight, 0), Bug);
  EXPECT_THROW(ops.add_rms_norm(s, out, Tensor(), inv_rms_bf16, x, Tensor(), weight, 0), Bug);
  EXPECT_THROW(ops.add_rms_norm(s, out, out, inv_rms, x, Tensor(), weight, 0), Bug);  // a sum of one
  EXPECT_THROW(ops.add_rms_norm(s, out, Tensor(), inv_rms, x, x, weight, 0), Bug);    // and no place for one of two
  EXPECT_THROW(ops.rms_norm_grad(s, {.dx = out,
                                     .dweight = Tensor(),
                                     .dout = x,
                                     .x = x,
                                     .inv_rms = inv_rms,
                                     .weight = weight,
                                     .dweight_mode = Accumulate::add}),
               Bug);
  EXPECT_THROW(ops.rms_norm_grad(s, {.dx = out,
                                     .dweight = dweight,
                                     .dout = x,
                                     .residual = single,
                                     .x = x,
                                     .inv_rms = inv_rms,
                                     .weight = weight,
                                     .dweight_mode = Accumulate::add}),
               Bug);
}

}  // namespace
}  // namespace so::test::norm_test
