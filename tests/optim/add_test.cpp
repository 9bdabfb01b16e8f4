#include <cstdint>
#include <vector>

#include "optim/engine_ops.h"
#include "support/random_tensors.h"

namespace so::test {
namespace {

class AddTest : public ::testing::Test {
 protected:
  DeviceRig rig;
  Stream& stream = rig.stream();
  const std::unique_ptr<EngineOps> ops = make_engine_ops(rig.device());

  // The sum of raw elements as it lies in the first operand's format.
  template <class To, class From>
  std::vector<To> add(const std::vector<To>& to, const std::vector<From>& from) {
    const auto count = static_cast<std::int64_t>(to.size());
    TestTensor out(stream, dtype_of<To>, {count}), in(stream, dtype_of<From>, {count});
    stream.copy(out.tensor().data(), to.data(), out.tensor().bytes());
    stream.copy(in.tensor().data(), from.data(), in.tensor().bytes());
    ops->add(stream, out, in);
    std::vector<To> sum(to.size());
    stream.copy(sum.data(), out.tensor().data(), out.tensor().bytes());
    stream.synchronize();
    return sum;
  }

  template <class To, class From>
  void expect_sums() {
    for (const std::size_t count : {0u, 1u, 7u, 8u, 9u, 32769u, 100003u}) {
      std::vector<To> to;
      std::vector<From> from;
      for (std::size_t i = 0; i < count; ++i) {
        to.push_back(To(0.37f * static_cast<float>(i % 1000)));
        from.push_back(From(-1.13f * static_cast<float>(i % 77)));
      }
      const std::vector<To> sum = add(to, from);
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_EQ(static_cast<float>(sum[i]),
                  static_cast<float>(To(static_cast<float>(to[i]) + static_cast<float>(from[i]))))
            << i << " of " << count;
    }
  }
};

TEST_F(AddTest, IsTheSumInFp32RoundedOnce) {
  expect_sums<float, float>();
  expect_sums<float, bf16>();
  expect_sums<bf16, float>();
  expect_sums<bf16, bf16>();
}

TEST_F(AddTest, RefusesOtherSizesAndFormats) {
  TestTensor f(stream, DType::f32, {4}), longer(stream, DType::bf16, {5}), i(stream, DType::i32, {4});
  EXPECT_THROW(ops->add(stream, longer, f), Bug);
  EXPECT_THROW(ops->add(stream, i, f), Bug);
  EXPECT_THROW(ops->add(stream, f, i), Bug);
}

}  // namespace
}  // namespace so::test
