// Weights that are gathered from the ranks before each use: the same bytes as weights that stay. Runs are random, and
// differ between ranks in all that ranks may do differently.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "offload/counted_settings.h"
#include "offload/engine_rig.h"
#include "offload/idle_micro_batch.h"
#include "offload/random_policy.h"
#include "offload/ranks_rig.h"
#include "support/jitter.h"
#include "support/label.h"
#include "support/on_gpu.h"
#include "support/sanitized.h"
#include "support/thread_ranks.h"

namespace so {
namespace {

using test::CountedSettings;
using test::EngineRig;
using test::Flat;
using test::gathered_settings;
using test::layered;

// What all ranks do in a step beside training.
struct StepOf {
  int micro_batches = 1;
  int evaluations = 0;  // forward passes after it
  bool save = false;
  int bad_rank = -1;   // which has a NaN
  int idle_rank = -1;  // which has nothing to compute
  float scale = 1;
};

struct RunOf {
  CountedSettings settings;
  int ranks = 2;
  std::vector<StepOf> steps;
  unsigned seed = 1;  // of what differs between ranks
  bool delays = true;
};

// Of one micro-batch, in the format in which the engine has it.
Flat share(const RunOf& run, std::size_t step, int micro_batch, int rank) {
  const StepOf& s = run.steps[step];
  Flat gradient = test::synthetic_gradients(
      layered(), static_cast<unsigned>(1000 * step) + static_cast<unsigned>(10 * micro_batch + rank), s.scale);
  if (rank == s.idle_rank)
    for (auto& values : gradient) std::fill(values.begin(), values.end(), 0.0f);
  if (run.settings.formats.gradients == DType::bf16)
    for (auto& values : gradient)
      for (float& x : values) x = static_cast<float>(bf16(x));
  if (rank == s.bad_rank) gradient[7][3] = std::numeric_limits<float>::quiet_NaN();
  return gradient;
}

// The weights that every pass of every rank found, and what the engines hold in the end.
struct Found {
  test::EngineBytes bytes;
  std::vector<std::uint64_t> seen;  // by step; none of idle ranks
  std::vector<EngineCounters> counters;
};

void save(OffloadEngine& engine) {
  engine.begin_save();
  for (const Bucket& bucket : engine.buckets()) {
    engine.read_state(StateArray::master, bucket.range(), [](std::int64_t, std::span<const float>) {});
    engine.gate().passed(bucket.index());
  }
  engine.gate().end();
}

void run_step(const RunOf& run, std::size_t step, EngineRig& rig, Communicator& ranks, std::mt19937& random,
              std::int64_t& updates) {
  const StepOf& s = run.steps[step];
  const auto maybe_delay = [&] {
    if (run.delays && random() % 3 == 0) rig.delay(static_cast<int>(random() % 1000));
  };
  for (int i = 0; i < s.micro_batches; ++i) {
    if (i + 1 == s.micro_batches) rig.engine().begin_last_micro_batch(1e-2, updates + 1);
    maybe_delay();
    if (ranks.rank() == s.idle_rank)
      run_idle_micro_batch(layered(), run.settings.remade_inputs, rig.engine(), rig.engine(), rig.stream());
    else
      rig.micro_batch(share(run, step, i, ranks.rank()), i == 0);
  }
  const Verdict verdict = rig.engine().finish_step(rig.stream());
  EXPECT_EQ(verdict.finite, s.bad_rank < 0);
  updates += verdict.finite ? 1 : 0;
  maybe_delay();
  if (s.save) save(rig.engine());
  for (int i = 0; i < s.evaluations; ++i) {
    if (ranks.rank() == s.idle_rank)
      run_idle_forward(layered(), rig.engine(), rig.stream());
    else
      rig.forward();
  }
}

Found run_on_ranks(const RunOf& run) {
  Found found;
  std::mutex mutex;
  test::run_ranks(run.ranks, [&](Communicator& ranks) {
    const unsigned seed = run.seed * 10 + static_cast<unsigned>(ranks.rank());
    EngineRig rig(layered(), run.settings, 1, std::make_unique<test::RandomPolicy>(seed), {}, &ranks);
    rig.load(test::synthetic_gradients(layered(), 1, 0.125f));
    std::mt19937 random(seed);
    std::int64_t updates = 0;
    bool idle = false;
    for (std::size_t step = 0; step < run.steps.size(); ++step) {
      run_step(run, step, rig, ranks, random, updates);
      idle = idle || run.steps[step].idle_rank == ranks.rank();
    }
    rig.stream().synchronize();
    const std::uint64_t seen = rig.seen();
    const test::EngineBytes bytes = bytes_of(rig, ranks);
    ranks.barrier();
    const std::lock_guard lock(mutex);
    if (found.counters.empty()) found.bytes = bytes;
    EXPECT_TRUE(bytes == found.bytes) << "all ranks have the same";
    found.counters.push_back(rig.engine().counters());
    if (!idle) found.seen.push_back(seen);
  });
  EXPECT_TRUE(std::all_of(found.seen.begin(), found.seen.end(), [&](std::uint64_t seen) {
    return seen == found.seen.front();
  })) << "every rank's passes find the same weights";
  return found;
}

// The same run in one plain loop, which sees the sum of the ranks' gradients.
void expect_plain_loop(const RunOf& run, const Found& found) {
  test::ReferenceLoop reference(layered(), run.settings, test::synthetic_gradients(layered(), 1, 0.125f));
  std::int64_t updates = 0;
  for (std::size_t step = 0; step < run.steps.size(); ++step) {
    if (run.steps[step].bad_rank >= 0) continue;
    std::vector<Flat> gradients;
    for (int i = 0; i < run.steps[step].micro_batches; ++i)
      for (int rank = 0; rank < run.ranks; ++rank) gradients.push_back(share(run, step, i, rank));
    reference.step(test::sum_of(gradients), 1e-2, ++updates);
  }
  test::expect_reference(layered(), found.bytes, reference, run.settings.formats.weights);
}

std::vector<StepOf> plain_steps(int count) { return std::vector<StepOf>(static_cast<std::size_t>(count)); }

TEST(GatheredOnRanks, EqualsOneLoopBitForBit) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other\'s streams");
  for (const int size : test::sanitized ? std::vector{3} : std::vector{2, 3})
    for (const int gathered : test::sanitized ? std::vector{2} : std::vector{1, 2, 5})
      for (const Schedule schedule : {Schedule::synchronous, Schedule::overlapped})
        for (const auto& [device_units, casts, sends] :
             {std::tuple{0, false, false}, std::tuple{0, false, true}, std::tuple{3, false, false},
              std::tuple{3, true, false}, std::tuple{3, true, true}, std::tuple{7, true, false}}) {
          SCOPED_TRACE(testing::Message() << size << " ranks, " << gathered << " gathered, " << device_units
                                          << " of the device, " << (schedule == Schedule::overlapped)
                                          << (casts ? ", made of masters" : "") << (sends ? ", the host's too" : ""));
          RunOf run{.settings = gathered_settings(gathered, device_units), .ranks = size, .steps = plain_steps(4)};
          run.settings.placement.schedule = schedule;
          run.settings.counts.cast_weights = casts;
          run.settings.counts.send_masters = sends;
          run.steps[2].scale = 8;  // clipped
          run.delays = false;
          const Found found = run_on_ranks(run);
          expect_plain_loop(run, found);
          for (const EngineCounters& counters : found.counters) EXPECT_GE(counters.gathered_units, 4 * gathered);
        }
}

// Each pass of five layers gathers all of them forward, and three of them backward; nothing is gathered in vain.
TEST(GatheredOnRanks, NothingIsGatheredWithoutNeed) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other\'s streams");
  RunOf run{.settings = gathered_settings(5), .ranks = 2, .steps = plain_steps(6)};
  const Found found = run_on_ranks(run);
  // And once more when the test looks at them.
  for (const EngineCounters& counters : found.counters) EXPECT_EQ(counters.gathered_units, 6 * 8 + 5);
}

