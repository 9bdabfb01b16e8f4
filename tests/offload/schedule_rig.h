// Runs of fifty steps by any schedule, some clipped, some with gradients that are not finite, under policies that do
// everything to every bucket: what a run computes (Task), how (Manner), and that it came to the same bytes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "offload/counted_settings.h"
#include "offload/engine_rig.h"
#include "offload/random_policy.h"
#include "offload/schedule/placement.h"

namespace so::test::schedules {

inline constexpr int kScheduleSteps = 50;

enum class Clips { never, sometimes, always };

// A run computes this whatever the schedule.
struct Task {
  DType compute = DType::bf16;
  DType gradients = DType::f32;
  DType moments = DType::f32;
  Clips clipping = Clips::sometimes;
  int micro_batches = 1;
  bool bad_gradients = false;
  auto operator<=>(const Task&) const = default;
};

// How it is done.
struct Manner {
  std::int64_t bucket_elements = 4096;
  int device_units = 0;
  std::int64_t spare_buckets = 0;
  int threads = 2;
  Schedule schedule = Schedule::overlapped;
  bool transient_weights = false, transient_gradients = false;
  int streamed_units = 0;     // at most
  bool send_masters = false;  // of those
  bool remade = false;        // inputs of some units are made again
  CastSide cast = CastSide::host;
  bool over_link = false;  // the device updates too
  int resume_at = -1;      // a save and a resume in another engine before this step
  bool delays = true;      // of the device, at random
};

inline CountedSettings settings_of(const Task& task, const Manner& manner) {
  CountedSettings settings;
  settings.formats = model_formats(task.compute);
  settings.formats.gradients = task.gradients;
  settings.formats.moments = task.moments;
  // Blocks of 8-bit moments are not cut, nor joined parameters that begin between two cache lines.
  settings.placement.bucket_elements =
      std::max(manner.bucket_elements, std::int64_t{task.moments == DType::u8 ? 2048 : 0});
  settings.counts.device_units = manner.device_units;
  settings.placement.spare_buckets = manner.spare_buckets;
  settings.placement.schedule = manner.schedule;
  settings.counts.cast_weights = manner.transient_weights;
  settings.counts.streamed_units =
      std::min(manner.streamed_units, most_streamed_units(layered().units(), manner.device_units));
  settings.counts.send_masters = manner.send_masters && settings.counts.streamed_units > 0;
  if (manner.remade) settings.remade_inputs = {false, false, true, false, true, true, false};
  settings.placement.cast = manner.cast;
  settings.placement.over_link = manner.over_link;
  if (manner.transient_gradients) settings.counts.move_gradients = true;
  settings.weight_decay = 0.1;
  // Norms of a step are near 1000, or near 16 of every third.
  settings.max_grad_norm = task.clipping == Clips::never ? 1e6 : task.clipping == Clips::sometimes ? 100 : 1;
  return settings;
}

// All runs have the same ones, which take longer to make than a step: made once.
inline const Flat& finite_gradient(int step, int micro_batch) {
  static std::map<std::pair<int, int>, Flat> made;
  Flat& gradient = made[{step, micro_batch}];
  if (gradient.empty())
    gradient = synthetic_gradients(layered(), static_cast<unsigned>(1000 * step + micro_batch),
                                   step % 3 == 0 ? 1.0f : 0x1p-6f);
  return gradient;
}

// Steps that wait until the host has done some work ahead: those that may be bad, and others of either norm.
inline bool lets_work_ahead(int step) {
  return step == 0 || step == 9 || step == 17 || step == 18 || step == 25 || step == 30 || (step >= 33 && step <= 38);
}

inline Flat gradient_of(const Task& task, int step, int micro_batch) {
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

struct Result {
  EngineBytes bytes;
  std::vector<double> norms;        // by step; NaN of skipped ones
  std::vector<std::uint64_t> seen;  // of each engine: the weights that its passes found
  EngineCounters counters;          // of the last engine
  int skipped = 0;
};

// A busy machine may not run the host's thread before the verdict, so a test of what becomes of work ahead lets it do
// some, once the passes are enqueued. It ends without where the policy's choice cannot be done, as for want of a place.
inline void let_work_ahead(OffloadEngine& engine) {
  const auto none_ahead = [&] {
    const HostCounters c = engine.counters().host;
    return c.speculated + c.previewed == c.committed_ahead + c.voided + c.restored;
  };
  for (int i = 0; i < 250 && none_ahead(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

inline Result run(const Task& task, const Manner& manner, unsigned seed) {
  const CountedSettings settings = settings_of(task, manner);
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
inline const Result& expected(const Task& task) {
  static std::map<Task, Result> results;
  const auto found = results.find(task);
  if (found != results.end()) return found->second;
  Manner plain;
  plain.schedule = Schedule::synchronous;
  plain.bucket_elements = layered().elements();
  plain.delays = false;
  return results[task] = run(task, plain, 1);
}

inline void expect_same(const Result& result, const Result& reference) {
  EXPECT_TRUE(result.bytes == reference.bytes);
  if (result.seen.size() == 1) {
    EXPECT_EQ(result.seen, reference.seen);
  }
  ASSERT_EQ(result.norms.size(), reference.norms.size());
  for (std::size_t i = 0; i < result.norms.size(); ++i)
    EXPECT_TRUE(std::bit_cast<std::uint64_t>(result.norms[i]) == std::bit_cast<std::uint64_t>(reference.norms[i])) << i;
}

// All that the schedule can do to a bucket was done, and the books balance.
inline void expect_all_happened(const Result& result, const Task& task, const Manner& manner) {
  const EngineCounters& c = result.counters;
  EXPECT_EQ(c.host.speculated > 0, manner.spare_buckets > 0);
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

}  // namespace so::test::schedules
