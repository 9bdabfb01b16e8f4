#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "support/instruction_sets.h"
#include "support/random_tensors.h"
#include "support/rig.h"

namespace so::test::rotary_test {
namespace {

using Values = std::vector<double>;
constexpr double kU = 0x1p-24;  // unit roundoff of the arithmetic inside
constexpr std::int64_t kPositions = 50;

struct Case {
  std::int64_t n, heads, head_dim, turned, before, after;  // `turned` is R; columns before and after the heads
  std::int64_t gap = 0;                                    // and between them
};
// Whole and partial rotation, halves that no vector divides, heads amid other columns and with gaps between them,
// several blocks of rows.
const Case kCases[] = {{1, 1, 2, 2, 0, 0},         {1, 3, 64, 64, 0, 0},       {5, 2, 64, 16, 0, 0},
                       {70, 3, 34, 34, 5, 3},      {200, 2, 38, 22, 64, 1},    {130, 1, 128, 128, 128, 256},
                       {3, 2, 7, 6, 1, 0},         {130, 4, 64, 64, 0, 0, 64}, {70, 3, 32, 16, 1, 2, 5},
                       {66, 2, 256, 64, 0, 8, 256}};

// The arrays that a test of one case works on.
struct Data {
  Data(Stream& s, const Case& c_, DType dtype_, bool norm_)
      : c(c_),
        dtype(dtype_),
        half(c.turned / 2),
        in(random_tensor(s, dtype, {c.n, width()}, 1, 2.0)),
        dout(random_tensor(s, dtype, {c.n, width()}, 2)),
        positions(s, DType::i32, {c.n}, random_indices(static_cast<std::size_t>(c.n), 3, kPositions)),
        table(s, DType::f32, {kPositions, 2, half}, angles()),
        weight(norm_ ? random_tensor(s, dtype, {c.head_dim}, 4, 2.0) : TestTensor()),
        inv_rms(norm_ ? TestTensor(s, DType::f32, {c.n, c.heads}) : TestTensor()) {}

  std::int64_t step() const { return c.head_dim + c.gap; }
  std::int64_t width() const { return c.before + c.heads * step() + c.after; }
  Heads heads(Tensor rows) const { return {rows, c.before, c.heads, c.head_dim, c.gap > 0 ? step() : 0}; }
  HeadNorm norm() const { return {weight, 1e-5f, inv_rms}; }
  bool has_norm() const { return static_cast<bool>(weight.tensor()); }
  std::string name() const {
    return fmt::format("{} rows, {} heads of {}, {} apart, {} turned, {}{}", c.n, c.heads, c.head_dim, step(), c.turned,
                       name_of(dtype), has_norm() ? ", norm" : "");
  }
  Values angles() const {
    Values t;
    for (std::int64_t p = 0; p < kPositions; ++p)
      for (const bool sine : {false, true})
        for (std::int64_t i = 0; i < half; ++i) {
          const double angle =
              static_cast<double>(p) * std::pow(100.0, -static_cast<double>(i) / static_cast<double>(half));
          t.push_back(1.25 * (sine ? std::sin(angle) : std::cos(angle)));  // 1.25: tables may come scaled
        }
    return t;
  }

  Case c;
  DType dtype;
  std::int64_t half;
  TestTensor in, dout, positions, table, weight, inv_rms;
};

// The elements of one head, and back.
Values head_of(const Data& data, const Values& rows, std::int64_t n, std::int64_t h) {
  const auto at = rows.begin() + n * data.width() + data.c.before + h * data.step();
  return Values(at, at + data.c.head_dim);
}
void put_head(const Data& data, Values& rows, std::int64_t n, std::int64_t h, const Values& head) {
  std::copy(head.begin(), head.end(), rows.begin() + n * data.width() + data.c.before + h * data.step());
}

// sign +1 turns forward, -1 back; with `magnitudes` every term counts by its absolute value.
Values turn(const Values& x, const double* cosines, std::size_t half, double sign, bool magnitudes) {
  Values y = x;
  for (std::size_t i = 0; i < half; ++i) {
    const double cos = cosines[i], sin = sign * cosines[half + i];
    y[i] = x[i] * cos - x[i + half] * sin;
    y[i + half] = x[i + half] * cos + x[i] * sin;
    if (magnitudes) {
      y[i] = std::abs(x[i] * cos) + std::abs(x[i + half] * sin);
      y[i + half] = std::abs(x[i + half] * cos) + std::abs(x[i] * sin);
    }
  }
  if (magnitudes)
    for (std::size_t i = 2 * half; i < y.size(); ++i) y[i] = std::abs(y[i]);
  return y;
}

double inverse_rms(const Values& x, double epsilon) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  return 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
}

Values scaled(Values x, const Values& weight, double r) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= r * (weight.empty() ? 1.0 : weight[i]);
  return x;
}

