#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "optim/engine_ops.h"
#include "support/random_tensors.h"
#include "support/sanitized.h"

namespace so::test {
namespace {

class SumOfRanksTest : public ::testing::Test {
 protected:
  DeviceRig rig;
  Stream& stream = rig.stream();
  const std::unique_ptr<EngineOps> ops = make_engine_ops(rig.device());

  // Values of very different size, so that another order of additions gives other bits.
  template <class T>
  std::vector<double> values_of_rank(int rank, std::int64_t count) {
    std::mt19937 random(static_cast<unsigned>(rank) + 1u);
    std::normal_distribution<float> normal;
    std::vector<double> values;
    for (std::int64_t i = 0; i < count; ++i)
      values.push_back(static_cast<float>(T(std::ldexp(normal(random), static_cast<int>(random() % 24u)))));
    return values;
  }

  // Sums in the format of Out, which a rank's own values have too if they are `in_place`.
  template <class T, class Out = float>
  void expect_sum(int ranks, int rank, std::int64_t count, Accumulate mode, bool in_place) {
    SCOPED_TRACE(testing::Message() << "rank " << rank << " of " << ranks << ", " << count << " of "
                                    << name_of(dtype_of<T>) << " to " << name_of(dtype_of<Out>) << ", "
                                    << static_cast<bool>(mode) << in_place);
    std::vector<double> others;
    std::vector<float> expected;
    for (int r = 0; r < ranks; ++r) {
      const std::vector<double> values = values_of_rank<T>(r, count);
      if (r != rank) others.insert(others.end(), values.begin(), values.end());
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (r == 0)
          expected.push_back(static_cast<float>(values[i]));
        else
          expected[i] += static_cast<float>(values[i]);
      }
    }
    const std::vector<double> before = values_of_rank<Out>(99, count);
    for (std::size_t i = 0; i < expected.size() && mode == Accumulate::add; ++i)
      expected[i] = static_cast<float>(before[i]) + expected[i];
    for (float& value : expected) value = static_cast<float>(Out(value));
    const TestTensor own(stream, dtype_of<T>, {count}, values_of_rank<T>(rank, count));
    const TestTensor rest(stream, dtype_of<T>, {ranks - 1, count}, others);
    const TestTensor separate(stream, dtype_of<Out>, {count}, before);
    const Tensor out = in_place ? own.tensor() : separate.tensor();
    ops->sum_of_ranks(stream, out, mode, own, rest, rank);
    std::vector<Out> found(static_cast<std::size_t>(count));
    stream.copy(found.data(), out.data(), out.bytes());
    stream.synchronize();
    EXPECT_EQ(std::vector<float>(found.begin(), found.end()), expected);
  }
};

TEST_F(SumOfRanksTest, IsInRankOrderInFp32AndRoundedOnce) {
  // Threads meet where a sum is cut into parts for them, which the count decides alone.
  for (const int ranks : test::sanitized ? std::vector{1, 3} : std::vector{1, 2, 3, 5})
    for (int rank = 0; rank < ranks; rank += 2)
      for (const std::int64_t count : {1, 8, 77, 4096, 40'000})
        for (const Accumulate mode : {Accumulate::overwrite, Accumulate::add}) {
          expect_sum<float>(ranks, rank, count, mode, false);
          expect_sum<bf16>(ranks, rank, count, mode, false);
          expect_sum<bf16, bf16>(ranks, rank, count, mode, false);
        }
  for (const std::int64_t count : {5, 4096}) {
    expect_sum<float>(3, 1, count, Accumulate::overwrite, true);
    expect_sum<bf16, bf16>(3, 1, count, Accumulate::overwrite, true);
  }
}

// More than a launch takes, aligned and not, some of them empty.
TEST_F(SumOfRanksTest, ManyTogetherAreWhatEachIsAlone) {
  constexpr int ranks = 3, rank = 1;
  std::vector<TestTensor> tensors;
  std::vector<RankSum> sums;
  std::vector<TestTensor> alone;
  tensors.reserve(3 * 150);
  alone.reserve(150);
  for (int i = 0; i < 150; ++i) {
    const std::int64_t count = i % 7 == 0 ? 0 : i < 70 ? 8 * i : 5 * i + 1;
    const TestTensor& own =
        tensors.emplace_back(TestTensor(stream, DType::bf16, {count}, values_of_rank<bf16>(i, count)));
    const TestTensor& others = tensors.emplace_back(
        TestTensor(stream, DType::bf16, {ranks - 1, count}, values_of_rank<bf16>(1000 + i, (ranks - 1) * count)));
    const TestTensor& out = tensors.emplace_back(TestTensor(stream, DType::f32, {count}));
    sums.push_back({out, own, others});
    alone.push_back(TestTensor(stream, DType::f32, {count}));
    ops->sum_of_ranks(stream, alone.back(), Accumulate::overwrite, own, others, rank);
  }
  ops->sum_of_ranks(stream, sums, Accumulate::overwrite, rank);
  for (std::size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(tensors[3 * i + 2].bytes(stream), alone[i].bytes(stream));
}

TEST_F(SumOfRanksTest, OneRanksSumIsItsOwnBits) {
  const TestTensor own(stream, DType::f32, {2}, {-0.0, std::numeric_limits<double>::infinity()});
  const TestTensor out(stream, DType::f32, {2});
  ops->sum_of_ranks(stream, out, Accumulate::overwrite, own, Tensor(nullptr, DType::f32, {0, 2}), 0);
  EXPECT_EQ(out.bytes(stream), own.bytes(stream));
}

TEST_F(SumOfRanksTest, RefusesOtherSizesAndFormats) {
  const TestTensor f(stream, DType::f32, {4}), h(stream, DType::bf16, {4}), rows(stream, DType::f32, {2, 4});
  const TestTensor narrow(stream, DType::f32, {2, 3});
  EXPECT_THROW(ops->sum_of_ranks(stream, h, Accumulate::overwrite, f, rows, 0), Bug);
  EXPECT_THROW(ops->sum_of_ranks(stream, f, Accumulate::overwrite, h, rows, 0), Bug);
  EXPECT_THROW(ops->sum_of_ranks(stream, f, Accumulate::overwrite, f, narrow, 0), Bug);
  EXPECT_THROW(ops->sum_of_ranks(stream, f, Accumulate::overwrite, f, rows, 3), Bug);
  const TestTensor narrow_rows(stream, DType::bf16, {2, 4});
  const std::array mixed{RankSum{f, h, narrow_rows}, RankSum{h, h, narrow_rows}};
  EXPECT_THROW(ops->sum_of_ranks(stream, mixed, Accumulate::overwrite, 0), Bug);
}

}  // namespace
}  // namespace so::test
