// The overlapped schedule against the synchronous one, and that against the plain loop: fifty steps, some clipped, some
// with gradients that are not finite, under policies that do everything to every bucket, and the same bytes every time.
#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <chrono>
#include <limits>
#include <map>
#include <random>
#include <thread>
#include <tuple>
#include <utility>

#include "base/delay_point.h"
#include "offload/engine_rig.h"
#include "offload/random_policy.h"
#include "offload/schedule/streamed_units.h"
#include "support/jitter.h"
#include "support/sanitized.h"

namespace so::test {
namespace {

constexpr int kScheduleSteps = 50;

enum class Clips { never, sometimes, always };

// A run computes this whatever the schedule.
struct Task {
  DType compute = DType::bf16;
  DType gradients = DType::f32;
  DType moments = DType::f32;
  Clips clipping = Clips::sometimes;
  int micro_batches = 1;
  bool bad_gradients = false;
  bool looks_up = false;  // forward passes read some rows of unit 0
  auto operator<=>(const Task&) const = default;
};

// How it is done.
struct Manner {
  std::int64_t bucket_elements = 4096;
  int device_units = 0;
  std::int64_t undo_buckets = 0;
  int threads = 2;
  Schedule schedule = Schedule::overlapped;
  bool transient_weights = false, transient_gradients = false;
  int streamed_units = 0;  // at most
  bool remade = false;     // inputs of some units are made again
  CastSide cast = CastSide::host;
  bool over_link = false;       // the device updates too
  bool late_embedding = false;  // the host updates unit 0 last
  int resume_at = -1;           // a save and a resume in another engine before this step
  bool delays = true;           // of the device, at random
};

EngineSettings settings_of(const Task& task, const Manner& manner) {
  EngineSettings settings;
  settings.formats = model_formats(task.compute);
  settings.formats.gradients = task.gradients;
  settings.formats.moments = task.moments;
  settings.bucket_elements = manner.bucket_elements;
  settings.device_units = manner.device_units;
  settings.undo_buckets = manner.undo_buckets;
  settings.schedule = manner.schedule;
  settings.device_weights = manner.transient_weights ? ResidencyKind::from_masters : ResidencyKind::resident;
  settings.streamed_units =
      std::min(manner.streamed_units, most_streamed_units(layered().units(), manner.device_units));
  if (manner.remade) settings.remade_inputs = {false, false, true, false, true, true, false};
  settings.cast = manner.cast;
  settings.update_over_link = manner.over_link;
  settings.late_embedding = manner.late_embedding;
  if (manner.transient_gradients) settings.host_gradients = GradientResidency::moved;
  settings.weight_decay = 0.1;
  // Norms of a step are near 1000, or near 16 of every third.
  settings.max_grad_norm = task.clipping == Clips::never ? 1e6 : task.clipping == Clips::sometimes ? 100 : 1;
  return settings;
}

// All runs have the same ones, which take longer to make than a step: made once.
const Flat& finite_gradient(int step, int micro_batch) {
  static std::map<std::pair<int, int>, Flat> made;
  Flat& gradient = made[{step, micro_batch}];
  if (gradient.empty())
    gradient = synthetic_gradients(layered(), static_cast<unsigned>(1000 * step + micro_batch),
                                   step % 3 == 0 ? 1.0f : 0x1p-6f);
  return gradient;
}

// Steps that wait until the host has done some work ahead: those that may be bad, and others of either norm.
bool lets_work_ahead(int step) {
  return step == 0 || step == 9 || step == 17 || step == 18 || step == 25 || step == 30 || (step >= 33 && step <= 38);
}

Flat gradient_of(const Task& task, int step, int micro_batch) {
  Flat gradient = finite_gradient(step, micro_batch);
  if (!task.bad_gradients || micro_batch != task.micro_batches - 1) return gradient;
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  if (step == 0 || step == 17) gradient.front().front() = nan;  // the first bucket
  if (step == 9 || step == 18) gradient.back().back() = -inf;   // the last
  if (step == 25) gradient[6][3] = inf;
  if (step == 30)
    for (auto& values : gradient) values[0] = nan;
  return gradient;
}

// The rows that a micro-batch's forward pass reads: of the whole table now and then.
std::vector<std::int32_t> rows_of(int step, int micro_batch) {
  std::mt19937 random(static_cast<unsigned>(7 * step + micro_batch));
  if (random() % 8 == 0) return {};
  std::vector<std::int32_t> rows(1 + random() % 20);
  for (std::int32_t& row : rows) row = static_cast<std::int32_t>(random() % 60);
  return rows;
}

struct Result {
  EngineBytes bytes;
  std::vector<double> norms;        // by step; NaN of skipped ones
  std::vector<std::uint64_t> seen;  // of each engine: the weights that its passes found
  EngineCounters counters;          // of the last engine
  int skipped = 0;
};

// A busy machine may not run the host's thread before the verdict, so a test of what becomes of work ahead lets it do
// some, once the passes are enqueued. It ends without where the policy's choice cannot be done, as for want of a place.
void let_work_ahead(OffloadEngine& engine) {
  const auto none_ahead = [&] {
    const HostCounters c = engine.counters().host;
    return c.speculated + c.previewed == c.committed_ahead + c.voided + c.restored;
  };
  for (int i = 0; i < 250 && none_ahead(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

Result run(const Task& task, const Manner& manner, unsigned seed) {
  const EngineSettings settings = settings_of(task, manner);
  const RandomPolicy* policy = nullptr;
  const auto make = [&](unsigned s) {
    auto random_policy = std::make_unique<RandomPolicy>(s);
    policy = random_policy.get();
    return std::make_unique<EngineRig>(layered(), settings, manner.threads, std::move(random_policy));
  };
  auto rig = make(seed);
  rig->load(synthetic_gradients(layered(), 1, 0.125f));
  std::mt19937 random(seed);
  Result result;
  std::int64_t updates = 0;
  std::vector<Flat> gradients(static_cast<std::size_t>(task.micro_batches));
  for (int step = 0; step < kScheduleSteps; ++step) {
    if (step == manner.resume_at) {
      auto other = make(seed + 1);
      rig->stream().synchronize();
      result.seen.push_back(rig->seen());
      other->load(rig->bytes());
      rig = std::move(other);
    }
    for (int i = 0; i < task.micro_batches; ++i) {
      if (i + 1 == task.micro_batches) rig->engine().begin_last_micro_batch(1e-2 / (1 + step), updates + 1);
      if (manner.delays && random() % 4 == 0) rig->delay(static_cast<int>(random() % 400));
      gradients[static_cast<std::size_t>(i)] = gradient_of(task, step, i);
      if (task.looks_up) rig->look_up(rows_of(step, i));
      rig->micro_batch(gradients[static_cast<std::size_t>(i)], i == 0);
    }
    if (manner.schedule == Schedule::overlapped && lets_work_ahead(step) && policy->chose_ahead())
      let_work_ahead(rig->engine());
    const Verdict verdict = rig->engine().finish_step(rig->stream());
    updates += verdict.finite ? 1 : 0;
    result.skipped += verdict.finite ? 0 : 1;
    result.norms.push_back(verdict.norm);
    if (manner.delays && random() % 3 == 0) rig->delay(static_cast<int>(random() % 400));
  }
  result.bytes = rig->bytes();
  result.seen.push_back(rig->seen());
  result.counters = rig->engine().counters();
  return result;
}

// By the synchronous schedule in one bucket; made once.
const Result& expected(const Task& task) {
  static std::map<Task, Result> results;
  const auto found = results.find(task);
  if (found != results.end()) return found->second;
  Manner plain;
  plain.schedule = Schedule::synchronous;
  plain.bucket_elements = layered().elements();
  plain.delays = false;
  return results[task] = run(task, plain, 1);
}

void expect_same(const Result& result, const Result& reference) {
  EXPECT_TRUE(result.bytes == reference.bytes);
  if (result.seen.size() == 1) {
    EXPECT_EQ(result.seen, reference.seen);
  }
  ASSERT_EQ(result.norms.size(), reference.norms.size());
  for (std::size_t i = 0; i < result.norms.size(); ++i)
    EXPECT_TRUE(std::bit_cast<std::uint64_t>(result.norms[i]) == std::bit_cast<std::uint64_t>(reference.norms[i])) << i;
}

// All that the schedule can do to a bucket was done, and the books balance.
void expect_all_happened(const Result& result, const Task& task, const Manner& manner) {
  const EngineCounters& c = result.counters;
  EXPECT_EQ(c.host.speculated > 0, manner.undo_buckets > 0);
  EXPECT_GT(c.host.previewed, 0);
  EXPECT_GT(c.host.updated_in_place, 0);
  EXPECT_GT(c.host.updated_weights_first, 0);
  if (task.clipping != Clips::always) {
    EXPECT_GT(c.host.committed_ahead, 0);
  }
  EXPECT_EQ(c.host.voided > 0, task.clipping != Clips::never);
  EXPECT_EQ(c.host.redone, c.host.voided);
  EXPECT_EQ(c.host.restored > 0, task.bad_gradients);
  EXPECT_EQ(c.host.speculated + c.host.previewed, c.host.committed_ahead + c.host.voided + c.host.restored);
  EXPECT_EQ(c.host.updated_in_place + c.host.updated_weights_first + c.host.committed_ahead, c.host.committed);
  EXPECT_EQ(c.host.over_link > 0, manner.over_link);
  EXPECT_EQ(c.device_updates > 0, manner.device_units > 0);
  // In a pass over five layers, three forward and three back do not find their weights there, or five back where layers
  // run again. Nor do any after an update, that of the last step among them, before the test looks; at the end of that
  // look the first of those that would run again is fetched.
  if (manner.streamed_units == 0 || manner.streamed_units >= 5) {
    const int a_pass = manner.remade ? 8 : 6, look = manner.remade ? 6 : 5;
    EXPECT_EQ(c.streamed_units,
              manner.streamed_units == 0 ? 0 : kScheduleSteps * (task.micro_batches * a_pass + 2) + look);
  }
  // Sums of units 1 to 5, or of those that the host owns, come back for each further micro-batch, but for unit 4's
  // where it has its slot alone.
  const std::array<int, 4> come_back{5, 5, 4, 2};
  EXPECT_EQ(c.sums_brought, manner.transient_gradients ? kScheduleSteps * (task.micro_batches - 1) *
                                                             come_back[static_cast<std::size_t>(manner.device_units)]
                                                       : 0);
}

std::string name_of(Clips clipping) {
  return clipping == Clips::never ? "never" : clipping == Clips::sometimes ? "sometimes" : "always";
}

// The reference of all below is the plain loop over elements.
TEST(Schedule, SynchronousIsThePlainLoop) {
  Task task;
  task.bad_gradients = true;
  const Manner manner{.bucket_elements = 6400, .device_units = 1, .schedule = Schedule::synchronous};
  EngineRig rig(layered(), settings_of(task, manner), 2);
  const Flat initial = synthetic_gradients(layered(), 1, 0.125f);
  ReferenceLoop reference(layered(), settings_of(task, manner), initial);
  rig.load(initial);
  std::int64_t updates = 0;
  int clipped = 0;
  for (int step = 0; step < kScheduleSteps; ++step) {
    const Flat gradient = gradient_of(task, step, 0);
    const double lr = 1e-2 / (1 + step);
    if (!rig.step(gradient, lr, updates + 1).finite) continue;
    clipped += reference.step(gradient, lr, ++updates) != 1.0f ? 1 : 0;
  }
  EXPECT_EQ(updates, kScheduleSteps - 6);
  EXPECT_GT(clipped, 10);
  EXPECT_LT(clipped, 20);
  EXPECT_TRUE(rig.equals(reference));
  EXPECT_TRUE(rig.bytes() == expected(task).bytes);
  EXPECT_EQ(rig.engine().counters().host.speculated + rig.engine().counters().host.previewed, 0);
}

class ScheduleEquality : public testing::TestWithParam<std::tuple<Clips, int, bool>> {};

TEST_P(ScheduleEquality, BucketsSplitsUndoThreads) {
  const auto [clipping, micro_batches, bad] = GetParam();
  for (const DType compute : {DType::f32, DType::bf16}) {
    Task task;
    task.compute = compute;
    task.gradients = micro_batches == 1 || bad ? compute : DType::f32;
    task.moments = micro_batches == 1 ? DType::f32 : compute;
    task.clipping = clipping;
    task.micro_batches = micro_batches;
    task.bad_gradients = bad;
    const Result& reference = expected(task);
    EXPECT_EQ(reference.skipped, bad ? 6 : 0);
    unsigned seed = 11;
    int turn = compute == DType::f32 ? 0 : 1;
    for (const Manner& manner :
         {Manner{.bucket_elements = 1024, .undo_buckets = 1000, .threads = 3},
          Manner{.bucket_elements = 4096, .device_units = 2, .undo_buckets = 2, .cast = CastSide::device},
          Manner{.bucket_elements = 4096, .undo_buckets = 3, .threads = 1, .resume_at = 21},
          Manner{.bucket_elements = 6400, .device_units = 1, .transient_gradients = true},
          Manner{.bucket_elements = 2048, .undo_buckets = 3, .streamed_units = 100},
          Manner{.bucket_elements = 2048, .undo_buckets = 3, .streamed_units = 100, .remade = true},
          Manner{.bucket_elements = 4096,
          .device_units = 2,
          .transient_weights = true,
          .streamed_units = 2,
          .remade = true},
          Manner{.bucket_elements = 4096,
          .device_units = 2,
          .undo_buckets = 2,
          .transient_weights = true,
          .transient_gradients = true,
          .streamed_units = 1,
          .cast = CastSide::device,
          .resume_at = 13},
          Manner{.bucket_elements = 1024, .undo_buckets = 1000, .threads = 1, .over_link = true},
          Manner{.bucket_elements = 2048, .undo_buckets = 3, .streamed_units = 100, .over_link = true, .resume_at = 17},
          Manner{.bucket_elements = 4096,
          .device_units = 2,
          .undo_buckets = 2,
          .transient_gradients = true,
          .streamed_units = 1,
          .cast = CastSide::device,
          .over_link = true},
          Manner{.bucket_elements = 2048,
          .device_units = 3,
          .undo_buckets = 2,
          .transient_weights = true,
          .transient_gradients = true}}) {
      if (sanitized && turn++ % 3 != 0) continue;  // a third of them in either format
      SCOPED_TRACE(std::string(so::name_of(compute)) + ", buckets of " + std::to_string(manner.bucket_elements) +
                   ", undo " + std::to_string(manner.undo_buckets));
      const Result result = run(task, manner, ++seed);
      expect_same(result, reference);
      if (manner.resume_at < 0) expect_all_happened(result, task, manner);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, ScheduleEquality,
                         testing::Combine(testing::Values(Clips::never, Clips::sometimes, Clips::always),
                                          testing::Values(1, 4), testing::Bool()),
                         [](const auto& i) {
                           return "clips_" + name_of(std::get<0>(i.param)) + "_micro_batches_" +
                                  std::to_string(std::get<1>(i.param)) + (std::get<2>(i.param) ? "_bad_gradients" : "");
                         });

// A late embedding has the bits of any other, in the rows that passes read before the rest is updated too.
TEST(Schedule, LateEmbedding) {
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

// Holds the thread of this name up, and no other.
template <const char* held>
void hold_up() {
  std::array<char, 16> name{};
  pthread_getname_np(pthread_self(), name.data(), name.size());
  if (std::string_view(name.data()) == held) std::this_thread::sleep_for(std::chrono::milliseconds(3));
}

class HeldUp {
 public:
  explicit HeldUp(DelayHook hook) { delay_hook = hook; }
  ~HeldUp() { delay_hook = nullptr; }
  HeldUp(const HeldUp&) = delete;
  HeldUp& operator=(const HeldUp&) = delete;
};

// The weights of a late update may still be on their way when the next one's rows are brought.
TEST(Schedule, RowsComeAfterTheUpdateBefore) {
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
TEST(Schedule, EvaluationsReadRows) {
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
TEST(Schedule, EndsBeforeALateUpdate) {
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

// Rows travel in pieces of two million elements, in two places that take turns.
TEST(Schedule, RowsTravelInPieces) {
  const ParameterLayout layout({{"embed", {9000, 800}, true, 0, false},
                                {"layer", {40, 80}, true, 1, false},
                                {"head", {50, 64}, true, 2, false}});
  const Task task{.gradients = DType::bf16, .looks_up = true};
  EngineRig pieces(layout, settings_of(task, {.bucket_elements = 1 << 20, .device_units = 2, .late_embedding = true}),
                   2),
      whole(layout, settings_of(task, {.bucket_elements = 1 << 20, .schedule = Schedule::synchronous}), 2);
  std::vector<std::int32_t> rows;
  for (std::int32_t row = 9000; row-- > 0;)
    if (row % 8 != 3) rows.push_back(row);
  for (EngineRig* rig : {&pieces, &whole}) {
    rig->load(synthetic_gradients(layout, 1, 0.125f));
    rig->look_up(rows);
    for (int step = 0; step < 3; ++step)
      rig->step(synthetic_gradients(layout, static_cast<unsigned>(step), 0x1p-6f), 1e-2, step + 1);
    rig->stream().synchronize();
  }
  EXPECT_EQ(pieces.engine().counters().rows_brought, 2 * std::ssize(rows));
  EXPECT_GT(std::ssize(rows) * 800, 3 * (std::int64_t{2} << 20)) << "a place is used again";
  EXPECT_EQ(pieces.seen(), whole.seen());
  EXPECT_TRUE(pieces.bytes() == whole.bytes());
}

// A thousand steps while every thread is held up at random where it meets another.
TEST(Schedule, StressUnderRandomDelays) {
  const Jitter jitter(5);
  unsigned seed = 100;
  for (int round = 0; round < (sanitized ? 10 : 20); ++round) {
    Task task;
    task.compute = DType::bf16;
    task.gradients = round % 2 == 0 ? DType::bf16 : DType::f32;
    task.moments = round % 4 < 2 ? DType::bf16 : DType::f32;
    task.bad_gradients = round % 3 != 0;
    task.micro_batches = round % 5 == 4 ? 3 : 1;
    Manner manner;
    manner.bucket_elements = std::int64_t{1024} << round % 3;
    manner.device_units = round % 4;
    manner.undo_buckets = round % 7;
    manner.threads = 1 + round % 3;
    manner.transient_weights = round % 2 == 1;
    manner.cast = round % 5 < 2 ? CastSide::device : CastSide::host;
    manner.transient_gradients = round % 4 >= 2;
    manner.streamed_units = round % 3;
    manner.remade = round % 4 == 1;
    manner.over_link = round % 5 >= 2;
    manner.late_embedding = task.looks_up = round % 3 == 1;
    manner.resume_at = round % 6 == 5 ? 20 : -1;
    SCOPED_TRACE("round " + std::to_string(round));
    const Result result = run(task, manner, ++seed);
    expect_same(result, expected(task));
    if (HasFailure()) return;
  }
  EXPECT_GT(Jitter::slept(), sanitized ? 500 : 1000) << "else this delayed nothing";
}

}  // namespace
}  // namespace so::test
