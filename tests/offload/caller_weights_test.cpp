// New weights come to the caller's places, in the caller's formats, whether or not a kernel reaches host memory.
#include "offload/memory/caller_weights.h"

#include <gtest/gtest.h>

#include <vector>

#include "offload/copy_hook.h"
#include "support/device_rig.h"
#include "support/label.h"
#include "support/on_gpu.h"

namespace so::test {
namespace {

// A driver that maps nothing.
class UnmappedDevice final : public HookedDevice {
 public:
  using HookedDevice::HookedDevice;
  void* mapped(const Buffer&) const override { return nullptr; }
};

// `on_the_way`: bytes of the device's that they pass through.
void expect_weights_arrive(Device& device, std::size_t on_the_way) {
  // A wide one of several pieces, and a narrow one.
  const ParameterLayout layout({{"wide", {9 << 10, 1 << 10}, true, 0, false}, {"narrow", {10, 8}, true, 0, false}});
  const Range wide = layout.range(0), narrow = layout.range(1);
  std::vector<float> wide_place(static_cast<std::size_t>(wide.size()), -1);
  std::vector<bf16> narrow_place(static_cast<std::size_t>(narrow.size()));
  const std::vector<WeightPlace> places{{wide_place.data(), DType::f32}, {narrow_place.data(), DType::bf16}};
  const DeviceWeights weights(device, layout, DType::bf16, {}, places);
  CallerWeights caller(device, layout, weights, {true});
  const auto value = [](std::int64_t i) { return static_cast<float>(i % 251); };
  for (const Range& range : {wide, narrow})
    for (std::int64_t i = 0; i < range.size(); ++i)
      *reinterpret_cast<bf16*>(caller.host_memory(range.begin + i)) = bf16(value(i));
  caller.drop(0);
  caller.settle(0, true);
  const auto stream = device.create_stream("compute");
  caller.begin(layout.unit_range(0));
  caller.require(0, *stream);
  stream->synchronize();
  for (std::int64_t i = 0; i < wide.size(); ++i) ASSERT_EQ(wide_place[static_cast<std::size_t>(i)], value(i)) << i;
  for (std::int64_t i = 0; i < narrow.size(); ++i)
    ASSERT_EQ(static_cast<float>(narrow_place[static_cast<std::size_t>(i)]), value(i)) << i;
  EXPECT_EQ(device.ledger().peak(MemoryKind::device), on_the_way);
}

SO_LABEL(no_tsan, "CallerWeights.ComeInTheCallersFormatsWhetherOrNotHostMemoryIsMapped");
TEST(CallerWeights, ComeInTheCallersFormatsWhetherOrNotHostMemoryIsMapped) {
  SO_CPU_ONLY("the caller's places are host memory here");
  DeviceRig rig;
  HookedDevice mapped(rig.device(), "none", {});
  expect_weights_arrive(mapped, 0);
  UnmappedDevice unmapped(rig.device(), "none", {});
  expect_weights_arrive(unmapped, std::size_t{16} << 20);  // 18 MB of bf16, in two pieces
}

}  // namespace
}  // namespace so::test
