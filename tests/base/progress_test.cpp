#include "base/progress.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace so {
namespace {

int count(const std::string& text, const std::string& what) {
  int n = 0;
  for (auto at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++n;
  return n;
}

ProgressReport::Clock::time_point the_time;  // it passes as a test wants it to
ProgressReport::Clock::time_point test_clock() { return the_time; }

// In a file, as where a run's output is not a terminal.
TEST(Progress, PlainLinesComeOnceWhereThatIsAsked) {
  testing::internal::CaptureStderr();
  {
    ProgressReport once("saving", PlainLines::once, test_clock);
    ProgressReport often("loading", PlainLines::as_time_passes, test_clock);
    for (int i = 0; i < 35; ++i) {
      the_time += std::chrono::milliseconds(100);
      once.update(1, "3 MB");
      often.update(0.5, "3 MB");
    }
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(count(text, "saving: 100%, 3 MB"), 1) << text;
  EXPECT_EQ(count(text, "loading: 50%, 3 MB"), 2) << text;
}

}  // namespace
}  // namespace so