// As in norm_test.cpp: no term of a row's sum meets more than head_dim / 16 + 24 roundings.
double sum_error(const Data& data) { return (static_cast<double>(data.c.head_dim) / 16 + 24) * kU; }

void check_forward(Rig& rig, const Case& c, DType dtype, bool norm) {
  Stream& s = rig.stream();
  const Data data(s, c, dtype, norm);
  const TestTensor out = random_tensor(s, dtype, {c.n, data.width()}, 9);  // columns beside the heads must stay
  Values expected = out.values(s), allowed(expected.size(), 0.0);
  const Values x = data.in.values(s), table = data.table.values(s), position = data.positions.values(s);
  const Values weight = norm ? data.weight.values(s) : Values();
  Values r_expected;
  for (std::int64_t n = 0; n < c.n; ++n) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      const Values head = head_of(data, x, n, h);
      const double r = norm ? inverse_rms(head, data.norm().epsilon) : 1.0;
      r_expected.push_back(r);
      const Values normed = scaled(head, weight, r);
      const double* cosines = &table[static_cast<std::size_t>(position[static_cast<std::size_t>(n)]) * 2 *
                                     static_cast<std::size_t>(data.half)];
      const auto half = static_cast<std::size_t>(data.half);
      const Values y = turn(normed, cosines, half, 1, false), scale = turn(normed, cosines, half, 1, true);
      Values tolerance(y.size());
      for (std::size_t i = 0; i < y.size(); ++i)
        tolerance[i] = ((norm ? sum_error(data) : 0) + (i < 2 * half ? 2 * kU : 0)) * scale[i] +
                       (norm || i < 2 * half ? unit_roundoff(dtype) * std::abs(y[i]) : 0);  // else a copy: exact
      put_head(data, expected, n, h, y);
      put_head(data, allowed, n, h, tolerance);
    }
  }
  rig.ops().rotary(s, data.heads(out), data.heads(data.in), data.positions, data.table, data.norm());
  expect_within(out.values(s), expected, allowed, data.name());
  if (norm) expect_close(data.inv_rms.values(s), r_expected, sum_error(data), 0, data.name() + ", inv_rms");
}

