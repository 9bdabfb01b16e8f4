// AdamW for tensors of another framework equals a plain loop over their elements to the bit, whatever comes when.
#include "train/frameworks/tensor_optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "offload/random_policy.h"
#include "optim/adamw_twin.h"
#include "optim/clip.h"
#include "support/device_rig.h"
#include "support/label.h"
#include "support/sanitized.h"

namespace so::test {
namespace {

// The framework's device, whose memory the optimizer's own device can read too.
DeviceRig& rig() {
  static DeviceRig rig;
  return rig;
}

struct OneTensor {
  std::int64_t elements;
  int unit, group;
  DType dtype;
};

std::vector<std::byte> bytes_of(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  if (dtype == DType::f32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  } else {
    const std::vector<bf16> narrow(values.begin(), values.end());
    std::memcpy(bytes.data(), narrow.data(), bytes.size());
  }
  return bytes;
}

// Waits for the work on the rig's stream alone.
std::vector<std::byte> download(const void* data, std::size_t bytes) {
  std::vector<std::byte> values(bytes);
  rig().stream().copy(values.data(), data, bytes);
  rig().stream().synchronize();
  return values;
}

// Tensors as the model's framework would hold them, and beside each its expected value.
struct World {
  explicit World(const std::vector<OneTensor>& all) {
    std::mt19937 random(7);
    for (const OneTensor& one : all) {
      Held& held = tensors.emplace_back();
      held.one = one;
      std::vector<float> values(static_cast<std::size_t>(one.elements));
      for (float& value : values) {
        const bf16 narrow(static_cast<float>(static_cast<int>(random() >> 20) - 2048) / 1024.0f);
        value = static_cast<float>(narrow) + (one.dtype == DType::f32 ? 0x1p-13f : 0.0f);
        held.state.push_back({value, 0, 0});
      }
      const std::vector<std::byte> bytes = bytes_of(values, one.dtype);
      held.memory = rig().device().allocate(MemoryKind::device, bytes.size(), "framework's tensor");
      rig().stream().copy(held.memory.data(), bytes.data(), bytes.size());
      rig().stream().synchronize();
      groups.push_back(one.group);
    }
  }

  std::vector<OwnedTensor> owned() {
    std::vector<OwnedTensor> all;
    for (Held& held : tensors)
      all.push_back({.name = std::to_string(all.size()),
                     .data = held.memory.data(),
                     .dtype = held.one.dtype,
                     .elements = held.one.elements,
                     .unit = held.one.unit});
    return all;
  }
  bool all_narrow() const {
    return std::all_of(tensors.begin(), tensors.end(), [](const Held& h) { return h.one.dtype == DType::bf16; });
  }

  // A gradient arrives in the format of its tensor.
  void add_gradient(std::size_t t, const std::vector<float>& values) {
    Held& held = tensors[t];
    if (held.gradient.empty()) {
      held.gradient = values;
      return;
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float sum = held.gradient[i] + values[i];
      held.gradient[i] = all_narrow() ? static_cast<float>(bf16(sum)) : sum;
    }
  }
  void drop_gradients() {
    for (Held& held : tensors) held.gradient.clear();
  }

  double norm() const {
    double squares = 0;
    for (const Held& held : tensors)
      for (const float g : held.gradient) squares += static_cast<double>(g) * g;
    return std::sqrt(squares);
  }

  void step(const std::vector<GroupUpdate>& settings, double max_grad_norm) {
    const bool finite = std::isfinite(norm());
    const float clip = finite ? clip_coefficient(norm(), max_grad_norm) : 1.0f;
    for (Held& held : tensors) {
      if (finite && !held.gradient.empty()) {
        const GroupUpdate& own = settings[static_cast<std::size_t>(held.one.group)];
        const AdamWStep step = make_adamw_step(own.adamw, own.lr, own.weight_decay, ++held.updates, clip);
        for (std::size_t i = 0; i < held.state.size(); ++i)
          held.state[i] = adamw_twin(step, true, held.gradient[i], held.state[i]);
      }
      held.gradient.clear();
    }
  }

