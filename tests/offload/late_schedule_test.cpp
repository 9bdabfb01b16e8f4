// Late embeddings under the overlapped schedule: the host updates them last, and makes the rows that passes read first.
#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/delay_point.h"
#include "base/error.h"
#include "offload/schedule_rig.h"

namespace so::test::schedules {
namespace {

// A late embedding has the bits of any other, in the rows that passes read before the rest is updated too.
TEST(LateSchedule, IsTheSynchronousOne) {
  unsigned seed = 400;
  for (const int micro_batches : {1, 3})
    for (const DType compute : {DType::f32, DType::bf16}) {
      const Task task{.compute = compute,
                      .gradients = micro_batches == 1 ? compute : DType::f32,
                      .moments = compute,
                      .micro_batches = micro_batches,
                      .bad_gradients = micro_batches == 1,
                      .looks_up = true};
      const Result& reference = expected(task);
      EXPECT_EQ(reference.counters.rows_brought, 0);
      for (const Manner& manner :
           {Manner{.bucket_elements = 1024, .undo_buckets = 3, .late_embedding = true},
            Manner{.bucket_elements = 4096, .device_units = 3, .cast = CastSide::device, .late_embedding = true},
            Manner{.bucket_elements = 2048,
            .device_units = 2,
            .undo_buckets = 1000,
            .transient_weights = true,
            .transient_gradients = true,
            .streamed_units = 2,
            .over_link = true,
            .late_embedding = true},
            Manner{.bucket_elements = 1024, .device_units = 6, .late_embedding = true, .resume_at = 23},
            Manner{.bucket_elements = 1024,
            .undo_buckets = 2,
            .over_link = true,
            .late_embedding = true,
            .resume_at = 11}}) {
        SCOPED_TRACE(std::string(so::name_of(compute)) + ", device units " + std::to_string(manner.device_units) +
                     ", micro-batches " + std::to_string(micro_batches));
        const Result result = run(task, manner, ++seed);
        expect_same(result, reference);
        EXPECT_GT(result.counters.rows_brought, kScheduleSteps / 4);
        if (manner.resume_at < 0) expect_all_happened(result, task, manner);
      }
    }
}

constexpr char to_device_thread[] = "to device", optimizer_thread[] = "optimizer", engine_thread[] = "engine";

bool this_thread_is(std::string_view thread) {
  std::array<char, 16> name{};
  pthread_getname_np(pthread_self(), name.data(), name.size());
  return name.data() == thread;
}

// Holds the thread of this name up, and no other.
template <const char* held>
void hold_up() {
  if (this_thread_is(held)) std::this_thread::sleep_for(std::chrono::milliseconds(3));
}

class HeldUp {
 public:
  explicit HeldUp(DelayHook hook) { delay_hook = hook; }
  ~HeldUp() { delay_hook = nullptr; }
  HeldUp(const HeldUp&) = delete;
  HeldUp& operator=(const HeldUp&) = delete;
};

// The weights of a late update may still be on their way when the next one's rows are brought.
TEST(LateSchedule, RowsComeAfterTheUpdateBefore) {
  const Task task{.looks_up = true};
  EngineRig slow(layered(), settings_of(task, {.bucket_elements = 1024, .device_units = 6, .late_embedding = true}), 2),
      quick(layered(), settings_of(task, {.schedule = Schedule::synchronous}), 2);
  for (EngineRig* rig : {&slow, &quick}) {
    const bool is_slow = rig == &slow;
    rig->load(synthetic_gradients(layered(), 1, 0.125f));
    for (int step = 0; step < 4; ++step) {
      const HeldUp held_up(is_slow ? hold_up<to_device_thread> : nullptr);
      rig->look_up({59, 2, 50, 33, 59});
      rig->step(gradient_of(task, step, 0), 1e-2, step + 1);
      if (is_slow) rig->delay(40'000);  // as by the device's own AdamW
    }
    rig->stream().synchronize();
  }
  EXPECT_GT(slow.engine().counters().rows_brought, 0);
  EXPECT_EQ(slow.seen(), quick.seen());
  EXPECT_TRUE(slow.bytes() == quick.bytes());
}

// Evaluations between steps read rows too: the first pass after a verdict those that are made for it, and further ones
// what the late update has written, which waits until the device has read the first.
TEST(LateSchedule, EvaluationsReadRows) {
  const Task task{.looks_up = true};
  EngineRig late(layered(), settings_of(task, {.bucket_elements = 1024, .device_units = 3, .late_embedding = true}), 2),
      whole(layered(), settings_of(task, {.schedule = Schedule::synchronous}), 2);
  std::array<char, 16> name{};
  pthread_getname_np(pthread_self(), name.data(), name.size());
  pthread_setname_np(pthread_self(), engine_thread);
  for (EngineRig* rig : {&late, &whole}) {
    const HeldUp held_up(rig == &late ? hold_up<engine_thread> : nullptr);
    rig->load(synthetic_gradients(layered(), 1, 0.125f));
    for (int step = 0; step < 12; ++step) {
      rig->look_up(rows_of(step, 0));
      rig->step(gradient_of(task, step, 0), 1e-2, step + 1);
      for (int pass = 0; pass < step % 4; ++pass) {
        rig->delay(step % 3 == 0 ? 2'000 : 100);  // the engine's thread is ahead of the device
        rig->look_up(rows_of(step, 1 + pass));
        rig->forward();
      }
    }
    rig->stream().synchronize();
  }
  pthread_setname_np(pthread_self(), name.data());
  EXPECT_EQ(late.seen(), whole.seen());
  EXPECT_TRUE(late.bytes() == whole.bytes());
}

// An engine may end when rows have been read and their update has not begun.
TEST(LateSchedule, EndsBeforeALateUpdate) {
  const Task task{.looks_up = true};
  for (int i = 0; i < 3; ++i) {
    const HeldUp held_up(hold_up<optimizer_thread>);
    EngineRig rig(layered(), settings_of(task, {.bucket_elements = 1024, .device_units = 7, .late_embedding = true}),
                  2);
    rig.load(synthetic_gradients(layered(), 1, 0.125f));
    rig.look_up({1, 2, 3});
    rig.step(gradient_of(task, 0, 0), 1e-2, 1);
    rig.forward();  // an evaluation
    rig.stream().synchronize();
  }
}

ParameterLayout layout_with_many_rows() {
  return ParameterLayout({{"embed", {18000, 800}, true, 0, false},
                          {"layer", {40, 80}, true, 1, false},
                          {"head", {50, 64}, true, 2, false}});
}
// They travel in seven pieces of two million elements, for which four slots take turns.
std::vector<std::int32_t> many_rows() {
  std::vector<std::int32_t> rows;
  for (std::int32_t row = 18000; row-- > 0;)
    if (row % 8 != 3) rows.push_back(row);
  EXPECT_GT(std::ssize(rows) * 800, 6 * (std::int64_t{2} << 20));
  return rows;
}

TEST(LateSchedule, RowsTravelInPieces) {
  const ParameterLayout layout = layout_with_many_rows();
  const Task task{.gradients = DType::bf16, .looks_up = true};
  EngineRig pieces(layout, settings_of(task, {.bucket_elements = 1 << 20, .device_units = 2, .late_embedding = true}),
                   2),
      whole(layout, settings_of(task, {.bucket_elements = 1 << 20, .schedule = Schedule::synchronous}), 2);
  const std::vector<std::int32_t> rows = many_rows();
  for (EngineRig* rig : {&pieces, &whole}) {
    rig->load(synthetic_gradients(layout, 1, 0.125f));
    rig->look_up(rows);
    for (int step = 0; step < 3; ++step)
      rig->step(synthetic_gradients(layout, static_cast<unsigned>(step), 0x1p-6f), 1e-2, step + 1);
    rig->stream().synchronize();
  }
  EXPECT_EQ(pieces.engine().counters().rows_brought, 2 * std::ssize(rows));
  EXPECT_EQ(pieces.seen(), whole.seen());
  EXPECT_TRUE(pieces.bytes() == whole.bytes());
}

std::atomic<int> engine_calls_left{-1};  // before the engine's thread fails, where a piece is begun or computed

void fail_engine() {
  if (this_thread_is(engine_thread) && engine_calls_left-- == 0) throw Error("a fault made by the test");
}

// Also where pieces are being computed, whose memory goes with the engine.
TEST(LateSchedule, RowsThatFailFailTheStep) {
  const ParameterLayout layout = layout_with_many_rows();
  const EngineSettings settings = settings_of({.gradients = DType::bf16, .looks_up = true},
                                              {.bucket_elements = 1 << 20, .device_units = 2, .late_embedding = true});
  const std::vector<std::int32_t> rows = many_rows();
  for (const int calls : {0, 1, 2, 3, 6}) {
    SCOPED_TRACE(calls);
    std::thread engine([&] {
      pthread_setname_np(pthread_self(), engine_thread);
      EngineRig rig(layout, settings, 2);
      rig.load(synthetic_gradients(layout, 1, 0.125f));
      rig.look_up(rows);
      const auto step = [&](int number) {
        rig.step(synthetic_gradients(layout, static_cast<unsigned>(number), 0x1p-6f), 1e-2, number);
      };
      step(1);  // the first rows are brought for the next
      engine_calls_left = calls;
      const HeldUp failing(&fail_engine);
      EXPECT_THROW(step(2), Error);
    });
    engine.join();
  }
}

}  // namespace
}  // namespace so::test::schedules
