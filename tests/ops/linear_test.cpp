#include "ops/cpu/linear.h"

#include <optional>

#include "base/host_memory.h"
#include "device/backend.h"
#include "ops/arrays.h"
#include "support/rig.h"
#include "support/sanitized.h"

namespace so::linear_test {
namespace {

using testing::Array;
using testing::expect_close;
using testing::Expected;
using testing::make_pool;
using testing::Mirror;
using testing::unit_roundoff;

struct Shape {
  std::int64_t tokens, in, out;
};

// How a product is made: by the ops on the device under test, or by one path of the CPU's directly.
struct Case {
  DType type;
  std::optional<Bf16Path> path;
};

std::vector<Case> cases() {
  std::vector<Case> all = {{DType::f32, std::nullopt}, {DType::bf16, std::nullopt}};
  if (test::on_gpu()) return all;
  all.push_back({DType::f32, Bf16Path::widened});
  all.push_back({DType::bf16, Bf16Path::widened});
  if (best_bf16_path() == Bf16Path::native) all.push_back({DType::bf16, Bf16Path::native});
  return all;
}

Accumulate mode_of(bool add) { return add ? Accumulate::add : Accumulate::overwrite; }

// The four ops, on either.
class Products {
 public:
  void linear(const Case& c, Array& out, Array& x, Array& w, Array* bias, bool add) {
    if (c.path)
      return gemm(pool_, linear_gemm(out.tensor(), x.tensor(), w.tensor(), bias ? bias->tensor() : Tensor(), add),
                  *c.path);
    Array none(x.type(), {1});
    Mirror o(stream(), out), a(stream(), x), b(stream(), w), d(stream(), bias ? *bias : none);
    rig_.ops().linear(stream(), o.tensor(), a.tensor(), b.tensor(), bias ? d.tensor() : Tensor(), mode_of(add));
    o.fetch();
  }
  void grad_input(const Case& c, Array& dx, Array& dy, Array& w, bool add) {
    if (c.path) return gemm(pool_, linear_grad_input_gemm(dx.tensor(), dy.tensor(), w.tensor(), add), *c.path);
    Mirror o(stream(), dx), a(stream(), dy), b(stream(), w);
    rig_.ops().linear_grad_input(stream(), o.tensor(), a.tensor(), b.tensor(), mode_of(add));
    o.fetch();
  }
  void grad_weight(const Case& c, Array& dw, Array& dy, Array& x, bool add) {
    if (c.path) return gemm(pool_, linear_grad_weight_gemm(dw.tensor(), dy.tensor(), x.tensor(), add), *c.path);
    Mirror o(stream(), dw), a(stream(), dy), b(stream(), x);
    rig_.ops().linear_grad_weight(stream(), o.tensor(), a.tensor(), b.tensor(), mode_of(add));
    o.fetch();
  }
  void grad_bias(Array& dbias, Array& dy, bool add) {
    Mirror o(stream(), dbias), a(stream(), dy);
    rig_.ops().linear_grad_bias(stream(), o.tensor(), a.tensor(), mode_of(add));
    o.fetch();
  }

