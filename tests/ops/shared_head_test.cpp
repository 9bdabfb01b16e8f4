#include <algorithm>
#include <cstdint>
#include <vector>

#include "support/random_tensors.h"
#include "support/rig.h"

namespace so::test::shared_head_test {
namespace {

using Values = std::vector<double>;

struct Case {
  std::int64_t rows, heads, head_dim, step, offset;
};
// Packed or not, dense or with gaps, more rows than a block has.
const Case kCases[] = {
    {300, 4, 64, 256, 192}, {150, 3, 37, 37, 5}, {1, 1, 8, 8, 0}, {70, 5, 6, 10, 4}, {0, 2, 8, 8, 0}};

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

TEST(SpreadHead, CopiesItToEveryHeadAndWritesNothingElse) {
  Rig rig(3);
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Case& c : kCases) {
      const std::int64_t width = c.offset + c.heads * c.step + 8, from_width = c.head_dim + 24;
      const TestTensor in = random_tensor(s, dtype, {c.rows, from_width}, 1),
                       out = random_tensor(s, dtype, {c.rows, width}, 2);
      const Values from = in.values(s);
      Values expected = out.values(s);
      for (std::int64_t n = 0; n < c.rows; ++n)
        for (std::int64_t h = 0; h < c.heads; ++h)
          std::copy_n(from.begin() + n * from_width + 16, c.head_dim,
                      expected.begin() + n * width + c.offset + h * c.step);
      rig.ops().spread_head(s, {out, c.offset, c.heads, c.head_dim, c.step}, {in, 16, 1, c.head_dim});
      EXPECT_EQ(out.values(s), expected);
    }
}

TEST(SumHeads, AgreesWithDoublePrecision) {
  Rig rig(3);
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Case& c : kCases) {
      const std::int64_t width = c.offset + c.heads * c.step + 8, to_width = c.head_dim + 24;
      const TestTensor in = random_tensor(s, dtype, {c.rows, width}, 1),
                       out = random_tensor(s, dtype, {c.rows, to_width}, 2);
      const Values from = in.values(s);
      Values expected = out.values(s), allowed(expected.size());
      for (std::int64_t n = 0; n < c.rows; ++n)
        for (std::int64_t d = 0; d < c.head_dim; ++d) {
          double sum = 0, sizes = 0;
          for (std::int64_t h = 0; h < c.heads; ++h) {
            const double value = from[at(n * width + c.offset + h * c.step + d)];
            sum += value, sizes += std::abs(value);
          }
          expected[at(n * to_width + 16 + d)] = sum;
          // A rounding to fp32 for each head, of sums no larger than that of the sizes, and one to the format.
          allowed[at(n * to_width + 16 + d)] =
              static_cast<double>(c.heads) * 0x1p-24 * sizes + (dtype == DType::bf16 ? 0x1p-8 * std::abs(sum) : 0);
        }
      rig.ops().sum_heads(s, {out, 16, 1, c.head_dim}, {in, c.offset, c.heads, c.head_dim, c.step});
      expect_within(out.values(s), expected, allowed, "sum of heads");
    }
}

TEST(SharedHead, WrongArgumentsAreRefused) {
  Rig rig;
  Stream& s = rig.stream();
  const TestTensor rows(s, DType::bf16, {4, 32}), other(s, DType::bf16, {4, 32}), wide(s, DType::f32, {4, 32}),
      fewer(s, DType::bf16, {3, 32});
  const Heads all{rows, 0, 2, 8};
  EXPECT_THROW(rig.ops().spread_head(s, all, {other, 0, 2, 8}), Bug);  // not one head
  EXPECT_THROW(rig.ops().spread_head(s, all, {other, 0, 1, 6}), Bug);
  EXPECT_THROW(rig.ops().spread_head(s, all, {wide, 0, 1, 8}), Bug);
  EXPECT_THROW(rig.ops().sum_heads(s, {fewer, 0, 1, 8}, all), Bug);
  EXPECT_THROW(rig.ops().sum_heads(s, {other, 28, 1, 8}, all), Bug);  // past the row's end
}

}  // namespace
}  // namespace so::test::shared_head_test
