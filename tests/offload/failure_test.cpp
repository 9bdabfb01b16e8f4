// A failure beside the engine's thread, on the optimizer's, a worker's or a stream's, ends the step under way with
// that first error: nobody waits for what will not come, a save under way ends, and the engine can be destroyed.
#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <string_view>
#include <utility>

#include "base/delay_point.h"
#include "base/error.h"
#include "offload/copy_hook.h"
#include "offload/counted_settings.h"
#include "offload/engine_rig.h"

namespace so::test {
namespace {

constexpr const char* kFault = "a fault made by the test";
constexpr int kFailingSteps = 8;

// Ends the process if the test does not end: a thread that waits for ever can be told nothing.
class Watchdog {
 public:
  Watchdog() : thread_([this] { watch(); }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void watch() {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::minutes(2), [&] { return ended_; })) return;
    std::fputs("the engine hangs\n", stderr);
    std::abort();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;
};

// While it lives, what the host's optimizer does fails once: at the n-th delay point of its thread and its workers.
class OptimizerFault {
 public:
  explicit OptimizerFault(int after) {
    left() = after;
    delay_hook = &pass;
  }
  ~OptimizerFault() { delay_hook = nullptr; }
  OptimizerFault(const OptimizerFault&) = delete;
  OptimizerFault& operator=(const OptimizerFault&) = delete;
  static bool came() { return left() < 0; }

 private:
  static std::atomic<int>& left() {
    static std::atomic<int> count;
    return count;
  }
  static void pass() {
    std::array<char, 16> name{};
    pthread_getname_np(pthread_self(), name.data(), name.size());
    const std::string_view thread(name.data());
    if (thread != "optimizer" && thread != "link" && !thread.starts_with("host-")) return;
    if (left()-- == 0) throw Error(kFault);
  }
};

// One copy fails, counted over all streams of the name.
CopyHook failing_copy(int copies_left) {
  return [copies_left](Stream& stream) mutable {
    const bool fails = copies_left-- == 0;
    if (fails) stream.host("fault", [] { throw Error(kFault); });
    return !fails;
  };
}

// Each bucket another way, and others the next step.
class MixedPolicy final : public UpdatePolicy {
 public:
  UpdateChoice choose(const UpdateFacts& facts) override {
    UpdateChoice choice;
    for (std::size_t i = 0; i < facts.elements.size(); ++i) {
      choice.ahead.push_back(static_cast<Ahead>((i + step_) % 3));
      choice.after.push_back(static_cast<After>((i + step_ / 3) % 2));
      choice.redo.push_back(static_cast<After>((i + step_ / 3) % 2));
    }
    ++step_;
    return choice;
  }

 private:
  std::size_t step_ = 0;
};

const ParameterLayout& failing_layout() {
  static const ParameterLayout layout = engine_layout();
  return layout;
}
// Some are clipped. Streams may use them as long as they like.
const Flat& gradient_of(int step) {
  static const std::array<Flat, 3> gradients = {synthetic_gradients(failing_layout(), 5, 0x1p-8f),
                                                synthetic_gradients(failing_layout(), 6, 0x1p-8f),
                                                synthetic_gradients(failing_layout(), 7, 1)};
  return gradients[static_cast<std::size_t>(step) % gradients.size()];
}

CountedSettings settings_of(int round) {
  CountedSettings settings;
  const DType dtype = round % 2 == 0 ? DType::bf16 : DType::f32;
  settings.formats = model_formats(dtype);
  settings.formats.gradients = dtype;
  settings.placement.bucket_elements = 4096;
  settings.counts.device_units = round % 3;
  settings.placement.spare_buckets = round % 4;
  settings.counts.move_gradients = round % 5 == 4;
  settings.placement.schedule = round % 6 == 5 ? Schedule::synchronous : Schedule::overlapped;
  settings.weight_decay = 0.1;
  settings.max_grad_norm = 100;
  return settings;
}

// A save beside the steps that follow, which must see the state that it began with.
class Save {
 public:
  explicit Save(EngineRig& rig) : rig_(rig), before_(rig.bytes()) {
    rig.engine().begin_save();
    thread_ = std::thread([this] { read(); });
  }
  ~Save() {
    thread_.join();
    seen_.weights = before_.weights;  // a save reads no weights
    if (error_.empty())
      EXPECT_TRUE(seen_ == before_) << "the save saw what came later";
    else
      EXPECT_EQ(error_, kFault);
  }
  Save(const Save&) = delete;
  Save& operator=(const Save&) = delete;

