// A pass finds backward what it wrote forward, through host memory for all but the last.
#include "offload/memory/activation_store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "support/device_rig.h"
#include "support/random_tensors.h"

namespace so::test {
namespace {

class ActivationStoreTest : public testing::Test {
 protected:
  static constexpr std::int64_t elements = 1000;

  // One pass of `items`: each holds its own number plus `base`, checked on the way back.
  void pass(ActivationStore& store, int items, float base) {
    Stream& stream = rig_.stream();
    const TestTensor first(stream, DType::f32, {elements}), second(stream, DType::f32, {elements});
    std::vector<float> host(elements), found(elements);
    store.begin(items, {first.tensor(), second.tensor()});
    for (int item = 0; item < items; ++item) {
      const Tensor at = store.write(item, stream);
      host.assign(elements, base + static_cast<float>(item));
      stream.copy(at.data(), host.data(), at.bytes());
      delay();
      stream.synchronize();  // of this test's one host buffer
      store.written(item, stream);
    }
    for (int item = items; item-- > 0;) {
      const Tensor at = store.read(item, stream);
      stream.copy(found.data(), at.data(), at.bytes());
      delay();
      stream.synchronize();
      EXPECT_EQ(found, std::vector<float>(elements, base + static_cast<float>(item))) << item << " of " << items;
      store.release(item, stream);
    }
  }
  void delay() {
    if (random_() % 3 == 0)
      rig_.stream().host("delay", [] { std::this_thread::sleep_for(std::chrono::microseconds(200)); });
  }

  DeviceRig rig_;
  std::mt19937 random_{5};
};

TEST_F(ActivationStoreTest, GivesBackWhatWasWritten) {
  for (const int items : {1, 2, 3, 4, 9}) {
    ActivationStore store(rig_.device(), items, elements * sizeof(float));
    for (int step = 0; step < 3; ++step) pass(store, items, 100.0f * static_cast<float>(step));
    if (items > 1) pass(store, items - 1, 7);  // fewer than it has room for
  }
}

TEST_F(ActivationStoreTest, TakesWhatItSays) {
  const std::size_t before = rig_.device().ledger().held(MemoryKind::pinned);
  const ActivationStore store(rig_.device(), 9, 4000);
  EXPECT_EQ(rig_.device().ledger().held(MemoryKind::pinned) - before, 7 * 4000u);
  EXPECT_EQ(ActivationStore::host_bytes(9, 4000), 7 * 4000u);
  EXPECT_EQ(ActivationStore::host_bytes(2, 4000), 0u);
  EXPECT_EQ(ActivationStore::host_bytes(0, 4000), 0u);
}

TEST_F(ActivationStoreTest, RefusesMoreThanItHasRoomForAndItemsOutOfTurn) {
  Stream& stream = rig_.stream();
  const TestTensor a(stream, DType::f32, {elements}), b(stream, DType::f32, {elements});
  ActivationStore store(rig_.device(), 3, elements * sizeof(float));
  EXPECT_THROW(store.begin(4, {a.tensor(), b.tensor()}), Bug);
  const TestTensor large(stream, DType::f32, {elements + 1});
  EXPECT_THROW(store.begin(3, {large.tensor(), large.tensor()}), Bug);
  store.begin(3, {a.tensor(), b.tensor()});
  EXPECT_THROW(store.write(2, stream), Bug);
  EXPECT_THROW(store.read(0, stream), Bug);
}

}  // namespace
}  // namespace so::test