// Anything that ranks may do together, under any policy on each.
RunOf random_run(unsigned seed, int steps) {
  std::mt19937 random(seed);
  const auto chance = [&](unsigned in) { return random() % in == 0; };
  RunOf run{.settings = gathered_settings(1 + static_cast<int>(random() % 5)), .seed = seed};
  run.ranks = 2 + static_cast<int>(random() % 3);
  run.settings.counts.device_units = chance(2) ? 0 : static_cast<int>(random() % 8);
  run.settings.placement.bucket_elements = std::int64_t{1024} << random() % 3;
  run.settings.placement.spare_buckets = static_cast<std::int64_t>(random() % 6);
  run.settings.placement.cast = chance(2) ? CastSide::host : CastSide::device;
  run.settings.placement.over_link = chance(2);
  if (chance(2)) {
    run.settings.formats = model_formats(DType::bf16);
    run.settings.formats.gradients = chance(2) ? DType::bf16 : DType::f32;
    run.settings.formats.moments = DType::f32;
  }
  for (int i = 0; i < steps; ++i) {
    StepOf step;
    // Sums of several in bf16 are rounded where weights stay, and added in fp32 where they are gathered.
    step.micro_batches = run.settings.formats.gradients == DType::bf16 ? 1 : 1 + static_cast<int>(random() % 3);
    step.evaluations = chance(3) ? 1 + static_cast<int>(random() % 2) : 0;
    step.save = chance(4);
    if (chance(5)) step.bad_rank = static_cast<int>(random()) & 1;
    if (chance(5)) step.idle_rank = step.bad_rank == 0 ? 1 : 0;
    step.scale = chance(3) ? 8.0f : 0.125f;
    run.steps.push_back(step);
  }
  if (chance(2)) run.settings.counts.move_gradients = true;
  if (chance(2)) run.settings.counts.cast_weights = true;
  if (chance(2)) run.settings.counts.send_masters = true;
  if (chance(2)) run.settings.remade_inputs = {false, false, true, chance(2), false, true, false};
  return run;
}

