#include "base/progress.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/log.h"

namespace so {
namespace {

constexpr std::chrono::seconds kQuiet{2};

}  // namespace

std::string progress_text(std::string_view title, double fraction, std::string_view detail, double seconds) {
  fraction = std::clamp(fraction, 0.0, 1.0);
  std::string left;
  if (fraction > 0) {
    const double remaining = std::ceil(seconds * (1 - fraction) / fraction);
    left =
        remaining < 120 ? fmt::format(", {:.0f} s left", remaining) : fmt::format(", {:.0f} min left", remaining / 60);
  }
  return fmt::format("{}: {:.0f}%, {}{}", title, std::floor(100 * fraction), detail, left);
}

ProgressReport::ProgressReport(std::string title)
    : title_(std::move(title)), start_(Clock::now()), next_(start_ + kQuiet) {}

ProgressReport::~ProgressReport() {
  if (!shown_) return;
  try {
    set_progress_line("");
  } catch (...) {  // a line left on the terminal is no reason to end the program
  }
}

void ProgressReport::update(double fraction, std::string_view detail) {
  const auto now = Clock::now();
  if (now < next_) return;
  const std::chrono::duration<double> spent = now - start_;
  set_progress_line(progress_text(title_, fraction, detail, spent.count()));
  shown_ = true;
  next_ = now + std::chrono::duration_cast<Clock::duration>(
                    std::chrono::duration<double>(std::clamp(spent.count() / 10, 1.0, 10.0)));
}

}  // namespace so
