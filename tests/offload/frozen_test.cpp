// Frozen parameters: nobody updates them, they take no state and no gradients, and what the others become is the plain
// loop's, whatever the schedule, the split, the residency and the number of ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "offload/counted_settings.h"
#include "offload/engine_rig.h"
#include "offload/idle_micro_batch.h"
#include "offload/plain_loop.h"
#include "offload/ranks_rig.h"
#include "offload/schedule/placement.h"
#include "support/on_gpu.h"
#include "support/sanitized.h"
#include "support/thread_ranks.h"

namespace so::test {
namespace {

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

TEST(Frozen, EveryScheduleIsThePlainLoop) {
  unsigned seed = 5;
  for (const ParameterLayout& layout : layouts())
    for (const DType compute : sanitized ? std::vector{DType::bf16} : std::vector{DType::f32, DType::bf16})
      for (const PlainManner& manner :
           {PlainManner{.bucket_elements = 64000, .schedule = Schedule::synchronous}, PlainManner{},
            PlainManner{.bucket_elements = 1024, .device_units = 3}, PlainManner{.device_units = 7},
            PlainManner{.device_units = 3, .transient_weights = true, .transient_gradients = true},
            PlainManner{.streamed_units = 5, .resume_at = 5},
            PlainManner{.device_units = 2, .transient_weights = true, .streamed_units = 2},
            PlainManner{.streamed_units = 3, .over_link = true},
            PlainManner{.device_units = 4, .over_link = true, .resume_at = 7},
            PlainManner{.bucket_elements = 4096, .moments = DType::u8},
            PlainManner{.device_units = 4, .over_link = true, .resume_at = 7, .moments = DType::u8}}) {
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
    PlainManner manner;
    manner.spare_buckets = 0;
    manner.device_units = device_units;
    const CountedSettings settings = plain_settings(DType::f32, manner);
    const auto device = make_dry_device(DeviceKind::cpu);
    const auto ranks = make_single_communicator();
    ThreadPool pool("host", {}, false);
    const OffloadEngine engine(*device, pool, *ranks, layout, settings.of(layout));
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
  const std::vector<Bucket> buckets = make_buckets(layout, 1 << 20, owned_rows(layout, 0));
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

// A rank without a micro-batch gathers as the others do, whose backward pass ends above the frozen layers.
TEST(Frozen, AnIdleRankGathersNoMore) {
  if (on_gpu()) GTEST_SKIP() << "ranks are those of the CPU device";
  const ParameterLayout layout = frozen_layout({"embed", "1.*", "2.*", "3.*"});
  ASSERT_EQ(layout.first_trained_unit(), 4);
  const CountedSettings settings = gathered_settings(5);
  ReferenceLoop reference(layout, settings, plain_initial(DType::f32));
  const auto gradient_of = [&](int step) { return synthetic_gradients(layout, static_cast<unsigned>(step)); };
  for (int step = 0; step < 4; ++step) reference.step(gradient_of(step), 1e-2, step + 1);
  run_ranks(2, [&](Communicator& ranks) {
    EngineRig rig(layout, settings, 1, nullptr, {}, &ranks);
    rig.load(plain_initial(DType::f32));
    for (int step = 0; step < 4; ++step) {
      rig.engine().begin_last_micro_batch(1e-2, step + 1);
      if (ranks.rank() == step % 2)
        rig.micro_batch(gradient_of(step), true);
      else
        run_idle_micro_batch(layout, {}, rig.engine(), rig.engine(), rig.stream());
      rig.engine().finish_step(rig.stream());
    }
    rig.stream().synchronize();
    std::vector<double> gathers{static_cast<double>(rig.engine().counters().gathered_units)};
    const double own = gathers[0];
    ranks.all_reduce_sum(gathers);
    EXPECT_EQ(gathers[0], 2 * own);
    const std::vector<float> masters = whole(rig.engine(), ranks, StateArray::master);
    expect_weights(layout, rig.weights(), reference.master, DType::f32);
    ranks.barrier();
    for (int p = 0; p < layout.count(); ++p)
      EXPECT_EQ(part_of(layout, p, masters), reference.master[static_cast<std::size_t>(p)]) << layout.parameter(p).name;
  });
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
          const CountedSettings settings = gathered_settings(gathered, device_units);
          ReferenceLoop reference(layout, settings, plain_initial(DType::f32));
          std::vector<Flat> sums;
          for (int step = 0; step < 4; ++step) {
            std::vector<Flat> gradients;
            for (int rank = 0; rank < size; ++rank)
              gradients.push_back(synthetic_gradients(layout, static_cast<unsigned>(100 * step + rank)));
            reference.step(sum_of(gradients), 1e-2, step + 1);
          }
          run_ranks(size, [&](Communicator& ranks) {
            EngineRig rig(layout, settings, 1, nullptr, {}, &ranks);
            rig.load(plain_initial(DType::f32));
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
