#include <cmath>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "support/random_tensors.h"
#include "support/rig.h"

namespace so::test::expert_linear_test {
namespace {

using Values = std::vector<double>;

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

struct Case {
  std::int64_t in, out;
  std::vector<std::int64_t> counts;  // rows of each expert
};

// Widths of small and odd multiples of 8, experts without rows at either end and between, all rows on one expert, and
// more rows than a tile has.
const Case kCases[] = {{16, 24, {3}},           {24, 40, {0, 5, 0, 0, 7, 1, 0}},
                       {72, 56, {0, 0, 33, 0}}, {200, 104, {64, 1, 127, 128, 129}},
                       {128, 256, {300, 0, 2}}, {40, 8, {0, 0, 0}}};
// The CPU takes any; a GPU's bf16 matrix units want rows of whole 16 bytes.
const Case kOddCases[] = {{7, 5, {4, 0, 9}}, {1, 1, {1, 2}}, {33, 61, {10, 20, 0, 30}}};

std::vector<Case> cases() {
  std::vector<Case> all(std::begin(kCases), std::end(kCases));
  if (!on_gpu()) all.insert(all.end(), std::begin(kOddCases), std::end(kOddCases));
  return all;
}

struct Sizes {
  std::int64_t experts, rows;
  Values offsets;
  explicit Sizes(const Case& c) : experts(static_cast<std::int64_t>(c.counts.size())), rows(0), offsets{0} {
    for (const std::int64_t count : c.counts) offsets.push_back(static_cast<double>(rows += count));
  }
  std::int64_t begin(std::int64_t e) const { return static_cast<std::int64_t>(offsets[at(e)]); }
  std::int64_t end(std::int64_t e) const { return begin(e + 1); }
};

// Sums of products in double, with what fp32 sums of `terms` products in any order and one rounding to `type` may be
// off: a roundoff of the sum of magnitudes for each addition at worst, sqrt of that in practice, of which 4 are
// allowed.
struct Sums {
  Values value, allowed;
  DType type;
  Sums(std::int64_t size, DType sums) : value(at(size)), allowed(at(size)), type(sums) {}
  template <class A, class B>
  void put(std::int64_t i, std::int64_t terms, double before, const A& a, const B& b) {
    double sum = before, magnitude = std::abs(before);
    for (std::int64_t l = 0; l < terms; ++l) {
      const double term = a(l) * b(l);
      sum += term;
      magnitude += std::abs(term);
    }
    value[at(i)] = sum;
    allowed[at(i)] =
        (4 * std::sqrt(static_cast<double>(terms)) + 4) * 0x1p-24 * magnitude + unit_roundoff(type) * std::abs(sum);
  }
};

struct Kind {
  DType type;
  ExpertLayout layout;
};
const Kind kKinds[] = {{DType::f32, ExpertLayout::out_in},
                       {DType::f32, ExpertLayout::in_out},
                       {DType::bf16, ExpertLayout::out_in},
                       {DType::bf16, ExpertLayout::in_out}};

std::string name(const Case& c, const Kind& k) {
  return fmt::format("{} -> {} of {}, {}, {} experts", c.in, c.out, name_of(k.type),
                     k.layout == ExpertLayout::out_in ? "out_in" : "in_out", c.counts.size());
}

TestTensor weight(Stream& s, const Case& c, const Kind& k, DType type, unsigned seed) {
  const auto experts = static_cast<std::int64_t>(c.counts.size());
  if (k.layout == ExpertLayout::out_in) return random_tensor(s, type, {experts, c.out, c.in}, seed);
  return random_tensor(s, type, {experts, c.in, c.out}, seed);
}

// Where w[e] has output o's factor for input i.
std::int64_t place(const Case& c, const Kind& k, std::int64_t e, std::int64_t o, std::int64_t i) {
  return e * c.out * c.in + (k.layout == ExpertLayout::out_in ? o * c.in + i : i * c.out + o);
}

TEST(ExpertLinear, Forward) {
  Rig rig(3);
  Stream& s = rig.stream();
  for (const Case& c : cases())
    for (const Kind& k : kKinds) {
      const Sizes z(c);
      const TestTensor x = random_tensor(s, k.type, {z.rows, c.in}, 1), w = weight(s, c, k, k.type, 2);
      const TestTensor offsets(s, DType::i32, {z.experts + 1}, z.offsets), out(s, k.type, {z.rows, c.out});
      rig.ops().expert_linear(s, out, x, w, k.layout, offsets);
      const Values xs = x.values(s), ws = w.values(s);
      Sums sums(z.rows * c.out, k.type);
      for (std::int64_t e = 0; e < z.experts; ++e)
        for (std::int64_t r = z.begin(e); r < z.end(e); ++r)
          for (std::int64_t o = 0; o < c.out; ++o)
            sums.put(
                r * c.out + o, c.in, 0, [&](auto i) { return xs[at(r * c.in + i)]; },
                [&](auto i) { return ws[at(place(c, k, e, o, i))]; });
      expect_within(out.values(s), sums.value, sums.allowed, name(c, k));
    }
}

TEST(ExpertLinear, GradInput) {
  Rig rig(3);
  Stream& s = rig.stream();
  for (const Case& c : cases())
    for (const Kind& k : kKinds) {
      const Sizes z(c);
      const TestTensor dy = random_tensor(s, k.type, {z.rows, c.out}, 1), w = weight(s, c, k, k.type, 2);
      const TestTensor offsets(s, DType::i32, {z.experts + 1}, z.offsets), dx(s, k.type, {z.rows, c.in});
      rig.ops().expert_linear_grad_input(s, dx, dy, w, k.layout, offsets);
      const Values dys = dy.values(s), ws = w.values(s);
      Sums sums(z.rows * c.in, k.type);
      for (std::int64_t e = 0; e < z.experts; ++e)
        for (std::int64_t r = z.begin(e); r < z.end(e); ++r)
          for (std::int64_t i = 0; i < c.in; ++i)
            sums.put(
                r * c.in + i, c.out, 0, [&](auto o) { return dys[at(r * c.out + o)]; },
                [&](auto o) { return ws[at(place(c, k, e, o, i))]; });
      expect_within(dx.values(s), sums.value, sums.allowed, name(c, k));
    }
}

// An expert without rows has the gradient 0, or what was there when adding.
TEST(ExpertLinear, GradWeight) {
  Rig rig(3);
  Stream& s = rig.stream();
  for (const Case& c : cases())
    for (const Kind& k : kKinds)
      for (const DType dw_type : {DType::f32, k.type})
        for (const Accumulate mode : {Accumulate::overwrite, Accumulate::add}) {
          const Sizes z(c);
          const bool add = mode == Accumulate::add;
          const TestTensor dy = random_tensor(s, k.type, {z.rows, c.out}, 1);
          const TestTensor x = random_tensor(s, k.type, {z.rows, c.in}, 2);
          const TestTensor offsets(s, DType::i32, {z.experts + 1}, z.offsets);
          const TestTensor dw = weight(s, c, k, dw_type, 3);
          const Values before = dw.values(s), dys = dy.values(s), xs = x.values(s);
          rig.ops().expert_linear_grad_weight(s, dw, dy, x, k.layout, offsets, mode);
          Sums sums(static_cast<std::int64_t>(before.size()), dw_type);
          for (std::int64_t e = 0; e < z.experts; ++e)
            for (std::int64_t o = 0; o < c.out; ++o)
              for (std::int64_t i = 0; i < c.in; ++i) {
                const std::int64_t to = place(c, k, e, o, i), first = z.begin(e);
                sums.put(
                    to, z.end(e) - first, add ? before[at(to)] : 0,
                    [&](auto r) { return dys[at((first + r) * c.out + o)]; },
                    [&](auto r) { return xs[at((first + r) * c.in + i)]; });
              }
          expect_within(dw.values(s), sums.value, sums.allowed, name(c, k) + (add ? ", added" : ""));
        }
}

// A product of several tiles beside small ones.
const Case kLarge{400, 408, {3, 0, 900, 17}};

TEST(ExpertLinear, SameBitsForAnyNumberOfThreads) {
  SO_CPU_ONLY("threads");
  for (const Kind& k : kKinds) {
    std::vector<std::vector<std::byte>> first;
    for (const int threads : {1, 2, 5}) {
      Rig rig(threads);
      Stream& s = rig.stream();
      const Sizes z(kLarge);
      const TestTensor x = random_tensor(s, k.type, {z.rows, kLarge.in}, 1), w = weight(s, kLarge, k, k.type, 2);
      const TestTensor offsets(s, DType::i32, {z.experts + 1}, z.offsets), out(s, k.type, {z.rows, kLarge.out});
      const TestTensor dx(s, k.type, {z.rows, kLarge.in}), dw = weight(s, kLarge, k, DType::f32, 3);
      rig.ops().expert_linear(s, out, x, w, k.layout, offsets);
      rig.ops().expert_linear_grad_input(s, dx, out, w, k.layout, offsets);
      rig.ops().expert_linear_grad_weight(s, dw, out, x, k.layout, offsets, Accumulate::add);
      const std::vector<std::vector<std::byte>> now = {out.bytes(s), dx.bytes(s), dw.bytes(s)};
      if (first.empty()) first = now;
      EXPECT_EQ(first, now) << threads << " threads";
    }
  }
}

// An expert makes of its rows what a linear layer with its weight makes of them: to the bit where both cut
// their work alike.
TEST(ExpertLinear, AnExpertIsALinearLayer) {
  SO_CPU_ONLY("the same tiles");
  Rig rig;
  Stream& s = rig.stream();
  const Sizes z(kLarge);
  const Kind k{DType::bf16, ExpertLayout::out_in};
  const TestTensor x = random_tensor(s, k.type, {z.rows, kLarge.in}, 1), w = weight(s, kLarge, k, k.type, 2);
  const TestTensor offsets(s, DType::i32, {z.experts + 1}, z.offsets), out(s, k.type, {z.rows, kLarge.out});
  const TestTensor same(s, k.type, {z.rows, kLarge.out});
  rig.ops().expert_linear(s, out, x, w, k.layout, offsets);
  for (std::int64_t e = 0; e < z.experts; ++e) {
    const std::int64_t count = z.end(e) - z.begin(e);
    rig.ops().linear(s, same.tensor().rows(z.begin(e), count), x.tensor().rows(z.begin(e), count),
                     w.tensor().rows(e, 1).reshape({kLarge.out, kLarge.in}), {}, Accumulate::overwrite);
  }
  EXPECT_EQ(out.bytes(s), same.bytes(s));
}

TEST(ExpertLinear, WrongArgumentsAreRefused) {
  Rig rig;
  Stream& s = rig.stream();
  const TestTensor x(s, DType::bf16, {6, 16}), y(s, DType::bf16, {6, 24}), w(s, DType::bf16, {2, 24, 16});
  const TestTensor offsets(s, DType::i32, {3}, {0, 2, 6}), longer(s, DType::i32, {4}, {0, 2, 2, 6});
  const TestTensor dw(s, DType::f32, {2, 24, 16}), few(s, DType::bf16, {5, 24});
  const auto out_in = ExpertLayout::out_in, in_out = ExpertLayout::in_out;
  Ops& ops = rig.ops();
  EXPECT_THROW(ops.expert_linear(s, y, x, w, in_out, offsets), Bug);
  EXPECT_THROW(ops.expert_linear(s, y, x, w, out_in, longer), Bug);
  EXPECT_THROW(ops.expert_linear(s, y, x, dw, out_in, offsets), Bug);
  EXPECT_THROW(ops.expert_linear(s, few, x, w, out_in, offsets), Bug);
  EXPECT_THROW(ops.expert_linear_grad_input(s, y, x, w, out_in, offsets), Bug);
  EXPECT_THROW(ops.expert_linear_grad_weight(s, dw, x, y, out_in, offsets, Accumulate::add), Bug);
}

}  // namespace
}  // namespace so::test::expert_linear_test