  // The tensors' memory holds the plain loop's values.
  testing::AssertionResult holds() const {
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const Held& held = tensors[t];
      std::vector<float> expected;
      for (const TwinElement& e : held.state) expected.push_back(e.p);
      if (download(held.memory.data(), held.memory.bytes()) != bytes_of(expected, held.one.dtype))
        return testing::AssertionFailure() << "tensor " << t;
    }
    return testing::AssertionSuccess();
  }

  testing::AssertionResult state_is(TensorOptimizer& optimizer) const {
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const Held& held = tensors[t];
      if (optimizer.updates(static_cast<int>(t)) != held.updates)
        return testing::AssertionFailure() << "tensor " << t << " has had " << optimizer.updates(static_cast<int>(t));
      for (const StateArray array : state_arrays) {
        std::vector<float> got(held.state.size()), expected;
        optimizer.read(array, static_cast<int>(t), got);
        for (const TwinElement& e : held.state)
          expected.push_back(array == StateArray::master ? e.p : array == StateArray::first_moment ? e.m : e.v);
        if (auto same = so::same_bits(got, expected); !same)
          return same << " (array " << static_cast<int>(array) << " of tensor " << t << ")";
      }
    }
    return testing::AssertionSuccess();
  }

  struct Held {
    OneTensor one{};
    Buffer memory;  // the framework's
    std::vector<float> gradient;
    std::vector<TwinElement> state;
    std::int64_t updates = 0;
  };
  std::vector<Held> tensors;
  std::vector<int> groups;
};

std::vector<OneTensor> tensors_of(const std::vector<DType>& dtypes) {
  std::vector<OneTensor> all = {{1, 0, 0, {}},    {63, 0, 1, {}},   {64, 1, 0, {}},  {65, 1, 0, {}},  {1000, 1, 1, {}},
                                {4096, 2, 0, {}}, {5001, 3, 1, {}}, {200, 3, 0, {}}, {3000, 4, 1, {}}};
  for (std::size_t t = 0; t < all.size(); ++t) all[t].dtype = dtypes[t % dtypes.size()];
  return all;
}

// Multiples of 2^-4 below 8 in size, exact in bf16, as are sums of their squares in double.
std::vector<float> some_gradient(std::int64_t elements, std::mt19937& random) {
  std::vector<float> values(static_cast<std::size_t>(elements));
  for (float& x : values) x = static_cast<float>(static_cast<int>(random() >> 25) - 64) / 16.0f;
  return values;
}

// The framework's streams, none, or two between which it changes. A gradient's memory is used anew in their order.
class Framework {
 public:
  Framework(TensorOptimizer& optimizer, bool has_streams) : optimizer_(optimizer) {
    for (int i = 0; i < (has_streams ? 2 : 0); ++i)
      streams_.push_back(optimizer.device().create_stream("framework " + std::to_string(i)));
  }
  ~Framework() {
    optimizer_.use_own();
    synchronize();
  }

  void change_stream(std::mt19937& random) {
    if (!streams_.empty()) optimizer_.use(*streams_[random() % streams_.size()]);
  }
  // Gives a gradient to both; returns whether the optimizer asks for a forecast.
  bool give(World& world, std::size_t t, const std::vector<float>& values, std::mt19937& random) {
    change_stream(random);
    world.add_gradient(t, values);
    const DType dtype = world.tensors[t].one.dtype;
    Stream& stream = streams_.empty() ? rig().stream() : optimizer_.stream();
    // Each stream has a place of its own, so that the order of its work protects it.
    Buffer& memory = gradients_[{&stream, t}];
    if (!memory) memory = rig().device().allocate(MemoryKind::device, values.size() * size_of(dtype), "its gradient");
    const auto enqueue = [&](const std::vector<float>& from) {
      sources_.push_back(bytes_of(from, dtype));
      stream.copy(memory.data(), sources_.back().data(), memory.bytes());
      if (streams_.empty()) stream.synchronize();
    };
    enqueue(values);
    const bool asks = optimizer_.add_gradient(static_cast<int>(t), memory.data(), dtype);
    enqueue(std::vector<float>(values.size(), -2.0f));  // another use of its memory
    return asks;
  }
  void synchronize() {
    for (const auto& stream : streams_) stream->synchronize();
    sources_.clear();
  }

