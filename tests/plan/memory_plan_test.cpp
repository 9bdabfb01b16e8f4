#include "plan/memory_plan.h"

#include <gtest/gtest.h>

#include <memory>

#include "base/error.h"
#include "device/device.h"

namespace so {
namespace {

MemoryPlan example() {
  MemoryPlan plan;
  plan.add(MemoryKind::pageable, "second moments", 4'000'000'000);
  plan.add(MemoryKind::device, "activations", 1'500'000'000);
  plan.add(MemoryKind::pinned, "gradient ring", 300'000'000);
  plan.add(MemoryKind::device, "weights", 9'000'000'000);
  plan.add(MemoryKind::pageable, "master weights", 4'000'000'000);
  plan.add(MemoryKind::pageable, "small", 999);
  return plan;
}

TEST(MemoryPlan, Totals) {
  const MemoryPlan plan = example();
  EXPECT_EQ(plan.total(MemoryKind::device), 10'500'000'000u);
  EXPECT_EQ(plan.total(MemoryKind::pinned), 300'000'000u);
  EXPECT_EQ(plan.total(MemoryKind::pageable), 8'000'000'999u);
  EXPECT_EQ(plan.host_total(DeviceKind::cpu), 18'800'000'999u);
  EXPECT_EQ(plan.host_total(DeviceKind::cuda), 8'300'000'999u);
  EXPECT_EQ(MemoryPlan().host_total(DeviceKind::cpu), 0u);
}

// Kind by kind, the largest first, entries of one size in the order they were added.
TEST(MemoryPlan, Table) {
  EXPECT_EQ(example().table(),
            "  device    weights                        9.0 GB\n"
            "  device    activations                    1.5 GB\n"
            "  pinned    gradient ring                300.0 MB\n"
            "  pageable  second moments                 4.0 GB\n"
            "  pageable  master weights                 4.0 GB\n"
            "  pageable  small                       999 bytes\n");
  EXPECT_EQ(MemoryPlan().table(), "");
}

// What was given back counts at its most: a name's entry is its own peak.
TEST(MemoryPlan, TakesTheLedgerOfADryRun) {
  const auto device = make_dry_device(DeviceKind::cpu);
  const Buffer weights = device->allocate(MemoryKind::device, 1000, "weights");
  { const Buffer ring = device->allocate(MemoryKind::pinned, 300, "ring"); }
  const Buffer again = device->allocate(MemoryKind::pinned, 200, "ring");
  MemoryPlan plan;
  plan.add(MemoryKind::device, "activations", 50);
  plan.add(device->ledger());
  ASSERT_EQ(plan.entries.size(), 3u);
  EXPECT_EQ(plan.total(MemoryKind::device), 1050u);
  EXPECT_EQ(plan.total(MemoryKind::pinned), 300u);
}

std::string refusal(DeviceKind device, std::size_t available) {
  try {
    require_fits(example(), device, {available, "cgroup /box"}, "buy more");
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(MemoryPlan, WhatFitsIsAccepted) {
  EXPECT_EQ(refusal(DeviceKind::cpu, 18'800'000'999), "");
  EXPECT_EQ(refusal(DeviceKind::cuda, 8'300'000'999), "");
  require_fits(MemoryPlan(), DeviceKind::cpu, {0, "nothing"}, "");
}

TEST(MemoryPlan, WhatDoesNotFitIsRefusedWithTheReason) {
  EXPECT_EQ(
      refusal(DeviceKind::cpu, 18'800'000'998),
      "not enough memory: 18.8 GB needed (most of it: weights, 9.0 GB), 18.8 GB available (cgroup /box); buy more");
  EXPECT_EQ(
      refusal(DeviceKind::cpu, 0),
      "not enough memory: 18.8 GB needed (most of it: weights, 9.0 GB), 0 bytes available (cgroup /box); buy more");
  // With memory of its own, what lies on the device is no part of the host's trouble.
  EXPECT_EQ(refusal(DeviceKind::cuda, 2'000'000'000),
            "not enough memory: 8.3 GB needed (most of it: second moments, 4.0 GB), 2.0 GB available (cgroup /box); "
            "buy more");
}

TEST(MemoryPlan, ADevicesOwnMemoryIsCheckedByItself) {
  const MemoryPlan plan = example();
  const std::size_t needed = plan.total(MemoryKind::device);
  require_device_fits(plan, "GPU", needed, "");
  try {
    require_device_fits(plan, "GPU", needed - 1, "buy more");
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "not enough memory on GPU: 10.5 GB needed (most of it: weights, 9.0 GB), 10.5 GB available; buy more");
  }
}

}  // namespace
}  // namespace so
