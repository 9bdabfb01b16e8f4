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

// More than a launch takes, of many lengths, none among them; aligned and not.
TEST_F(CastTest, OfManyIsTheCastOfEach) {
  constexpr std::int64_t size = 200'000;
  std::vector<float> in(size);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = 0.37f * static_cast<float>(i);
  TestTensor from(stream, DType::f32, {size});
  stream.copy(from.tensor().data(), in.data(), from.tensor().bytes());
  for (const std::int64_t step : {64, 1}) {
    TestTensor to(stream, DType::bf16, {size});
    std::vector<bf16> expected(size, bf16(1.0f)), out(size);
    stream.copy(to.tensor().data(), expected.data(), to.tensor().bytes());
    stream.synchronize();
    std::vector<DeviceCast> casts;
    for (std::int64_t i = 0, at = 0; i < 150; ++i) {
      const std::int64_t length = i % 7 == 3 ? 0 : i % 40 == 5 ? 20'032 : 64 * (i % 5) + (step == 1 ? i % 3 : 0);
      casts.push_back({Tensor(to.tensor().as<bf16>() + at, DType::bf16, {length}),
                       Tensor(from.tensor().as<float>() + at, DType::f32, {length})});
      for (std::int64_t j = at; j < at + length; ++j)
        expected[static_cast<std::size_t>(j)] = bf16(in[static_cast<std::size_t>(j)]);
      at += length + step;
      ASSERT_LE(at, size);
    }
    ops->cast(stream, casts);
    stream.copy(out.data(), to.tensor().data(), to.tensor().bytes());
    stream.synchronize();
    for (std::size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i].bits, expected[i].bits) << i << ", apart by " << step;
  }
  TestTensor f(stream, DType::f32, {4}), h(stream, DType::bf16, {4});
  EXPECT_THROW(ops->cast(stream, std::vector<DeviceCast>{{h, f}, {f, h}}), Bug);
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