void check_backward(Rig& rig, const Case& c, DType dtype, bool norm, DType weight_grad, Accumulate mode) {
  Stream& s = rig.stream();
  const Data data(s, c, dtype, norm);
  const TestTensor out(s, dtype, {c.n, data.width()});
  rig.ops().rotary(s, data.heads(out), data.heads(data.in), data.positions, data.table, data.norm());  // for inv_rms
  const TestTensor din = random_tensor(s, dtype, {c.n, data.width()}, 9);
  const TestTensor dweight = norm ? random_tensor(s, weight_grad, {c.head_dim}, 10) : TestTensor();
  Values expected = din.values(s), allowed(expected.size(), 0.0);
  const auto head_dim = static_cast<std::size_t>(c.head_dim), half = static_cast<std::size_t>(data.half);
  Values dw(head_dim, 0.0), dw_scale(head_dim, 0.0);
  const Values dw_before = norm ? dweight.values(s) : Values();
  const Values x = data.in.values(s), dy = data.dout.values(s), table = data.table.values(s);
  const Values position = data.positions.values(s), weight = norm ? data.weight.values(s) : Values();
  const Values inv_rms = norm ? data.inv_rms.values(s) : Values();
  for (std::int64_t n = 0; n < c.n; ++n) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      const double* cosines = &table[static_cast<std::size_t>(position[static_cast<std::size_t>(n)]) * 2 * half];
      const Values head = head_of(data, x, n, h), dhead = head_of(data, dy, n, h);
      Values g = turn(dhead, cosines, half, -1, false), g_scale = turn(dhead, cosines, half, -1, true);
      Values tolerance(head_dim);
      for (std::size_t i = 0; i < head_dim; ++i)
        tolerance[i] = i < 2 * half ? 2 * kU * g_scale[i] + unit_roundoff(dtype) * std::abs(g[i]) : 0;
      if (norm) {
        const double r = inv_rms[static_cast<std::size_t>(n * c.heads + h)];
        double mean = 0, mean_scale = 0;
        for (std::size_t i = 0; i < head_dim; ++i) {
          dw[i] += g[i] * head[i] * r;
          dw_scale[i] += g_scale[i] * std::abs(head[i] * r);
          mean += g[i] * weight[i] * head[i] * r / static_cast<double>(head_dim);
          mean_scale += g_scale[i] * std::abs(weight[i] * head[i] * r) / static_cast<double>(head_dim);
        }
        for (std::size_t i = 0; i < head_dim; ++i) {
          g[i] = r * (g[i] * weight[i] - head[i] * r * mean);
          g_scale[i] = r * (g_scale[i] * std::abs(weight[i]) + std::abs(head[i]) * r * mean_scale);
          tolerance[i] = sum_error(data) * g_scale[i] + unit_roundoff(dtype) * std::abs(g[i]);
        }
      }
      put_head(data, expected, n, h, g);
      put_head(data, allowed, n, h, tolerance);
    }
  }
  rig.ops().rotary_grad(s, {.din = data.heads(din),
                            .dout = data.heads(data.dout),
                            .in = norm ? data.heads(data.in) : Heads{},
                            .positions = data.positions,
                            .table = data.table,
                            .norm = data.norm(),
                            .dweight = dweight,
                            .dweight_mode = mode});
  expect_within(din.values(s), expected, allowed, data.name() + ", din");
  if (!norm) return;
  for (std::size_t i = 0; i < head_dim; ++i) {
    if (mode == Accumulate::add) dw[i] += dw_before[i];
    // 64 rows of heads add up in a block, 5 roundings in a term; the blocks meet in double.
    dw_scale[i] =
        (64 * static_cast<double>(c.heads) + 5) * kU * dw_scale[i] + unit_roundoff(weight_grad) * std::abs(dw[i]);
  }
  expect_within(dweight.values(s), dw, dw_scale, data.name() + ", dweight");
}

TEST(Rotary, AgreesWithDoublePrecision) {
  Rig rig;
  for_each_instruction_set([&] {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const Case& c : kCases)
        for (const bool norm : {false, true}) check_forward(rig, c, dtype, norm);
  });
}

TEST(RotaryGrad, AgreesWithDoublePrecision) {
  Rig rig;
  for_each_instruction_set([&] {
    for (const Case& c : kCases) {
      for (const bool norm : {false, true}) {
        check_backward(rig, c, DType::f32, norm, DType::f32, Accumulate::overwrite);
        check_backward(rig, c, DType::f32, norm, DType::f32, Accumulate::add);
        check_backward(rig, c, DType::bf16, norm, DType::f32, Accumulate::overwrite);
        check_backward(rig, c, DType::bf16, norm, DType::bf16, Accumulate::add);
      }
    }
  });
}