SO_LABEL(slow, "GatheredOnRanks.AnySchedulesGiveTheBytesOfWeightsThatStay");
TEST(GatheredOnRanks, AnySchedulesGiveTheBytesOfWeightsThatStay) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other\'s streams");
  const test::Jitter jitter(21);
  for (unsigned seed = 1; seed <= (test::sanitized ? 3 : 12); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RunOf run = random_run(seed, 8);
    const Found gathered = run_on_ranks(run);
    expect_plain_loop(run, gathered);
    run.settings.counts.gathered_units = 0;
    run.settings.placement.schedule = Schedule::synchronous;
    run.settings.placement.over_link = false;
    run.settings.counts.move_gradients = false;
    run.settings.counts.cast_weights = run.settings.counts.send_masters = false;
    run.delays = false;
    const Found whole = run_on_ranks(run);
    EXPECT_TRUE(gathered.bytes == whole.bytes);
    EXPECT_EQ(gathered.seen.empty(), whole.seen.empty());
    if (!whole.seen.empty()) {
      EXPECT_EQ(gathered.seen.front(), whole.seen.front()) << "every use finds the same";
    }
    if (HasFailure()) return;
  }
}

// State and weights of a run are loaded into engines of another number of ranks, which have others of them in slices.
TEST(GatheredOnRanks, AnyNumberOfRanksGoesOn) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other\'s streams");
  const Flat initial = test::synthetic_gradients(layered(), 1, 0.125f);
  test::ReferenceLoop reference(layered(), gathered_settings(0), initial);
  test::EngineBytes saved;
  int step = 0;
  for (const auto& [size, gathered] : {std::pair{3, 5}, std::pair{2, 2}, std::pair{1, 0}, std::pair{4, 4}}) {
    RunOf run{.settings = gathered_settings(gathered, size), .ranks = size, .steps = plain_steps(step + 2)};
    if (gathered > 2) run.settings.counts.cast_weights = true;
    if (gathered == 4) run.settings.counts.send_masters = true;
    const int first = step;
    step += 2;
    for (int i = first; i < step; ++i) {
      std::vector<Flat> gradients;
      for (int rank = 0; rank < size; ++rank) gradients.push_back(share(run, static_cast<std::size_t>(i), 0, rank));
      reference.step(test::sum_of(gradients), 1e-2, i + 1);
    }
    test::EngineBytes left;
    test::run_ranks(size, [&](Communicator& ranks) {
      EngineRig rig(layered(), run.settings, 1, nullptr, {}, &ranks);
      if (first == 0)
        rig.load(initial);
      else
        rig.load(saved);
      for (int i = first; i < step; ++i)
        rig.step(share(run, static_cast<std::size_t>(i), 0, ranks.rank()), 1e-2, i + 1);
      const test::EngineBytes found = bytes_of(rig, ranks);
      ranks.barrier();
      test::expect_reference(layered(), found, reference, DType::f32);
      if (ranks.rank() == 0) left = found;
    });
    saved = left;
  }
}

