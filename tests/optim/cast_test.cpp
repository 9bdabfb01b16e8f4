#include <bit>
#include <cstdint>
#include <vector>

#include "optim/engine_ops.h"
#include "support/instruction_sets.h"
#include "support/random_tensors.h"

namespace so::test {
namespace {

class CastTest : public ::testing::Test {
 protected:
  DeviceRig rig;
  Stream& stream = rig.stream();
  const std::unique_ptr<EngineOps> ops = make_engine_ops(rig.device());

  // Runs the op on raw elements.
  template <class To, class From>
  std::vector<To> cast(const std::vector<From>& in) {
    const auto count = static_cast<std::int64_t>(in.size());
    TestTensor from(stream, dtype_of<From>, {count}), to(stream, dtype_of<To>, {count});
    stream.copy(from.tensor().data(), in.data(), from.tensor().bytes());
    ops->cast(stream, to, from);
    std::vector<To> out(in.size());
    stream.copy(out.data(), to.tensor().data(), to.tensor().bytes());
    stream.synchronize();
    return out;
  }
};

// The rounding is that of base/dtype.h, bit for bit (but for NaNs, whose payload is nobody's): every exponent and sign,
// with the lower half around the tie.
TEST_F(CastTest, ToBf16RoundsAsTheScalarType) {
  std::vector<float> in;
  for (std::uint32_t upper = 0; upper < 0x10000; upper += 5)
    for (std::uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      in.push_back(std::bit_cast<float>(upper << 16 | lower));
  for_each_instruction_set([&] {
    const std::vector<bf16> out = cast<bf16>(in);
    for (std::size_t i = 0; i < in.size(); ++i)
      if (std::isnan(in[i]) && on_gpu())  // a GPU has one NaN
        ASSERT_TRUE(std::isnan(static_cast<float>(out[i]))) << std::hex << std::bit_cast<std::uint32_t>(in[i]);
      else
        ASSERT_EQ(out[i].bits, bf16(in[i]).bits) << std::hex << std::bit_cast<std::uint32_t>(in[i]);
  });
}

TEST_F(CastTest, EveryBf16WidensToItsUpperHalf) {
  std::vector<bf16> in(0x10000);
  for (std::size_t i = 0; i < in.size(); ++i) in[i].bits = static_cast<std::uint16_t>(i);
  for_each_instruction_set([&] {
    const std::vector<float> out = cast<float>(in);
    for (std::size_t i = 0; i < in.size(); ++i)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(out[i]), static_cast<std::uint32_t>(i) << 16);
  });
}

TEST_F(CastTest, AnyLength) {
  for (std::size_t count : {0u, 1u, 3u, 31u, 32u, 33u, 32767u, 32769u, 100003u}) {
    std::vector<float> in(count);
    for (std::size_t i = 0; i < count; ++i) in[i] = 0.37f * static_cast<float>(i);
    const std::vector<bf16> out = cast<bf16>(in);
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(out[i].bits, bf16(in[i]).bits) << i << " of " << count;
  }
}

TEST_F(CastTest, RefusesWhatIsNotAConversion) {
  TestTensor f(stream, DType::f32, {4}), h(stream, DType::bf16, {4}), longer(stream, DType::bf16, {5});
  TestTensor i(stream, DType::i32, {4});
  EXPECT_THROW(ops->cast(stream, f, f), Bug);
  EXPECT_THROW(ops->cast(stream, longer, f), Bug);
  EXPECT_THROW(ops->cast(stream, i, f), Bug);
  ops->cast(stream, h, f);
  stream.synchronize();
}

}  // namespace
}  // namespace so::test
