#include "base/progress.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "base/terminal.h"

namespace so {
namespace {

constexpr std::chrono::seconds kQuiet{2};

}  // namespace

std::string progress_text(std::string_view title, double fraction, std::string_view detail, double seconds,
                          std::size_t columns) {
  fraction = std::clamp(fraction, 0.0, 1.0);
  std::string left;
  if (fraction > 0) {
    const double remaining = std::ceil(seconds * (1 - fraction) / fraction);
    left =
        remaining < 120 ? fmt::format(", {:.0f} s left", remaining) : fmt::format(", {:.0f} min left", remaining / 60);
  }
  const std::string percent = fmt::format(": {:.0f}%", std::floor(100 * fraction));
  const std::string rest = fmt::format("{}, {}{}", percent, detail, left);
  if (columns == 0 || columns_of(title) + columns_of(rest) <= columns) return std::string(title) + rest;
  constexpr std::size_t least_title = 16;
  const std::string end = columns_of(rest) + least_title <= columns ? rest : percent + left;
  const std::size_t room = std::max(columns, columns_of(end) + 3) - columns_of(end);
  if (columns_of(title) <= room) return std::string(title) + end;
  return fmt::format("...{}{}", tail_of(title, room - 3), end);
}

ProgressReport::ProgressReport(std::string title, PlainLines plain, Clock::time_point (*now)())
    : title_(std::move(title)), plain_(plain), now_(now), start_(now()), next_(start_ + kQuiet) {}

ProgressReport::~ProgressReport() {
  if (!shown_) return;
  try {
    set_progress_line(ProgressLine::task, "");
  } catch (...) {  // a line left on the terminal is no reason to end the program
  }
}

void ProgressReport::update(double fraction, std::string_view detail) {
  const auto now = now_();
  if (now < next_) return;
  const std::chrono::duration<double> spent = now - start_;
  const bool terminal = stderr_is_terminal();
  if (shown_ && !terminal && plain_ == PlainLines::once) return;
  const std::size_t columns = terminal ? stderr_columns() - 1 : 0;
  set_progress_line(ProgressLine::task, progress_text(title_, fraction, detail, spent.count(), columns));
  shown_ = true;
  next_ = now + std::chrono::duration_cast<Clock::duration>(
                    std::chrono::duration<double>(std::clamp(spent.count() / 10, 1.0, 10.0)));
}

}  // namespace so
