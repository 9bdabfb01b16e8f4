// A simulated step as people see it.
#include "plan/simulate/timeline.h"

#include <gtest/gtest.h>

#include <string>

#include "support/errors.h"

namespace so::test {
namespace {

// Ten seconds: forward, a wait, backward; a gradient, its update, its weights; and streamed weights.
SimulatedTimeline ten_seconds() {
  using enum SimulatedLane;
  using enum SimulatedWork;
  SimulatedTimeline t;
  t.seconds = 10;
  t.spans = {
      {.lane = to_device, .work = stream, .unit = 1, .begin = 0, .end = 2.5, .bytes = 5e9},
      {.lane = device, .work = forward, .unit = 0, .begin = 0, .end = 2},
      {.lane = device, .work = wait, .reason = WaitReason::stream, .unit = 1, .begin = 2, .end = 3},
      {.lane = device, .work = forward, .unit = 1, .begin = 3, .end = 4.6},
      {.lane = device, .work = backward, .unit = 1, .begin = 4.6, .end = 10},
      {.lane = to_host, .work = fetch, .unit = 1, .begin = 6, .end = 7, .bytes = 2e9},
      {.lane = host, .work = host_task, .task = HostTask::speculate, .unit = 1, .begin = 7, .end = 8.1},
      {.lane = to_device, .work = send, .unit = 1, .begin = 8.1, .end = 9.05, .bytes = 2e9},
  };
  return t;
}

TEST(Timeline, IsSketched) {
  EXPECT_EQ(sketch(ten_seconds(), 10),
            "GPU |ffSffbbbbb|v\n"
            "D2H |      g   |\n"
            "CPU |       a  |\n"
            "H2D |sss     w |\n"
            "  one step of 10.000 s, from gradient norm (v) to gradient norm, 1e+03 ms per character\n"
            "  GPU: S waits for streamed or gathered weights, b backward, f forward\n"
            "  D2H: g gradients\n"
            "  CPU: a AdamW before the gradient norm is known\n"
            "  H2D: s streamed weights, w weights\n");
}

TEST(Timeline, IsAboutAHundredColumnsWide) {
  const std::string text = sketch(ten_seconds());
  EXPECT_EQ(text.find('\n'), 5 + 100 + 2u);
}

TEST(Timeline, HasTheLanesOfARealTrace) {
  const Trace trace = to_trace(ten_seconds());
  ASSERT_EQ(trace.tracks.size(), 5u);
  const char* names[] = {"compute", "to host", "optimizer", "to device", "weights"};
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(trace.tracks[i].name, names[i]);
    EXPECT_EQ(trace.tracks[i].stream, i != 2);
  }
  EXPECT_EQ(trace.duration, 10'000'000'000);
  ASSERT_EQ(trace.activities.size(), 8u);
  for (std::size_t i = 1; i < 8; ++i) EXPECT_LE(trace.activities[i - 1].begin, trace.activities[i].begin);
  const TraceActivity& fetched = trace.activities[5];
  EXPECT_EQ(fetched.name, "gradient 1");
  EXPECT_EQ(fetched.kind, TraceKind::copy);
  EXPECT_EQ(fetched.direction, CopyDirection::device_to_host);
  EXPECT_EQ(fetched.bytes, 2'000'000'000u);
  EXPECT_EQ(fetched.begin, 6'000'000'000);
  EXPECT_EQ(trace.activities[6].name, "speculate 1");
  EXPECT_EQ(trace.activities[6].kind, TraceKind::host);
  EXPECT_EQ(trace.activities[2].kind, TraceKind::wait);
  expect_in(trace.remarks.at(0), {"simulated"});
  SimulatedTimeline without = ten_seconds();
  without.spans.erase(without.spans.begin());
  EXPECT_EQ(to_trace(without).tracks.size(), 4u);
}

}  // namespace
}  // namespace so::test