 private:
  TensorOptimizer& optimizer_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::map<std::pair<Stream*, std::size_t>, Buffer> gradients_;
  std::list<std::vector<std::byte>> sources_;  // of copies that may be under way
};

// Rows of a late tensor, by the gradients that the optimizer has of them, are the plain loop's. Returns whether the
// optimizer has given them.
bool rows_are_right(TensorOptimizer& optimizer, const World& world, std::size_t t, std::mt19937& random) {
  const World::Held& held = world.tensors[t];
  const auto rows_of = [&](std::int64_t width) { return held.one.elements / width; };
  const std::int64_t width = std::vector<std::int64_t>{1, 8, 100}[random() % 3];
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < rows_of(width); ++row)
    if (random() % 4 == 0) rows.push_back(row);
  const Tensor last = optimizer.last_gradient(static_cast<int>(t));
  const std::vector<std::byte> gradient = download(last.data(), last.bytes());
  const auto bytes = static_cast<std::size_t>(width) * size_of(last.dtype());
  std::vector<std::byte> of_rows(rows.size() * bytes), weights(rows.size() * static_cast<std::size_t>(width) * 4);
  for (std::size_t i = 0; i < rows.size(); ++i)
    std::memcpy(of_rows.data() + i * bytes, gradient.data() + static_cast<std::size_t>(rows[i]) * bytes, bytes);
  if (!optimizer.preview_rows(static_cast<int>(t), width, rows, of_rows.data(), weights.data())) return false;
  EXPECT_TRUE(optimizer.pending(static_cast<int>(t)));
  std::size_t at = 0;
  for (const std::int64_t row : rows)
    for (std::int64_t i = 0; i < width; ++i, ++at) {
      const float expected = held.state[static_cast<std::size_t>(row * width + i)].p;
      const bool same = optimizer.weight_dtype() == DType::bf16
                            ? same_bits(reinterpret_cast<const bf16*>(weights.data())[at], bf16(expected))
                            : same_bits(reinterpret_cast<const float*>(weights.data())[at], expected);
      if (!same) ADD_FAILURE() << "row " << row << " of tensor " << t << ", element " << i;
      if (!same) return true;
    }
  return true;
}

struct Tally {
  std::int64_t rows = 0, on_device = 0, over_link = 0, reopened = 0, ahead = 0, clipped = 0, skipped = 0;
};

