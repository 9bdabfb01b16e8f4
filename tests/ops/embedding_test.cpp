#include <cstdint>
#include <vector>

#include "support/instruction_sets.h"
#include "support/random_tensors.h"
#include "support/rig.h"

namespace so::test::embedding_test {
namespace {

struct Case {
  std::int64_t n, width, vocabulary;
};
const Case kCases[] = {{1, 1, 1}, {1, 7, 3}, {5, 384, 11}, {300, 33, 17}, {257, 129, 300}};

TEST(Embedding, GathersRowsExactly) {
  Rig rig(3);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& [n, width, vocabulary] : kCases) {
      const TestTensor table = random_tensor(rig.stream(), dtype, {vocabulary, width}, 1);
      const auto id = random_indices(static_cast<std::size_t>(n), 2, vocabulary);
      const TestTensor ids(rig.stream(), DType::i32, {n}, id), out(rig.stream(), dtype, {n, width});
      rig.ops().embedding(rig.stream(), out, table, ids);
      const auto rows = table.values(rig.stream()), actual = out.values(rig.stream());
      for (std::int64_t i = 0; i < n * width; ++i)
        ASSERT_EQ(actual[static_cast<std::size_t>(i)],
                  rows[static_cast<std::size_t>(
                      static_cast<std::int64_t>(id[static_cast<std::size_t>(i / width)]) * width + i % width)]);
    }
  }
}

// The promise of the op, in fp32: from left to right in order of n, rounded to the table's dtype once.
std::vector<double> scattered(const std::vector<double>& before, const std::vector<double>& dout,
                              const std::vector<double>& ids, std::size_t width, DType dtype) {
  std::vector<float> sums(before.begin(), before.end());
  for (std::size_t n = 0; n < ids.size(); ++n)
    for (std::size_t i = 0; i < width; ++i)
      sums[static_cast<std::size_t>(ids[n]) * width + i] += static_cast<float>(dout[n * width + i]);
  std::vector<double> result(sums.begin(), sums.end());
  if (dtype == DType::bf16)
    for (double& value : result) value = bf16(static_cast<float>(value));
  return result;
}

void check_scatter(Rig& rig, const Case& c, DType dtype, DType table_dtype, Accumulate mode) {
  Stream& s = rig.stream();
  const TestTensor dout = random_tensor(s, dtype, {c.n, c.width}, 3);
  const std::vector<double> id = random_indices(static_cast<std::size_t>(c.n), 4, c.vocabulary);
  const TestTensor ids(s, DType::i32, {c.n}, id);
  std::vector<double> before = random_tensor(s, table_dtype, {c.vocabulary, c.width}, 5).values(s);
  if (mode == Accumulate::overwrite) before.assign(before.size(), 0.0);
  const auto expected = scattered(before, dout.values(s), id, static_cast<std::size_t>(c.width), table_dtype);
  for_each_instruction_set([&] {
    const TestTensor dtable = random_tensor(s, table_dtype, {c.vocabulary, c.width}, 5);
    rig.ops().embedding_grad(s, dtable, dout, ids, mode);
    EXPECT_EQ(dtable.values(s), expected) << c.n << "x" << c.width << " of " << c.vocabulary;
  });
}

// Exactly equal, since the order is promised; and so for any number of threads.
TEST(EmbeddingGrad, AddsInOrder) {
  for (const int threads : {1, 2, 3, 5}) {
    SCOPED_TRACE(threads);
    Rig rig(threads);
    for (const Case& c : kCases) {
      for (const Accumulate mode : {Accumulate::overwrite, Accumulate::add}) {
        check_scatter(rig, c, DType::f32, DType::f32, mode);
        check_scatter(rig, c, DType::bf16, DType::f32, mode);
        check_scatter(rig, c, DType::bf16, DType::bf16, mode);
      }
    }
  }
}

TEST(EmbeddingGrad, OverwritingClearsEvenWithoutTokens) {
  Rig rig;
  const TestTensor dtable = random_tensor(rig.stream(), DType::f32, {5, 3}, 1), dout(rig.stream(), DType::f32, {0, 3});
  const TestTensor ids(rig.stream(), DType::i32, {0});
  rig.ops().embedding_grad(rig.stream(), dtable, dout, ids, Accumulate::overwrite);
  EXPECT_EQ(dtable.values(rig.stream()), std::vector<double>(15, 0.0));
}

TEST(Embedding, AnIdOutsideTheTablePoisonsTheStream) {
  SO_CPU_ONLY("on a GPU a trap ends the program");
  for (const double bad : {-1.0, 5.0}) {
    Rig rig;
    const TestTensor table = random_tensor(rig.stream(), DType::f32, {5, 3}, 1), out(rig.stream(), DType::f32, {2, 3});
    const TestTensor ids(rig.stream(), DType::i32, {2}, {0.0, bad});
    rig.ops().embedding(rig.stream(), out, table, ids);
    EXPECT_THROW(rig.stream().synchronize(), Bug);
    Rig other;
    const TestTensor dtable = random_tensor(other.stream(), DType::f32, {5, 3}, 1);
    const TestTensor dout = random_tensor(other.stream(), DType::f32, {2, 3}, 1);
    const TestTensor same_ids(other.stream(), DType::i32, {2}, {0.0, bad});
    other.ops().embedding_grad(other.stream(), dtable, dout, same_ids, Accumulate::add);
    EXPECT_THROW(other.stream().synchronize(), Bug);
  }
}

TEST(Embedding, RefusesWrongArguments) {
  Rig rig;
  Stream& s = rig.stream();
  const TestTensor table(s, DType::bf16, {5, 3}), ids(s, DType::i32, {2}), out(s, DType::bf16, {2, 3});
  const TestTensor wide(s, DType::bf16, {2, 4}), single(s, DType::f32, {2, 3}), no_ids(s, DType::f32, {2});
  EXPECT_THROW(rig.ops().embedding(s, wide, table, ids), Bug);
  EXPECT_THROW(rig.ops().embedding(s, single, table, ids), Bug);
  EXPECT_THROW(rig.ops().embedding(s, out, table, no_ids), Bug);
  EXPECT_THROW(rig.ops().embedding(s, out, Tensor(), ids), Bug);
  EXPECT_THROW(rig.ops().embedding_grad(s, table, wide, ids, Accumulate::add), Bug);
  EXPECT_THROW(rig.ops().embedding_grad(s, table, single, ids, Accumulate::add), Bug);  // a bf16 table of f32 rows
}

}  // namespace
}  // namespace so::test::embedding_test