// Pairs of neighbours are halves with the dimensions in another order: 0, 2, 4, ... and then 1, 3, 5, ...
TEST(Rotary, NeighboursAreHalvesInAnotherOrder) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Case& c : {Case{1, 1, 2, 2, 0, 0}, Case{70, 2, 64, 32, 4, 0}, Case{33, 3, 34, 34, 5, 3}})
      for (const bool norm : {false, true}) {
        const Data data(s, c, dtype, norm);
        const auto ordered = [&](const Values& rows, bool back) {
          Values to = rows;
          for (std::int64_t n = 0; n < c.n; ++n)
            for (std::int64_t h = 0; h < c.heads; ++h) {
              const Values from = head_of(data, rows, n, h);
              Values head = from;
              for (std::size_t i = 0; i < static_cast<std::size_t>(data.half); ++i)
                for (const std::size_t k : {std::size_t{0}, std::size_t{1}}) {
                  const std::size_t pair = 2 * i + k, part = i + k * static_cast<std::size_t>(data.half);
                  back ? head[pair] = from[part] : head[part] = from[pair];
                }
              put_head(data, to, n, h, head);
            }
          return to;
        };
        const auto tensor = [&](const Values& values) { return TestTensor(s, dtype, {c.n, data.width()}, values); };
        Values weight(norm ? static_cast<std::size_t>(c.head_dim) : 0, 0.5);  // one for all: the order does not matter
        const TestTensor same = norm ? TestTensor(s, dtype, {c.head_dim}, weight) : TestTensor();
        const HeadNorm one{same, 1e-5f, data.inv_rms, norm ? 0.25f : 0.0f};
        const TestTensor in = tensor(ordered(data.in.values(s), false)),
                         dout = tensor(ordered(data.dout.values(s), false));
        const TestTensor halves(s, dtype, {c.n, data.width()}, Values(in.values(s))),
            neighbours = tensor(data.in.values(s));
        const TestTensor dhalves = tensor(in.values(s)), dneighbours = tensor(data.in.values(s));
        const TestTensor dweight = norm ? TestTensor(s, DType::f32, {c.head_dim}) : TestTensor(),
                         ignored = norm ? TestTensor(s, DType::f32, {c.head_dim}) : TestTensor();
        rig.ops().rotary(s, data.heads(halves), data.heads(in), data.positions, data.table, one);
        Ops::RotaryGrad grad{.din = data.heads(dhalves),
                             .dout = data.heads(dout),
                             .in = data.heads(in),
                             .positions = data.positions,
                             .table = data.table,
                             .norm = one,
                             .dweight = ignored};
        rig.ops().rotary_grad(s, grad);
        rig.ops().rotary(s, data.heads(neighbours), data.heads(data.in), data.positions, data.table, one,
                         RotaryPairs::neighbours);
        grad.din = data.heads(dneighbours), grad.dout = data.heads(data.dout), grad.in = data.heads(data.in);
        grad.dweight = dweight, grad.pairs = RotaryPairs::neighbours;
        rig.ops().rotary_grad(s, grad);
        // The sums of a norm meet their terms in another order.
        const double close = norm ? sum_error(data) + unit_roundoff(dtype) : 4 * kU + unit_roundoff(dtype);
        expect_close(neighbours.values(s), ordered(halves.values(s), true), close, close * 4, data.name());
        expect_close(dneighbours.values(s), ordered(dhalves.values(s), true), close, close * 4, data.name() + ", din");
        if (norm) {
          Values expected = ignored.values(s);
          const Values plain = expected;
          for (std::size_t i = 0; i < static_cast<std::size_t>(data.half); ++i) {
            expected[2 * i] = plain[i];
            expected[2 * i + 1] = plain[i + static_cast<std::size_t>(data.half)];
          }
          expect_close(dweight.values(s), expected, 0, 1e-5 * static_cast<double>(c.n * c.heads), "dweight");
        }
        if (dtype == DType::f32 && !norm) {  // back again: the inverse of the scaled rotation
          rig.ops().rotary_grad(s, {.din = data.heads(neighbours),
                                    .dout = data.heads(neighbours),
                                    .positions = data.positions,
                                    .table = data.table,
                                    .pairs = RotaryPairs::neighbours});
          Values twice = data.in.values(s);
          for (std::int64_t n = 0; n < c.n; ++n)
            for (std::int64_t h = 0; h < c.heads; ++h) {
              Values head = head_of(data, twice, n, h);
              for (std::size_t i = 0; i < 2 * static_cast<std::size_t>(data.half); ++i) head[i] *= 1.25 * 1.25;
              put_head(data, twice, n, h, head);
            }
          expect_close(neighbours.values(s), twice, 1e-6, 4e-6, data.name() + ", there and back");
        }
      }
}

