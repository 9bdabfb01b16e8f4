// Copies that are asked for together.
#include <cstdint>
#include <vector>

#include "optim/engine_ops.h"
#include "support/random_tensors.h"

namespace so::test {
namespace {

// More than a launch takes; of every alignment of both ends, and of every length, none and many blocks' among them.
TEST(EngineCopies, BringEveryByteAndNoOther) {
  DeviceRig rig;
  Stream& stream = rig.stream();
  const auto ops = make_engine_ops(rig.device());
  constexpr std::int64_t size = 3 << 20;
  const TestTensor from = random_tensor(stream, DType::f32, {size / 4}, 11), to(stream, DType::u8, {size});
  const auto* const source = static_cast<const std::byte*>(from.tensor().data());
  auto* const target = static_cast<std::byte*>(to.tensor().data());
  const std::vector<std::byte> bytes = from.bytes(stream);
  std::vector<std::byte> expected(size, std::byte{0xff});  // as a test's tensor begins
  std::vector<DeviceCopy> copies;
  std::size_t at = 0;
  for (std::size_t i = 0; i < 200; ++i) {
    const std::size_t length = i % 50 == 3 ? 100'000 + 16 * i + i % 3 : i % 50 == 4 ? 65'536 : 5 * i;
    const std::size_t begin = i % 4 == 0 ? 16 * i : 7 * i + 1;
    if (i % 5 == 0) at = (at + 15) / 16 * 16;
    copies.push_back({target + at, source + begin, length});
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(begin), length,
                expected.begin() + static_cast<std::ptrdiff_t>(at));
    at += length + i % 2;
  }
  ASSERT_LE(at, static_cast<std::size_t>(size));
  ops->copy(stream, copies);
  EXPECT_EQ(to.bytes(stream), expected);
}

}  // namespace
}  // namespace so::test
