#include "plan/memory/memory_plan.h"

#include <gtest/gtest.h>

#include <memory>

#include "base/error.h"
#include "device/device.h"
#include "plan/memory/memory_room.h"

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
  EXPECT_EQ(plan.host_total(cpu_backend()), 18'800'000'999u);
  EXPECT_EQ(plan.host_total(cuda_backend()), 8'300'000'999u);
  EXPECT_EQ(MemoryPlan().host_total(cpu_backend()), 0u);
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

// Memory that was given back counts at its most: a name's entry is its own peak.
TEST(MemoryPlan, TakesTheLedgerOfADryRun) {
  const auto device = make_dry_device(cpu_backend());
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

// Training may have the memory that loading has given back.
TEST(MemoryPlan, CountsTheMostOfAnyPhase) {
  MemoryPlan plan;
  plan.add(MemoryKind::pageable, "state", 1000);
  plan.add(MemoryKind::pinned, "ring", 300, while_loading);
  plan.add(MemoryKind::pageable, "packed", 50, while_loading);
  plan.add(MemoryKind::device, "activations", 500, once_loaded);
  plan.add_beside(MemoryKind::pageable, "batch", 30, while_training);
  plan.add_beside(MemoryKind::pageable, "writing", 70, while_saving);
  plan.add_beside(MemoryKind::pageable, "libraries", 10);
  plan.add(MemoryKind::pageable, "nothing", 0);
  EXPECT_EQ(plan.entries.size(), 7u);
  EXPECT_EQ(plan.total(MemoryKind::device), 500u);
  EXPECT_EQ(plan.total(MemoryKind::device, while_loading), 0u);
  EXPECT_EQ(plan.total(MemoryKind::pinned), 300u);
  EXPECT_EQ(plan.total(MemoryKind::pageable), 1110u) << "saving goes on beside training";
  EXPECT_EQ(plan.host_total(cuda_backend()), 1360u) << "loading";
  EXPECT_EQ(plan.host_total(cuda_backend(), once_loaded), 1110u);
  EXPECT_EQ(plan.host_total(cpu_backend()), 1610u) << "saving";
  EXPECT_EQ(plan.host_total(cpu_backend(), while_starting), 1010u);
  // A device may allocate what is planned, and what is left of the whole.
  EXPECT_EQ(plan.allocatable(2000, cuda_backend(), true), 2000u);
  EXPECT_EQ(plan.allocatable(500, cuda_backend(), true), 500u);
  EXPECT_EQ(plan.allocatable(1360, cuda_backend(), false), 1350u);
  EXPECT_EQ(plan.allocatable(2000, cuda_backend(), false), 1990u);
  EXPECT_EQ(plan.allocatable(1610, cpu_backend(), false), 1500u) << "the rest is for what saving takes";
  EXPECT_NE(plan.table().find("300 bytes  while loading\n"), std::string::npos) << plan.table();
  EXPECT_NE(plan.table().find("70 bytes  while saving\n"), std::string::npos) << plan.table();
}

struct Refused {
  std::string what, brief, short_of;
};
Refused refusal(const Backend& kind, std::size_t host, const DeviceMemory* device = nullptr) {
  const MemoryRoom room{&kind, {host, "cgroup /box"}, device ? std::optional(*device) : std::nullopt};
  const auto error = room.misfit(example(), {.for_device = "buy another", .for_host = "buy more"});
  if (!error) return {};
  EXPECT_EQ(error->plan().entries.size(), example().entries.size());
  return {error->what(), error->brief(), error->short_of()};
}

TEST(MemoryPlan, WhatFitsIsAccepted) {
  EXPECT_EQ(refusal(cpu_backend(), 18'800'000'999).what, "");
  EXPECT_EQ(refusal(cuda_backend(), 8'300'000'999).what, "");
  const DeviceMemory gpu{"GPU", 10'500'000'000};
  EXPECT_EQ(refusal(cuda_backend(), 8'300'000'999, &gpu).what, "");
  EXPECT_FALSE((MemoryRoom{&cpu_backend(), {0, "nothing"}, {}}).misfit(MemoryPlan()).has_value());
}

TEST(MemoryPlan, WhatDoesNotFitIsRefusedWithTheReason) {
  EXPECT_EQ(
      refusal(cpu_backend(), 18'800'000'998).what,
      "not enough memory: 18.8 GB needed (most of it: weights, 9.0 GB), 18.8 GB available (cgroup /box); buy more");
  EXPECT_EQ(
      refusal(cpu_backend(), 0).what,
      "not enough memory: 18.8 GB needed (most of it: weights, 9.0 GB), 0 bytes available (cgroup /box); buy more");
  // With memory of its own, what lies on the device is no part of the host's trouble.
  const Refused host = refusal(cuda_backend(), 2'000'000'000);
  EXPECT_EQ(host.brief,
            "not enough memory: 8.3 GB needed (most of it: second moments, 4.0 GB), 2.0 GB available (cgroup /box)");
  EXPECT_EQ(host.what, host.brief + "; buy more");
  EXPECT_EQ(host.short_of, "  host: 8.3 GB needed, 2.0 GB available (cgroup /box): 6.3 GB short\n");
}

TEST(MemoryPlan, ADevicesOwnMemoryIsCheckedByItself) {
  const DeviceMemory gpu{"GPU", 10'499'999'999, "--device_memory"};
  const Refused own = refusal(cuda_backend(), 8'300'000'999, &gpu);
  EXPECT_EQ(own.what,
            "not enough memory on GPU: 10.5 GB needed (most of it: weights, 9.0 GB), 10.5 GB available "
            "(--device_memory); buy another");
  EXPECT_EQ(own.short_of, "  GPU: 10.5 GB needed, 10.5 GB available (--device_memory): 1 byte short\n");
  const Refused both = refusal(cuda_backend(), 8'000'000'999, &gpu);
  EXPECT_EQ(both.short_of, own.short_of + "  host: 8.3 GB needed, 8.0 GB available (cgroup /box): 300.0 MB short\n");
}

}  // namespace
}  // namespace so
