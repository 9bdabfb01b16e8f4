#include "device/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"

namespace so {
namespace {

class TraceTest : public ::testing::Test {
 protected:
  ThreadPool pool{"test", {0, 1}, false};
  std::unique_ptr<Device> device = make_cpu_device(pool);
};

std::vector<TraceActivity> on(const Trace& trace, const std::string& track) {
  std::vector<TraceActivity> found;
  for (const TraceActivity& activity : trace.activities)
    if (trace.tracks[static_cast<std::size_t>(activity.track)].name == track) found.push_back(activity);
  return found;
}

std::vector<std::string> names(const std::vector<TraceActivity>& activities) {
  std::vector<std::string> all;
  for (const TraceActivity& activity : activities) all.push_back(activity.name);
  return all;
}

TEST_F(TraceTest, RecordsTheWorkOfStreamsInOrderUnderTheirNames) {
  auto compute = device->create_stream("compute"), copies = device->create_stream("copies");
  auto event = device->create_event();
  std::vector<char> from(1000, 'x'), to(1000);
  compute->host("before", [] {});
  compute->synchronize();
  TraceSession session(*device);
  compute->host("first", [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
  compute->record(*event);
  copies->wait(*event);
  copies->copy(to.data(), from.data(), from.size());
  copies->zero(from.data(), 10);
  compute->host("second", [] {});
  copies->synchronize();
  compute->synchronize();
  const Trace trace = session.stop();
  compute->host("after", [] {});
  compute->synchronize();

  const auto work = on(trace, "compute"), moved = on(trace, "copies");
  EXPECT_EQ(names(work), (std::vector<std::string>{"first", "second"}));
  EXPECT_EQ(names(moved), (std::vector<std::string>{"wait", "copy", "zero"}));
  EXPECT_EQ(work[0].kind, TraceKind::host);
  EXPECT_EQ(moved[0].kind, TraceKind::wait);
  EXPECT_EQ(moved[1].kind, TraceKind::copy);
  EXPECT_EQ(moved[1].bytes, 1000u);
  EXPECT_EQ(moved[1].direction, CopyDirection::host_to_host);
  EXPECT_EQ(moved[2].kind, TraceKind::fill);
  EXPECT_EQ(moved[2].bytes, 10u);
  EXPECT_GE(moved[0].end, work[0].end) << "the other stream waited for it";
  for (const auto& activities : {work, moved}) {
    for (std::size_t i = 0; i < activities.size(); ++i) {
      EXPECT_LE(activities[i].begin, activities[i].end);
      EXPECT_GE(activities[i].begin, i == 0 ? 0 : activities[i - 1].end) << "a stream does one thing at a time";
      EXPECT_LE(activities[i].end, trace.duration);
    }
  }
  // This thread waited for both streams.
  const auto mine = on(trace, "main");
  EXPECT_EQ(std::count_if(mine.begin(), mine.end(), [](const auto& a) { return a.kind == TraceKind::wait; }), 2);
}

TEST_F(TraceTest, SpansOfSeveralThreadsGoToTracksOfTheirOwn) {
  constexpr int threads = 4, spans = 100;
  TraceSession session(*device);
  {
    std::vector<std::jthread> running;
    for (int t = 0; t < threads; ++t)
      running.emplace_back([] {
        for (int i = 0; i < spans; ++i) {
          const TraceSpan outer("outer");
          const TraceSpan inner("inner");
        }
      });
  }
  const Trace trace = session.stop();
  EXPECT_EQ(trace.activities.size(), static_cast<std::size_t>(2 * threads * spans));
  std::map<int, int> by_track;
  for (const TraceActivity& activity : trace.activities) ++by_track[activity.track];
  EXPECT_EQ(by_track.size(), static_cast<std::size_t>(threads));
  for (const auto& [track, count] : by_track) {
    EXPECT_EQ(count, 2 * spans);
    EXPECT_FALSE(trace.tracks[static_cast<std::size_t>(track)].stream);
  }
  EXPECT_TRUE(std::is_sorted(trace.activities.begin(), trace.activities.end(),
                             [](const auto& a, const auto& b) { return a.begin < b.begin; }));
}

// Work that began before a session is not in it; sessions may follow one another while threads record.
TEST_F(TraceTest, SessionsComeAndGoWhileThreadsRecord) {
  std::atomic<bool> stop{false};
  std::vector<std::jthread> running;
  for (int t = 0; t < 2; ++t)
    running.emplace_back([&] {
      while (!stop) const TraceSpan span("span");
    });
  for (int i = 0; i < 20; ++i) {
    TraceSession session(*device);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const Trace trace = session.stop();
    for (const TraceActivity& activity : trace.activities) {
      ASSERT_GE(activity.begin, 0);
      ASSERT_LE(activity.end, trace.duration);
    }
  }
  stop = true;
}

TEST_F(TraceTest, OneSessionAtATime) {
  {
    TraceSession session(*device);
    EXPECT_TRUE(tracing());
    EXPECT_THROW(TraceSession second(*device), Bug);
  }
  EXPECT_FALSE(tracing());
  TraceSession again(*device);
  EXPECT_TRUE(again.stop().remarks.empty());
  EXPECT_THROW(again.stop(), Bug);
}

}  // namespace
}  // namespace so