// Steps with everything at random: which tensors have gradients, how many, in which order, settings that change after
// the forecast, looks at the tensors between backward and step, gradients that are dropped.
void run_at_random(unsigned seed, Tally& tally) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto one_in = [&](unsigned n) { return random() % n == 0; };
  const std::vector<std::vector<DType>> kinds = {{DType::f32}, {DType::bf16}, {DType::bf16, DType::f32}};
  World world(tensors_of(kinds[random() % kinds.size()]));
  const double max_grad_norm = one_in(2) ? 0 : 50.0 * (1 + random() % 8);
  const int device_units = one_in(2) ? 0 : static_cast<int>(random() % 6);
  TensorOptimizer optimizer(world.owned(), world.groups,
                            {.backend = on_gpu() ? &cuda_backend() : &cpu_backend(),
                             .device_index = index_under_test(),
                             .max_grad_norm = max_grad_norm,
                             .threads = 2,
                             .bucket_elements = 64 * std::vector<std::int64_t>{1, 16, 200}[random() % 3],
                             .device_units = device_units,
                             .awaits_updates = one_in(2),
                             .update_over_link = one_in(2),
                             .spare_state = std::vector<double>{0, 0.3, 1}[random() % 3],
                             .policy = std::make_unique<RandomPolicy>(seed)});
  ASSERT_TRUE(world.holds());
  Framework framework(optimizer, one_in(2));
  std::vector<GroupUpdate> settings = {{.adamw = {}, .lr = 1e-2, .weight_decay = 0.1},
                                       {.adamw = {0.8, 0.95, 1e-6}, .lr = 3e-3, .weight_decay = 0}};
  std::size_t passes = 1;
  std::vector<bool> used(world.tensors.size(), true);
  bool looked = true;
  for (int step = 0; step < 12; ++step) {
    if (one_in(4)) passes = 1 + random() % 3;
    if (one_in(4))
      for (std::size_t t = 0; t < used.size(); ++t) used[t] = !one_in(3);
    used[random() % used.size()] = true;
    settings[0].lr *= 0.9;
    for (std::size_t pass = 0; pass < passes; ++pass) {
      std::vector<std::size_t> order(world.tensors.size());
      std::iota(order.rbegin(), order.rend(), 0);
      if (one_in(2)) std::shuffle(order.begin(), order.end(), random);
      for (const std::size_t t : order) {
        if (!used[t]) continue;
        std::vector<float> values = some_gradient(world.tensors[t].one.elements, random);
        if (one_in(150)) values[random() % values.size()] = std::numeric_limits<float>::quiet_NaN();
        if (framework.give(world, t, values, random)) optimizer.forecast(settings);
      }
      if (looked) {
        framework.synchronize();
        EXPECT_TRUE(world.holds()) << "what is done ahead shows in no tensor";
      }
      if (one_in(12)) {
        optimizer.drop_gradients();
        world.drop_gradients();
      }
      if (one_in(12)) {
        ASSERT_TRUE(world.state_is(optimizer)) << "in step " << step;
      }
    }
    if (!optimizer.has_gradients()) {
      const std::vector<float> values = some_gradient(world.tensors[0].one.elements, random);
      if (framework.give(world, 0, values, random)) optimizer.forecast(settings);
    }
    if (one_in(4)) {
      const double norm = optimizer.gradient_norm(settings);
      EXPECT_TRUE(std::isnan(norm) ? std::isnan(world.norm()) : norm == world.norm()) << norm;
      if (one_in(3)) {  // there are more of them after all
        const std::size_t t = random() % world.tensors.size();
        const std::vector<float> values = some_gradient(world.tensors[t].one.elements, random);
        if (framework.give(world, t, values, random)) optimizer.forecast(settings);
      }
    }
    if (one_in(8)) settings[1].lr *= 2;
    const Verdict verdict = optimizer.step(settings);
    world.step(settings, max_grad_norm);
    tally.clipped += verdict.finite && verdict.clip < 1 ? 1 : 0;
    tally.skipped += verdict.finite ? 0 : 1;
    if (one_in(4)) {
      for (const int late : {5, 8})  // alone in their units
        if (world.tensors[static_cast<std::size_t>(late)].one.unit >= device_units) optimizer.set_late(late);
    } else if (verdict.finite && one_in(2)) {
      const std::size_t late = one_in(2) ? 5 : 8;
      framework.synchronize();
      tally.rows += rows_are_right(optimizer, world, late, random) ? 1 : 0;
    }
    looked = !one_in(5);  // else the next gradients come while this step's updates may run
    framework.change_stream(random);
    if (one_in(3)) {
      const auto t = static_cast<int>(random() % world.tensors.size());
      optimizer.require(t);
      EXPECT_FALSE(optimizer.pending(t));
    }
    if (!looked) continue;
    optimizer.wait();
    EXPECT_FALSE(optimizer.pending());
    framework.synchronize();
    ASSERT_TRUE(world.holds()) << "after step " << step;
  }
  optimizer.wait();
  framework.synchronize();
  EXPECT_TRUE(world.holds());
  EXPECT_TRUE(world.state_is(optimizer));
  tally.reopened += optimizer.reopened_steps();
  tally.on_device += optimizer.counters().device_updates;
  tally.over_link += optimizer.counters().host.over_link;
  tally.ahead += optimizer.counters().host.speculated + optimizer.counters().host.previewed;
}