 private:
  void read() {
    OffloadEngine& engine = rig_.engine();
    try {
      for (const Bucket& bucket : engine.buckets()) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        rig_.read(StateArray::master, bucket.range(), seen_.master);
        rig_.read(StateArray::first_moment, bucket.range(), seen_.m);
        rig_.read(StateArray::second_moment, bucket.range(), seen_.v);
        engine.gate().passed(bucket.index());
      }
    } catch (const Error& error) {
      error_ = error.what();
    }
    engine.gate().end();
  }

  EngineRig& rig_;
  const EngineBytes before_;
  EngineBytes seen_;
  std::string error_;
  std::thread thread_;
};

// Steps with a save beside every third. Returns how many were finished before an error.
template <class Before>
int run_to_error(EngineRig& rig, const Before& before) {
  std::unique_ptr<Save> save;
  int step = 0;
  try {
    for (; step < kFailingSteps; ++step) {
      if (step % 3 == 1) {
        save.reset();
        save = std::make_unique<Save>(rig);
      }
      rig.engine().begin_last_micro_batch(1e-2, step + 1);
      rig.micro_batch(gradient_of(step), true, nullptr, [&](int unit) { before(step, unit); });
      rig.engine().finish_step(rig.stream());
    }
    rig.engine().begin_save();  // waits for what the last step left to do
    rig.engine().gate().end();
    rig.stream().synchronize();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), kFault);
    return step;
  }
  ADD_FAILURE() << "nothing failed";
  return step;
}
int run_to_error(EngineRig& rig) {
  return run_to_error(rig, [](int, int) {});
}

// Whatever waits for the host from now on fails with the same error.
void expect_failed(EngineRig& rig) {
  OffloadEngine& engine = rig.engine();
  const int last = failing_layout().units() - 1;
  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"begin_last_micro_batch", [&] { engine.begin_last_micro_batch(1e-2, 100); }},
      {"require_weights", [&] { engine.require_weights(last, rig.stream()); }},
      {"require_gradients", [&] { engine.require_gradients(last, rig.stream()); }},
      {"begin_save", [&] { engine.begin_save(); }},
      {"upload_weights", [&] { engine.upload_weights(rig.stream()); }},
      {"read_state",
       [&] {
         std::vector<float> values;
         rig.read(StateArray::master, failing_layout().unit_range(last), values);
       }},
  };
  for (const auto& [name, call] : calls) {
    try {
      call();
      ADD_FAILURE() << name << " went on";
    } catch (const std::exception& error) {
      EXPECT_STREQ(error.what(), kFault) << name;
    }
  }
}

TEST(Failure, OfTheOptimizerIsThrownByWhatWaits) {
  std::mt19937 random(3);
  int least = kFailingSteps, most = 0;
  for (int round = 0; round < 24; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const Watchdog watchdog;
    CountedSettings settings = settings_of(round);
    settings.placement.over_link = round % 4 >= 2;
    EngineRig rig(failing_layout(), settings, 1 + round % 3, std::make_unique<MixedPolicy>());
    rig.load(synthetic_gradients(failing_layout(), 1, 0.125f));
    const OptimizerFault fault(static_cast<int>(random() % (round % 2 == 0 ? 16 : 400)));
    const int steps = run_to_error(rig);
    ASSERT_TRUE(OptimizerFault::came());
    expect_failed(rig);
    if (HasFailure()) return;
    least = std::min(least, steps);
    most = std::max(most, steps);
  }
  EXPECT_EQ(least, 0);
  EXPECT_GT(most, 2) << "all failed early: what a later step leaves to do was not tried";
}

TEST(Failure, OfTheModelsStreamIsThrownByTheStep) {
  std::mt19937 random(4);
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const Watchdog watchdog;
    CountedSettings settings = settings_of(round);
    settings.placement.over_link = round % 2 == 1;
    EngineRig rig(failing_layout(), settings, 1 + round % 3, std::make_unique<MixedPolicy>());
    rig.load(synthetic_gradients(failing_layout(), 1, 0.125f));
    const int at_step = static_cast<int>(random() % 6),
              at_unit = static_cast<int>(random()) & 3;  // the fixture has four
    const int steps = run_to_error(rig, [&](int step, int unit) {
      if (step == at_step && unit == at_unit) rig.stream().host("fault", [] { throw Error(kFault); });
    });
    EXPECT_EQ(steps, at_step) << "a step was finished without its gradients";
    expect_failed(rig);
    if (HasFailure()) return;
  }
}

