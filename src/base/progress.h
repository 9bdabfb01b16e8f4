// A progress line for work that may take long.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

namespace so {

// How often a progress line is written where it cannot be redrawn, because standard error is no terminal.
enum class PlainLines { as_time_passes, once };

// Silent for the first 2 seconds, then "TITLE: 43%, DETAIL, 12 s left", at first every second, later every tenth of the
// time spent so far (at most every 10 s). The destructor clears the line. One thread.
class ProgressReport {
 public:
  using Clock = std::chrono::steady_clock;
  // `now` tells the time; tests have one of their own.
  explicit ProgressReport(std::string title, PlainLines plain = PlainLines::as_time_passes,
                          Clock::time_point (*now)() = Clock::now);
  ~ProgressReport();
  ProgressReport(const ProgressReport&) = delete;
  ProgressReport& operator=(const ProgressReport&) = delete;

  // fraction: of the work done, in [0, 1].
  void update(double fraction, std::string_view detail);

 private:
  std::string title_;
  PlainLines plain_;
  Clock::time_point (*now_)();
  Clock::time_point start_, next_;
  bool shown_ = false;
};

// The text of the line, given the seconds spent so far. In more than `columns` the title, which may be a path, loses
// its beginning, then the detail goes. 0: any width.
std::string progress_text(std::string_view title, double fraction, std::string_view detail, double seconds,
                          std::size_t columns = 0);

// A line of progress that stays, such as a step's every so often: on a terminal above the progress line, elsewhere with
// the time before it. A sink (base/log.h) gets `recorded`, which needs no terminal's width, and gets it with --quiet
// too.
void log_progress(std::string_view shown, std::string_view recorded);

}  // namespace so