 private:
  Stream& stream() { return rig_.stream(); }
  test::Rig rig_;
  ThreadPool pool_ = make_pool(2);
};

// sum_k a(i, k) b(k, j) + before(i, j). Each fp32 addition errs by at most a unit roundoff of the running sum; errors
// of random sign grow with the square root of their number, so sqrt(k) of them, with a factor of 2 to spare, bound
// what is seen, relative to the sum of magnitudes. The result is then rounded once to its own type. A GPU's library
// may, for odd shapes, round the sum of products, and it with a bias, before it adds the rest: `added` says how many
// numbers of magnitude 1 are added (bias, old contents), which is by how much partial sums can be larger.
template <class A, class B, class Before>
Expected product(std::int64_t m, std::int64_t n, std::int64_t k, DType out, const A& a, const B& b,
                 const Before& before, int added = 0) {
  Expected e(m * n);
  const double growth = 2 * std::sqrt(static_cast<double>(k) + 2) * unit_roundoff(DType::f32);
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      const double start = before(i, j);
      double sum = start, magnitude = std::abs(sum);
      for (std::int64_t l = 0; l < k; ++l) {
        const double term = a(i, l) * b(l, j);
        sum += term;
        magnitude += std::abs(term);
      }
      const auto at = static_cast<std::size_t>(i * n + j);
      e.value[at] = sum;
      e.tolerance[at] =
          growth * magnitude + (out == DType::bf16 ? unit_roundoff(out) * (std::abs(sum) + growth * magnitude) : 0);
      if (test::on_gpu() && out == DType::bf16 && added > 0)
        e.tolerance[at] += 2 * unit_roundoff(out) * (std::abs(sum - start) + added);
    }
  return e;
}

const std::vector<Shape> shapes = {{1, 1, 1}, {3, 5, 7}, {1, 100, 33}, {33, 65, 129}, {130, 256, 97}};

TEST(Linear, Forward) {
  Products products;
  for (const Case& c : cases())
    for (const Shape& s : shapes)
      for (const bool with_bias : {false, true})
        for (const bool add : {false, true}) {
          const DType out_type = add ? c.type : DType::f32;  // each type of output in half of the cases
          Array x = Array::random(c.type, {s.tokens, s.in}, 1), w = Array::random(c.type, {s.out, s.in}, 2);
          Array bias = Array::random(c.type, {s.out}, 3), out = Array::random(out_type, {s.tokens, s.out}, 4);
          const Array before = out;
          products.linear(c, out, x, w, with_bias ? &bias : nullptr, add);
          expect_close(
              out,
              product(
                  s.tokens, s.out, s.in, out_type, [&](auto i, auto l) { return x[i * s.in + l]; },
                  [&](auto l, auto j) { return w[j * s.in + l]; },
                  [&](auto i, auto j) { return (with_bias ? bias[j] : 0) + (add ? before[i * s.out + j] : 0); },
                  (with_bias ? 1 : 0) + (add ? 1 : 0)),
              "linear");
        }
}

TEST(Linear, GradInput) {
  Products products;
  for (const Case& c : cases())
    for (const Shape& s : shapes)
      for (const bool add : {false, true}) {
        Array dy = Array::random(c.type, {s.tokens, s.out}, 1), w = Array::random(c.type, {s.out, s.in}, 2);
        Array dx = Array::random(c.type, {s.tokens, s.in}, 3);
        const Array before = dx;
        products.grad_input(c, dx, dy, w, add);
        expect_close(dx,
                     product(
                         s.tokens, s.in, s.out, c.type, [&](auto i, auto l) { return dy[i * s.out + l]; },
                         [&](auto l, auto j) { return w[l * s.in + j]; },
                         [&](auto i, auto j) { return add ? before[i * s.in + j] : 0; }, add ? 1 : 0),
                     "linear_grad_input");
      }
}

TEST(Linear, GradWeight) {
  Products products;
  for (const Case& c : cases())
    for (const Shape& s : shapes)
      for (const DType dw_type : {DType::f32, c.type})
        for (const bool add : {false, true}) {
          Array dy = Array::random(c.type, {s.tokens, s.out}, 1), x = Array::random(c.type, {s.tokens, s.in}, 2);
          Array dw = Array::random(dw_type, {s.out, s.in}, 3);
          const Array before = dw;
          products.grad_weight(c, dw, dy, x, add);
          expect_close(dw,
                       product(
                           s.out, s.in, s.tokens, dw_type, [&](auto i, auto l) { return dy[l * s.out + i]; },
                           [&](auto l, auto j) { return x[l * s.in + j]; },
                           [&](auto i, auto j) { return add ? before[i * s.in + j] : 0; }, add ? 1 : 0),
                       "linear_grad_weight");
        }
}

TEST(Linear, GradBias) {
  Products products;
  for (const DType type : {DType::f32, DType::bf16})
    for (const DType sum_type : {DType::f32, type})
      for (const std::int64_t tokens : {1, 64, 301})
        for (const std::int64_t width : {1, 64, 200})
          for (const bool add : {false, true}) {
            Array dy = Array::random(type, {tokens, width}, 1), dbias = Array::random(sum_type, {width}, 2);
            const Array before = dbias;
            products.grad_bias(dbias, dy, add);
            expect_close(dbias,
                         product(
                             1, width, tokens, sum_type, [&](auto, auto) { return 1.0; },
                             [&](auto l, auto j) { return dy[l * width + j]; },
                             [&](auto, auto j) { return add ? before[j] : 0; }),
                         "linear_grad_bias");
          }
}

// 700 MFLOP a product: several tiles, the last of them smaller than the others. A sample of the elements is compared,
// every 61st, which falls on every row and column.
const Shape several_tiles{1000, 500, 700};

void expect_sample_close(const Array& got, std::int64_t n, std::int64_t k, const auto& a, const auto& b) {
  for (std::int64_t at = 0; at < got.size(); at += 61) {
    const Expected e = product(
        1, 1, k, got.type(), [&](auto, auto l) { return a(at / n, l); }, [&](auto l, auto) { return b(l, at % n); },
        [](auto, auto) { return 0.0; });
    ASSERT_NEAR(got[at], e.value[0], e.tolerance[0]) << "row " << at / n << " column " << at % n;
  }
}

TEST(Linear, SeveralTiles) {
  Products products;
  const Shape s = several_tiles;
  for (const Case& c : cases()) {
    Array x = Array::random(c.type, {s.tokens, s.in}, 1), w = Array::random(c.type, {s.out, s.in}, 2);
    Array dy = Array::random(c.type, {s.tokens, s.out}, 3), dw(DType::f32, {s.out, s.in});
    Array out(c.type, {s.tokens, s.out}), dx(c.type, {s.tokens, s.in});
    products.linear(c, out, x, w, nullptr, false);
    products.grad_input(c, dx, dy, w, false);
    products.grad_weight(c, dw, dy, x, false);
    expect_sample_close(
        out, s.out, s.in, [&](auto i, auto l) { return x[i * s.in + l]; },
        [&](auto l, auto j) { return w[j * s.in + l]; });
    expect_sample_close(
        dx, s.in, s.out, [&](auto i, auto l) { return dy[i * s.out + l]; },
        [&](auto l, auto j) { return w[l * s.in + j]; });
    expect_sample_close(
        dw, s.in, s.tokens, [&](auto i, auto l) { return dy[l * s.out + i]; },
        [&](auto l, auto j) { return x[l * s.in + j]; });
  }
}

// A product over few tokens has so little work that one tile could be all of it; what a thread keeps for its tiles has
// a limit, though, and a plan counts on it (Backend::libraries).
TEST(Linear, FewTokensOfManyFeatures) {
  SO_CPU_ONLY("tiles");
  const Shape s{5, 3000, 2600};
  for (const Case& c : cases()) {
    if (!c.path) continue;
    ThreadPool pool = make_pool(2);  // whose threads have kept nothing yet
    Array dy = Array::random(c.type, {s.tokens, s.out}, 3), x = Array::random(c.type, {s.tokens, s.in}, 1);
    Array dw = Array::filled(c.type, {s.out, s.in}, 0);
    const std::size_t before = resident_bytes();
    gemm(pool, linear_grad_weight_gemm(dw.tensor(), dy.tensor(), x.tensor(), true), *c.path);
    const std::size_t after = resident_bytes();
    expect_sample_close(
        dw, s.in, s.tokens, [&](auto i, auto l) { return dy[l * s.out + i]; },
        [&](auto l, auto j) { return x[l * s.in + j]; });
    std::size_t planned = 0;
    for (const Backend::Reserve& reserve : cpu_backend().libraries) planned += 2 * reserve.bytes;
    if (!test::sanitized) {
      EXPECT_LT(after, before + planned) << name_of(c.type);
    }
  }
}

// With no tokens a product has nothing to sum: an overwritten gradient becomes zero, an added one stays.
TEST(Linear, NoTokens) {
  Products products;
  for (const Case& c : cases()) {
    Array dy(c.type, {0, 5}), x(c.type, {0, 3}), w = Array::random(c.type, {5, 3}, 1), out(c.type, {0, 5});
    products.linear(c, out, x, w, nullptr, false);
    for (const bool add : {false, true}) {
      Array dw = Array::filled(c.type, {5, 3}, 2), dbias = Array::filled(c.type, {5}, 2);
      products.grad_weight(c, dw, dy, x, add);
      products.grad_bias(dbias, dy, add);
      for (std::int64_t i = 0; i < dw.size(); ++i) EXPECT_EQ(dw[i], add ? 2 : 0);
      for (std::int64_t i = 0; i < dbias.size(); ++i) EXPECT_EQ(dbias[i], add ? 2 : 0);
    }
  }
}

// Old contents of an overwritten result must not leak in, not even as 0 * NaN.
TEST(Linear, OverwriteIgnoresNan) {
  Products products;
  for (const Case& c : cases()) {
    Array x = Array::random(c.type, {9, 70}, 1), w = Array::random(c.type, {50, 70}, 2);
    Array out = Array::filled(c.type, {9, 50}, NAN);
    products.linear(c, out, x, w, nullptr, false);
    for (std::int64_t i = 0; i < out.size(); ++i) ASSERT_TRUE(std::isfinite(out[i]));
  }
}

// A bf16 sum is added to in fp32 and rounded once: 256 + 0.75 + 0.75 is 258 that way (bf16 neighbours: 256, 258), but
// 256 if the product were rounded into the sum a term at a time.
TEST(Linear, Bf16AddRoundsOnce) {
  Products products;
  for (const Case& c : cases()) {
    if (c.type != DType::bf16) continue;
    Array x = Array::filled(c.type, {1, 2}, 0.75), w = Array::filled(c.type, {1, 2}, 1),
          out = Array::filled(c.type, {1, 1}, 256);
    products.linear(c, out, x, w, nullptr, true);
    EXPECT_EQ(out[0], 258);
  }
}

TEST(Linear, SameBitsForAnyNumberOfThreads) {
  SO_CPU_ONLY("threads");
  const Shape s = several_tiles;
  for (const Case& c : cases()) {
    if (!c.path) continue;
    std::vector<std::vector<std::byte>> first;
    for (const int threads : {1, 2, 3, 5}) {
      ThreadPool pool = make_pool(threads);
      Array x = Array::random(c.type, {s.tokens, s.in}, 1), w = Array::random(c.type, {s.out, s.in}, 2);
      Array dy = Array::random(c.type, {s.tokens, s.out}, 3), dw = Array::random(DType::f32, {s.out, s.in}, 4);
      Array out(c.type, {s.tokens, s.out}), dx(c.type, {s.tokens, s.in}), dbias(DType::f32, {s.out});
      gemm(pool, linear_gemm(out.tensor(), x.tensor(), w.tensor(), {}, false), *c.path);
      gemm(pool, linear_grad_input_gemm(dx.tensor(), dy.tensor(), w.tensor(), false), *c.path);
      gemm(pool, linear_grad_weight_gemm(dw.tensor(), dy.tensor(), x.tensor(), true), *c.path);
      column_sums(pool, dbias.tensor(), dy.tensor(), Accumulate::overwrite);
      const std::vector<std::vector<std::byte>> now = {out.bytes(), dx.bytes(), dw.bytes(), dbias.bytes()};
      if (first.empty()) first = now;
      EXPECT_EQ(first, now) << threads << " threads";
    }
  }
}

TEST(Linear, WrongArgumentsAreRefused) {
  Array x(DType::f32, {4, 3}), w(DType::f32, {5, 3}), out(DType::f32, {4, 5}), bias(DType::f32, {5});
  Array narrow(DType::f32, {4, 2}), half(DType::bf16, {5, 3}), integers(DType::i32, {4, 3}),
      rounded(DType::bf16, {4, 5});
  EXPECT_THROW(linear_gemm(out.tensor(), narrow.tensor(), w.tensor(), {}, false), Bug);
  EXPECT_THROW(linear_gemm(out.tensor(), x.tensor(), half.tensor(), {}, false), Bug);
  EXPECT_THROW(linear_gemm(out.tensor(), integers.tensor(), w.tensor(), {}, false), Bug);
  EXPECT_THROW(linear_gemm(rounded.tensor(), x.tensor(), w.tensor(), {}, false), Bug);
  EXPECT_THROW(linear_gemm(out.tensor(), x.tensor(), w.tensor(), narrow.tensor(), false), Bug);
  EXPECT_THROW(linear_grad_input_gemm(narrow.tensor(), out.tensor(), w.tensor(), false), Bug);
  EXPECT_THROW(linear_grad_weight_gemm(half.tensor(), out.tensor(), x.tensor(), false), Bug);
  EXPECT_NO_THROW(linear_gemm(out.tensor(), x.tensor(), w.tensor(), bias.tensor(), false));
}

TEST(Linear, OpsRefuseWrongArguments) {
  test::Rig rig;
  Array x(DType::f32, {20, 30}), w(DType::f32, {40, 30}), y(DType::f32, {20, 40});
  EXPECT_THROW(rig.ops().linear(rig.stream(), y.tensor(), w.tensor(), x.tensor(), {}, Accumulate::overwrite), Bug);
  EXPECT_THROW(rig.ops().linear_grad_input(rig.stream(), w.tensor(), y.tensor(), x.tensor(), Accumulate::overwrite),
               Bug);
  EXPECT_THROW(rig.ops().linear_grad_weight(rig.stream(), x.tensor(), y.tensor(), w.tensor(), Accumulate::add), Bug);
}

}  // namespace
}  // namespace so::linear_test