// Files are read in pieces; a quantised tensor's come whole to every rank, which takes its slices of them.
TEST(GatheredOnRanks, WeightsThatArePlacedComeToAll) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other\'s streams");
  const Flat masters = test::synthetic_gradients(layered(), 3, 0.125f);
  std::vector<float> wide(static_cast<std::size_t>(layered().elements()));
  for (int p = 0; p < layered().count(); ++p)
    std::copy(masters[static_cast<std::size_t>(p)].begin(), masters[static_cast<std::size_t>(p)].end(),
              wide.begin() + layered().range(p).begin);
  const std::vector<bf16> narrow(wide.begin(), wide.end());
  for (const DType weights : {DType::f32, DType::bf16})
    for (const int device_units : {0, 4, 7})
      for (const bool whole : {false, true}) {
        SCOPED_TRACE(testing::Message() << name_of(weights) << ", " << device_units << " of the device, " << whole);
        CountedSettings settings = gathered_settings(5, device_units);
        if (device_units == 4) settings.counts.cast_weights = true;
        if (device_units == 0) settings.counts.send_masters = true;
        settings.formats = model_formats(weights);
        settings.formats.gradients = DType::f32;
        test::run_ranks(3, [&](Communicator& ranks) {
          EngineRig rig(layered(), settings, 1, nullptr, {}, &ranks);
          OffloadEngine& engine = rig.engine();
          rig.load(test::synthetic_gradients(layered(), 8));  // others, which passes have gathered
          rig.forward();
          const WeightForms forms = engine.forms(DType::f32);
          for (const Range& range : whole ? std::vector<Range>{{0, layered().elements()}} : engine.own_ranges()) {
            const auto begin = static_cast<std::size_t>(range.begin), count = static_cast<std::size_t>(range.size());
            WeightPiece piece{range.begin, {}, {}};
            if (forms.wide) piece.wide = std::span(wide).subspan(begin, count);
            if (forms.narrow) piece.narrow = std::span(narrow).subspan(begin, count);
            engine.place_weights(rig.stream(), piece);
          }
          rig.stream().synchronize();
          engine.gather_placed(rig.stream());
          test::expect_weights(layered(), rig.weights(), masters, weights);
          ranks.barrier();
        });
      }
}

// A rank that goes away between steps frees the others, which wait for its slices.
TEST(GatheredOnRanks, AFailureOfOneRankEndsThePassesOfAll) {
  SO_CPU_ONLY("on a GPU, ranks of one process hold up each other\'s streams");
  test::expect_a_failure_ends_all([](Communicator& ranks) {
    const RunOf run{.settings = gathered_settings(5), .ranks = 3, .steps = plain_steps(2)};
    auto rig = std::make_shared<EngineRig>(layered(), run.settings, 1, nullptr, EngineRig::MakeDevice{}, &ranks);
    rig->load(test::synthetic_gradients(layered(), 1));
    rig->step(share(run, 0, 0, ranks.rank()), 1e-2, 1);
    rig->stream().synchronize();
    return [rig, gradient = share(run, 1, 0, ranks.rank())] { rig->step(gradient, 1e-2, 2); };
  });
}

}  // namespace
}  // namespace so
