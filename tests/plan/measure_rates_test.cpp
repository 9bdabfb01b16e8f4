// Rates are measured quickly, and leave nothing behind.
#include <gtest/gtest.h>

#include <string>

#include "ops/runtime.h"
#include "plan/machine/measure.h"

namespace so::test {
namespace {

TEST(MeasureRates, AreQuickOnTheCpuDeviceAndGiveMemoryBack) {
  Runtime runtime(DeviceChoice::cpu, 1);
  Device& device = runtime.device();
  const auto stream = device.create_stream("measure");
  for (const DType moments : {DType::f32, DType::bf16, DType::u8}) {
    const MachineRates rates =
        measure_rates(device, runtime.ops(), *stream, runtime.host_pool(), {.moments = moments}, 1 << 20);
    for (const double rate : {rates.gemm_flops, rates.device_memory, rates.link_to_host, rates.link_to_device,
                              rates.host_adamw, rates.host_memory}) {
      EXPECT_GT(rate, 1e6);
      EXPECT_LT(rate, 1e15);
    }
  }
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::pinned, MemoryKind::pageable}) {
    std::size_t peak = 0;
    for (const auto& [name, bytes] : device.ledger().peaks(kind)) peak += bytes;
    EXPECT_LT(peak, std::size_t{16} << 20) << name_of(kind);
  }
  for (const MemoryKind kind : {MemoryKind::pinned, MemoryKind::pageable}) EXPECT_EQ(device.ledger().held(kind), 0u);
}

}  // namespace
}  // namespace so::test