// The gradient of loss = sum(dout * out) against differences of the forward pass in double.
TEST(RotaryGrad, AgreesWithFiniteDifferences) {
  Rig rig;
  Stream& s = rig.stream();
  const Case c{2, 2, 14, 10, 0, 0};
  const double step = 1e-5;
  const Data data(s, c, DType::f32, true);
  const TestTensor out(s, DType::f32, {c.n, data.width()}), din(s, DType::f32, {c.n, data.width()});
  const TestTensor dweight(s, DType::f32, {c.head_dim});
  rig.ops().rotary(s, data.heads(out), data.heads(data.in), data.positions, data.table, data.norm());
  rig.ops().rotary_grad(s, {.din = data.heads(din),
                            .dout = data.heads(data.dout),
                            .in = data.heads(data.in),
                            .positions = data.positions,
                            .table = data.table,
                            .norm = data.norm(),
                            .dweight = dweight});
  Values x = data.in.values(s), weight = data.weight.values(s);
  const Values dy = data.dout.values(s), table = data.table.values(s), position = data.positions.values(s);
  const auto half = static_cast<std::size_t>(data.half);
  const auto loss = [&] {
    double sum = 0;
    for (std::int64_t n = 0; n < c.n; ++n) {
      for (std::int64_t h = 0; h < c.heads; ++h) {
        const Values head = head_of(data, x, n, h), dhead = head_of(data, dy, n, h);
        const Values y =
            turn(scaled(head, weight, inverse_rms(head, data.norm().epsilon)),
                 &table[static_cast<std::size_t>(position[static_cast<std::size_t>(n)]) * 2 * half], half, 1, false);
        for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dhead[i];
      }
    }
    return sum;
  };
  const auto slope = [&](double& at) {
    const double kept = at;
    at = kept - step;
    const double low = loss();
    at = kept + step;
    const double high = loss();
    at = kept;
    return (high - low) / (2 * step);
  };
  Values dx_ref, dweight_ref;
  for (double& at : x) dx_ref.push_back(slope(at));
  for (double& at : weight) dweight_ref.push_back(slope(at));
  // Gradients of order 1 in fp32, differences good to step^2 = 1e-10 and 1e-15 / step.
  expect_close(din.values(s), dx_ref, 0, 1e-5, "din");
  expect_close(dweight.values(s), dweight_ref, 0, 1e-5, "dweight");
}

TEST(Rotary, MayWorkInPlace) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Case& c : kCases) {
      const Data data(s, c, dtype, false);
      const TestTensor out = random_tensor(s, dtype, {c.n, data.width()}, 1, 2.0);  // begins as a copy of `in`
      rig.ops().rotary(s, data.heads(out), data.heads(data.in), data.positions, data.table, HeadNorm{});
      rig.ops().rotary(s, data.heads(data.in), data.heads(data.in), data.positions, data.table, HeadNorm{});
      EXPECT_EQ(data.in.bytes(s), out.bytes(s)) << data.name();
    }
  }
}

TEST(RotaryGrad, MayWorkInPlace) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Case& c : kCases) {
      for (const bool norm : {false, true}) {
        const Data data(s, c, dtype, norm);
        const TestTensor out(s, dtype, {c.n, data.width()});
        rig.ops().rotary(s, data.heads(out), data.heads(data.in), data.positions, data.table, data.norm());
        const TestTensor din = random_tensor(s, dtype, {c.n, data.width()}, 2);  // begins as a copy of `dout`
        const TestTensor dweight[2] = {norm ? TestTensor(s, DType::f32, {c.head_dim}) : TestTensor(),
                                       norm ? TestTensor(s, DType::f32, {c.head_dim}) : TestTensor()};
        rig.ops().rotary_grad(s, {.din = data.heads(din),
                                  .dout = data.heads(data.dout),
                                  .in = data.heads(data.in),
                                  .positions = data.positions,
                                  .table = data.table,
                                  .norm = data.norm(),
                                  .dweight = dweight[0]});
        rig.ops().rotary_grad(s, {.din = data.heads(data.dout),
                                  .dout = data.heads(data.dout),
                                  .in = data.heads(data.in),
                                  .positions = data.positions,
                                  .table = data.table,
                                  .norm = data.norm(),
                                  .dweight = dweight[1]});
        EXPECT_EQ(data.dout.bytes(s), din.bytes(s)) << data.name();
        if (norm) {
          EXPECT_EQ(dweight[1].bytes(s), dweight[0].bytes(s)) << data.name();
        }
      }
    }
  }
}

