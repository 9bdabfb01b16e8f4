#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/random_tensors.h"
#include "support/rig.h"

namespace so::test::add_gradient_test {
namespace {

// The one rounding to the gradient's format is that of the fp32 sum, so the result is exact to the bit.
TEST(AddGradient, RoundsTheFp32SumOnce) {
  Rig rig;
  Stream& s = rig.stream();
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t columns : {std::int64_t{1}, std::int64_t{37}, std::int64_t{4096}})
      for (const Accumulate mode : {Accumulate::overwrite, Accumulate::add}) {
        const TestTensor dw = random_tensor(s, dtype, {3, columns}, 1),
                         sum = random_tensor(s, DType::f32, {3, columns}, 2);
        const std::vector<double> before = dw.values(s), more = sum.values(s);
        rig.ops().add_gradient(s, dw, sum, mode);
        const std::vector<double> after = dw.values(s);
        for (std::size_t i = 0; i < after.size(); ++i) {
          const float wide = static_cast<float>(mode == Accumulate::add ? before[i] + more[i] : more[i]);
          const double expected = dtype == DType::bf16 ? static_cast<float>(bf16(wide)) : wide;
          ASSERT_EQ(after[i], expected) << name_of(dtype) << " " << columns << " " << i;
        }
      }
}

TEST(AddGradient, RefusesOtherShapes) {
  Rig rig;
  Stream& s = rig.stream();
  const TestTensor dw(s, DType::bf16, {2, 3}), turned(s, DType::f32, {3, 2}), narrow(s, DType::bf16, {2, 3});
  EXPECT_THROW(rig.ops().add_gradient(s, dw, turned, Accumulate::add), Bug);
  EXPECT_THROW(rig.ops().add_gradient(s, dw, narrow, Accumulate::add), Bug);
}

}  // namespace
}  // namespace so::test::add_gradient_test
