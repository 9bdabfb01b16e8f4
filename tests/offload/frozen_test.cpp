// Frozen parameters: nobody updates them, they take no state and no gradients, and what the others become is the plain
// loop's, whatever the schedule, the split, the residency and the number of ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "offload/engine_rig.h"
#include "offload/idle_micro_batch.h"
#include "offload/random_policy.h"
#include "offload/ranks_rig.h"
#include "offload/schedule/owner_split.h"
#include "support/on_gpu.h"
#include "support/thread_ranks.h"

namespace so::test {
namespace {

constexpr int kSteps = 12;

ParameterLayout frozen_layout(const std::set<std::string>& names) {
  std::vector<Parameter> parameters(layered().parameters().begin(), layered().parameters().end());
  std::size_t found = 0;
  for (Parameter& p : parameters) {
    p.trained = !names.contains(p.name) && !names.contains(p.name.substr(0, 2) + "*");
    found += p.trained ? 0 : 1;
  }
  EXPECT_GT(found, 0u);
  return ParameterLayout(std::move(parameters));
}

// Whole units at the beginning, in between and a part of others; and with a trained embedding, so that the backward
// pass goes to the end.
const std::vector<ParameterLayout>& layouts() {
  static const std::vector<ParameterLayout> all = [] {
    std::vector<ParameterLayout> made;
    made.push_back(frozen_layout({"embed", "1.*", "2.norm", "3.q", "3.k", "4.*", "5.bias", "final_norm"}));
    made.push_back(frozen_layout({"2.*", "3.*", "5.norm", "head"}));
    return made;
  }();
  return all;
}

Flat gradient_of(const ParameterLayout& layout, int step) {
  Flat gradient = synthetic_gradients(layout, static_cast<unsigned>(step), step % 3 == 0 ? 1.0f : 0x1p-6f);
  // Nobody looks at a frozen parameter's, which here is no number.
  for (int p = 0; p < layout.count(); ++p)
    if (!layout.parameter(p).trained)
      gradient[static_cast<std::size_t>(p)][0] = std::numeric_limits<float>::quiet_NaN();
  return gradient;
}

struct Manner {
  std::int64_t bucket_elements = 2048;
  int device_units = 0;
  std::int64_t undo_buckets = 3;
  Schedule schedule = Schedule::overlapped;
  bool transient_weights = false, transient_gradients = false;
  int streamed_units = 0;
  bool over_link = false;
  int resume_at = -1;
};

EngineSettings settings_of(DType compute, const Manner& manner) {
  EngineSettings settings;
  settings.formats = model_formats(compute);
  settings.bucket_elements = manner.bucket_elements;
  settings.device_units = manner.device_units;
  settings.undo_buckets = manner.undo_buckets;
  settings.schedule = manner.schedule;
  settings.device_weights = manner.transient_weights ? ResidencyKind::from_masters : ResidencyKind::resident;
  settings.streamed_units = manner.streamed_units;
  settings.update_over_link = manner.over_link;
  if (manner.transient_gradients) settings.host_gradients = GradientResidency::moved;
  settings.weight_decay = 0.1;
  settings.max_grad_norm = 100;  // a third of the steps is clipped
  return settings;
}

// Every weight is one that the format holds, as in a file.
Flat initial(DType compute) {
  Flat masters = synthetic_gradients(layered(), 1, 0.125f);
  if (compute == DType::bf16)
    for (auto& values : masters)
      for (float& x : values) x = static_cast<float>(bf16(x));
  return masters;
}

void expect_plain_loop(const ParameterLayout& layout, DType compute, const Manner& manner, unsigned seed) {
  const EngineSettings settings = settings_of(compute, manner);
  const auto make = [&](unsigned s) {
    return std::make_unique<EngineRig>(layout, settings, 2, std::make_unique<RandomPolicy>(s));
  };
  ReferenceLoop reference(layout, settings, initial(compute));
  auto rig = make(seed);
  rig->load(initial(compute));
  int clipped = 0;
  for (int step = 0; step < kSteps; ++step) {
    if (step == manner.resume_at) {
      auto other = make(seed + 1);
      rig->stream().synchronize();
      other->load(rig->bytes());
      rig = std::move(other);
    }
    const Verdict verdict = rig->step(gradient_of(layout, step), 1e-2, step + 1);
    ASSERT_TRUE(verdict.finite) << step;
    EXPECT_EQ(verdict.clip, reference.step(gradient_of(layout, step), 1e-2, step + 1)) << step;
    clipped += verdict.clip != 1.0f ? 1 : 0;
  }
  EXPECT_GT(clipped, 1);
  EXPECT_LT(clipped, kSteps);
  EXPECT_TRUE(rig->equals(reference));
}

TEST(Frozen, EveryScheduleIsThePlainLoop) {
  unsigned seed = 5;
  for (const ParameterLayout& layout : layouts())
    for (const DType compute : {DType::f32, DType::bf16})
      for (const Manner& manner : {Manner{.bucket_elements = 64000, .schedule = Schedule::synchronous}, Manner{},
                                   Manner{.bucket_elements = 1024, .device_units = 3}, Manner{.device_units = 7},
                                   Manner{.device_units = 3, .transient_weights = true, .transient_gradients = true},
                                   Manner{.streamed_units = 5, .resume_at = 5},
                                   Manner{.device_units = 2, .transient_weights = true, .streamed_units = 2},
                                   Manner{.streamed_units = 3, .over_link = true},
                                   Manner{.device_units = 4, .over_link = true, .resume_at = 7}}) {
        SCOPED_TRACE(testing::Message() << name_of(compute) << ", layout " << (&layout - layouts().data())
                                        << ", device units " << manner.device_units << ", streamed "
                                        << manner.streamed_units << ", buckets of " << manner.bucket_elements);
        expect_plain_loop(layout, compute, manner, ++seed);
      }
}

TEST(Frozen, TakesNoStateAndNoGradients) {
  const ParameterLayout& layout = layouts().front();
  EXPECT_EQ(layout.first_trained_unit(), 2);
  std::int64_t trained = 0, joined = 0;
  for (const Parameter& p : layout.parameters()) trained += p.trained ? p.size() : 0;
  EXPECT_EQ(layout.trained_parameter_elements(), trained);
  for (int unit = 0; unit < layout.units(); ++unit)
    for (const Range& range : layout.gradient_ranges(unit)) joined += range.size();
  EXPECT_EQ(joined, layout.trained_elements()) << "no matrix here is frozen in part";
  EXPECT_EQ(host_share(layout, 0), 1);
  EXPECT_EQ(host_share(layout, 2), 1) << "the first two have no state";
  EXPECT_LT(host_share(layout, 3), 1);

  for (const int device_units : {0, 4, 7}) {
    Manner manner;
    manner.undo_buckets = 0;
    manner.device_units = device_units;
    const EngineSettings settings = settings_of(DType::f32, manner);
    const auto device = make_dry_device(DeviceKind::cpu);
    const auto ranks = make_single_communicator();
    ThreadPool pool("host", {}, false);
    const OffloadEngine engine(*device, pool, *ranks, layout, settings);
    const auto held = [&](const char* name) {
      std::size_t bytes = 0;
      for (const MemoryKind kind : {MemoryKind::device, MemoryKind::pinned, MemoryKind::pageable})
        if (const auto all = device->ledger().peaks(kind); all.contains(name)) bytes += all.at(name);
      return bytes;
    };
    const auto elements = static_cast<std::size_t>(layout.trained_elements());
    EXPECT_EQ(held("gradients"), elements * sizeof(float));
    EXPECT_EQ(held("master weights"), elements * sizeof(float));
    EXPECT_EQ(held("second moments"), elements * sizeof(float));
    EXPECT_EQ(held("weights"), static_cast<std::size_t>(layout.elements()) * sizeof(float));
  }
}

// The gradient of a joined matrix is one, so there is memory for all of it.
TEST(Frozen, APartOfAJoinedMatrix) {
  std::vector<Parameter> parameters = {{"embed", {8, 64}, true, 0, false},
                                       {"q", {8, 64}, true, 1, false},
                                       {"k", {4, 64}, true, 1, true},
                                       {"o", {8, 64}, true, 1, false},
                                       {"head", {8, 64}, true, 2, false}};
  parameters[1].trained = parameters[3].trained = false;
  const ParameterLayout layout(parameters);
  EXPECT_EQ(layout.gradient_ranges(1), (std::vector<Range>{{512, 512 + 768}}));
  const std::vector<Bucket> buckets = make_buckets(layout, 1 << 20, 0);
  std::vector<std::pair<std::int64_t, Owner>> ends;
  for (const Bucket& bucket : buckets) ends.emplace_back(bucket.range().end, bucket.owner());
  EXPECT_EQ(
      ends,
      (std::vector<std::pair<std::int64_t, Owner>>{
          {512, Owner::host}, {1024, Owner::nobody}, {1280, Owner::host}, {1792, Owner::nobody}, {2304, Owner::host}}));
  parameters[2].shape = {4, 63};  // then o begins at a cache line still, but a frozen k would not end at one
  parameters[1].shape = {8, 63};
  EXPECT_THROW(ParameterLayout{parameters}, Bug);
}

// Ranks own slices of frozen buckets too, which they load and write, and gather where weights are not whole.
TEST(Frozen, Ranks) {
  if (on_gpu()) GTEST_SKIP() << "ranks are those of the CPU device";
  for (const ParameterLayout& layout : layouts())
    for (const int size : {2, 3})
      for (const int gathered : {0, 2, 5})
        for (const int device_units : {0, 4}) {
          SCOPED_TRACE(testing::Message()
                       << size << " ranks, " << gathered << " units gathered, device units " << device_units);
          const EngineSettings settings = gathered_settings(gathered, device_units);
          ReferenceLoop reference(layout, settings, initial(DType::f32));
          std::vector<Flat> sums;
          for (int step = 0; step < 4; ++step) {
            std::vector<Flat> gradients;
            for (int rank = 0; rank < size; ++rank)
              gradients.push_back(synthetic_gradients(layout, static_cast<unsigned>(100 * step + rank)));
            reference.step(sum_of(gradients), 1e-2, step + 1);
          }
          run_ranks(size, [&](Communicator& ranks) {
            EngineRig rig(layout, settings, 1, nullptr, {}, &ranks);
            rig.load(initial(DType::f32));
            for (int step = 0; step < 4; ++step) {
              EXPECT_TRUE(rig.step(synthetic_gradients(layout, static_cast<unsigned>(100 * step + ranks.rank())), 1e-2,
                                   step + 1)
                              .finite);
              rig.stream().synchronize();
            }
            std::vector<double> master(static_cast<std::size_t>(layout.elements()));
            rig.engine().read_state(StateArray::master, {0, layout.elements()},
                                    [&](std::int64_t begin, std::span<const float> part) {
                                      std::copy(part.begin(), part.end(), master.begin() + begin);
                                    });
            ranks.all_reduce_sum(master);
            const std::vector<std::byte> weights = rig.weights();
            ranks.barrier();
            for (int p = 0; p < layout.count(); ++p) {
              const std::vector<float> found(master.begin() + layout.range(p).begin,
                                             master.begin() + layout.range(p).end);
              EXPECT_EQ(found, reference.master[static_cast<std::size_t>(p)]) << layout.parameter(p).name;
            }
            expect_weights(layout, weights, reference.master, DType::f32);
          });
        }
}

}  // namespace
}  // namespace so::test