TEST(Rotary, TheNumberOfThreadsDoesNotShow) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::vector<std::vector<std::byte>> first;
    for (const int threads : {1, 2, 3, 5}) {
      Rig rig(threads);
      Stream& s = rig.stream();
      const Case c{333, 5, 74, 50, 3, 4};
      const Data data(s, c, dtype, true);
      const TestTensor out(s, dtype, {c.n, data.width()}), din(s, dtype, {c.n, data.width()});
      const TestTensor dweight = random_tensor(s, DType::f32, {c.head_dim}, 5);
      rig.ops().rotary(s, data.heads(out), data.heads(data.in), data.positions, data.table, data.norm());
      rig.ops().rotary_grad(s, {.din = data.heads(din),
                                .dout = data.heads(data.dout),
                                .in = data.heads(data.in),
                                .positions = data.positions,
                                .table = data.table,
                                .norm = data.norm(),
                                .dweight = dweight,
                                .dweight_mode = Accumulate::add});
      const std::vector<std::vector<std::byte>> all = {out.bytes(s), data.inv_rms.bytes(s), din.bytes(s),
                                                       dweight.bytes(s)};
      if (first.empty()) first = all;
      EXPECT_EQ(all, first) << threads << " threads";
    }
  }
}

TEST(Rotary, APositionOutsideTheTablePoisonsTheStream) {
  SO_CPU_ONLY("on a GPU a trap ends the program");
  for (const double bad : {-1.0, static_cast<double>(kPositions)}) {
    for (const bool backward : {false, true}) {
      Rig rig;
      Stream& s = rig.stream();
      const Data data(s, {2, 1, 4, 4, 0, 0}, DType::f32, false);
      const TestTensor positions(s, DType::i32, {2}, {0.0, bad}), out(s, DType::f32, {2, 4});
      if (backward)
        rig.ops().rotary_grad(
            s, {.din = data.heads(out), .dout = data.heads(data.dout), .positions = positions, .table = data.table});
      else
        rig.ops().rotary(s, data.heads(out), data.heads(data.in), positions, data.table, HeadNorm{});
      EXPECT_THROW(s.synchronize(), Bug);
    }
  }
}

TEST(Rotary, RefusesWrongArguments) {
  Rig rig;
  Stream& s = rig.stream();
  const Data data(s, {4, 2, 8, 8, 0, 0}, DType::bf16, true);
  const TestTensor out(s, DType::bf16, {4, 16}), single(s, DType::f32, {4, 16}), dweight(s, DType::f32, {8});
  const TestTensor wide_table(s, DType::f32, {kPositions, 2, 5}), few_positions(s, DType::i32, {3});
  Ops& ops = rig.ops();
  const Heads in = data.heads(data.in), to = data.heads(out);
  EXPECT_THROW(ops.rotary(s, {out, 1, 2, 8}, in, data.positions, data.table, HeadNorm{}), Bug);  // past the row's end
  EXPECT_THROW(ops.rotary(s, {out, 0, 1, 8}, in, data.positions, data.table, HeadNorm{}), Bug);
  EXPECT_THROW(ops.rotary(s, data.heads(single), in, data.positions, data.table, HeadNorm{}), Bug);
  EXPECT_THROW(ops.rotary(s, to, in, few_positions, data.table, HeadNorm{}), Bug);
  EXPECT_THROW(ops.rotary(s, to, in, data.positions, wide_table, HeadNorm{}), Bug);   // turns 10 dimensions of 8
  EXPECT_THROW(ops.rotary(s, in, in, data.positions, data.table, data.norm()), Bug);  // a norm in place
  EXPECT_THROW(ops.rotary_grad(s, {.din = to,
                                   .dout = in,
                                   .in = in,
                                   .positions = data.positions,
                                   .table = data.table,
                                   .norm = data.norm(),
                                   .dweight_mode = Accumulate::add}),
               Bug);
  EXPECT_THROW(ops.rotary_grad(s, {.din = to,
                                   .dout = in,
                                   .in = in,
                                   .positions = data.positions,
                                   .table = data.table,
                                   .dweight = dweight,
                                   .dweight_mode = Accumulate::add}),
               Bug);
  EXPECT_THROW(ops.rotary_grad(s, {.din = to,
                                   .dout = in,
                                   .positions = data.positions,
                                   .table = data.table,
                                   .norm = data.norm(),
                                   .dweight = dweight,
                                   .dweight_mode = Accumulate::add}),
               Bug);
  EXPECT_THROW(ops.copy_heads(s, to, {data.in, 0, 2, 4}), Bug);
}

}  // namespace
}  // namespace so::test::rotary_test