// Each is twelve steps. Twenty already bring every kind of event below dozens of times.
unsigned seeds_to_run() {
  unsigned seeds = sanitized ? 20 : 40;
  if (const char* wanted = std::getenv("SO_RANDOM_SCHEDULES")) {
    const std::string_view text = wanted;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seeds);
    SO_CHECK(error == std::errc() && end == text.data() + text.size(), "SO_RANDOM_SCHEDULES={} is no number", text);
  }
  return seeds;
}

SO_LABEL(tsan, "TensorOptimizer.*");
TEST(TensorOptimizer, AnythingAtRandomIsThePlainLoop) {
  Tally tally;
  const unsigned seeds = seeds_to_run();
  for (unsigned seed = 0; seed < seeds && !testing::Test::HasFatalFailure(); ++seed) run_at_random(seed, tally);
  if (seeds < 20) return;
  EXPECT_GT(tally.reopened, seeds / 2);
  EXPECT_GT(tally.ahead, seeds);
  EXPECT_GT(tally.on_device, seeds);
  EXPECT_GT(tally.over_link, seeds);
  EXPECT_GT(tally.rows, seeds);
  EXPECT_GT(tally.clipped, seeds);
  EXPECT_GT(tally.skipped, seeds / 4);
}

TEST(TensorOptimizer, MemoryIsSaidBefore) {
  SO_CPU_ONLY("the peaks of a GPU's libraries are not the optimizer's");
  World world(tensors_of({DType::bf16}));
  const std::size_t host_owned = memory_of(world.owned(), {}).host;
  TensorOptimizer optimizer(world.owned(), world.groups, {});
  std::size_t peak = 0;
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::pinned, MemoryKind::pageable})
    peak += optimizer.device().ledger().peak(kind);
  EXPECT_EQ(host_owned, peak);
  // A GPU that owns all holds the state, the gradients and the norms.
  TensorOptimizerSettings settings;
  settings.backend = &cuda_backend();
  settings.device_units = 5;
  const TensorOptimizerMemory owned = memory_of(world.owned(), settings);
  std::size_t elements = 0;
  for (const OwnedTensor& tensor : world.owned()) elements += static_cast<std::size_t>(tensor.elements);
  EXPECT_GT(owned.device, 14 * elements);
  EXPECT_LT(owned.device, 14 * elements + 64 * 14 * world.tensors.size() + (1 << 20));
  settings.device_units = 0;
  const TensorOptimizerMemory offloaded = memory_of(world.owned(), settings);
  EXPECT_LT(offloaded.device, 3 * elements);
  EXPECT_GT(offloaded.host, 14 * elements);
  EXPECT_NE(offloaded.table.find("new weights"), std::string::npos) << offloaded.table;
  // A GPU that shares the host's memory has none to count beside it, whoever owns the state.
  for (const int device_units : {0, 5}) {
    settings.device_units = device_units;
    settings.backend = &shared_cuda_backend();
    const TensorOptimizerMemory shared = memory_of(world.owned(), settings);
    settings.backend = &cuda_backend();
    const TensorOptimizerMemory apart = memory_of(world.owned(), settings);
    EXPECT_EQ(shared.device, 0u);
    EXPECT_EQ(shared.host, apart.device + apart.host);
  }
}

}  // namespace
}  // namespace so::test