class CopyFailure : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Streams, CopyFailure, testing::Values("to host", "to device"),
                         [](const auto& i) { return i.param == "to host" ? "to_host" : "to_device"; });

TEST_P(CopyFailure, IsThrownByTheNextStepAtTheLatest) {
  if (on_gpu()) GTEST_SKIP() << "the faulty streams are those of the CPU device";
  std::mt19937 random(5);
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const Watchdog watchdog;
    const CountedSettings settings = settings_of(round);
    const auto is_host = [](const Bucket& bucket) { return bucket.owner() == Owner::host; };
    const std::vector<Bucket> buckets =
        make_buckets(failing_layout(), settings.placement.bucket_elements,
                     owned_rows(failing_layout(), settings.counts.device_units), settings.counts.move_gradients);
    const auto owned = static_cast<int>(std::count_if(buckets.begin(), buckets.end(), is_host));
    // Each step copies every bucket at least once each way, after those that loading gave to the device.
    const int loaded = GetParam() == "to device" ? owned : 0, copies = loaded + static_cast<int>(random() % 40);
    EngineRig rig(failing_layout(), settings, 1 + round % 3, std::make_unique<MixedPolicy>(), [&](Device& device) {
      return std::make_unique<HookedDevice>(device, GetParam(), failing_copy(copies));
    });
    rig.load(synthetic_gradients(failing_layout(), 1, 0.125f));
    const int steps = run_to_error(rig);
    EXPECT_LE(steps, (copies - loaded) / owned + 1) << "steps were finished with old weights or gradients";
    // The error may have come by way of the model's stream, as a save's or the test's; then the engine has yet to meet
    // it.
    EXPECT_THROW(rig.step(gradient_of(steps), 1e-2, steps + 1), Error);
    expect_failed(rig);
    if (HasFailure()) return;
  }
}

// While it lives, the host's own thread waits until the link has had a copy.
class LinkFirst {
 public:
  LinkFirst() {
    copies() = 0;
    delay_hook = &pass;
  }
  ~LinkFirst() { delay_hook = nullptr; }
  LinkFirst(const LinkFirst&) = delete;
  LinkFirst& operator=(const LinkFirst&) = delete;
  static std::atomic<int>& copies() {
    static std::atomic<int> count;
    return count;
  }

 private:
  static void pass() {
    std::array<char, 16> name{};
    pthread_getname_np(pthread_self(), name.data(), name.size());
    if (std::string_view(name.data()) != "optimizer") return;
    while (copies() == 0) std::this_thread::yield();
  }
};

class LinkFailure : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Streams, LinkFailure, testing::Values("state to device", "state to host"),
                         [](const auto& i) { return i.param == "state to host" ? "to_host" : "to_device"; });

// No step is finished after one in which state that travelled was lost.
TEST_P(LinkFailure, IsThrownByTheNextStepAtTheLatest) {
  if (on_gpu()) GTEST_SKIP() << "the faulty streams are those of the CPU device";
  for (int round = 0; round < 6; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const Watchdog watchdog;
    CountedSettings settings = settings_of(round);
    settings.placement.over_link = true;
    settings.counts.device_units = 0;
    const LinkFirst first;
    EngineRig rig(failing_layout(), settings, 1, std::make_unique<MixedPolicy>(), [&](Device& device) {
      return std::make_unique<HookedDevice>(device, GetParam(),
                                            [fails = failing_copy(round % 3)](Stream& stream) mutable {
                                              ++LinkFirst::copies();
                                              return fails(stream);
                                            });
    });
    rig.load(synthetic_gradients(failing_layout(), 1, 0.125f));
    const int steps = run_to_error(rig);
    EXPECT_LE(steps, 2);
    EXPECT_THROW(rig.step(gradient_of(steps), 1e-2, steps + 1), Error);
    expect_failed(rig);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace so::test
