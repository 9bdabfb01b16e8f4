#include "base/progress.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace so {
namespace {

int count(const std::string& text, const std::string& what) {
  int n = 0;
  for (auto at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++n;
  return n;
}

// In a file, as where a run's output is not a terminal.
TEST(Progress, PlainLinesComeOnceWhereThatIsAsked) {
  testing::internal::CaptureStderr();
  {
    ProgressReport once("saving", PlainLines::once), often("loading");
    for (int i = 0; i < 35; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
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
