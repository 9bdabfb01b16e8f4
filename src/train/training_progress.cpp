#include "train/training_progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/progress.h"
#include "base/quantities.h"
#include "base/terminal.h"

namespace so {
namespace {

constexpr std::string_view separator = " | ";

// Ten redraws a second: an eye sees no more, and a slow connection is not flooded.
constexpr std::chrono::milliseconds between_redraws{100};

struct Field {
  int rank;  // the lower, the sooner it is given a place
  std::string text;
};

std::vector<Field> fields_of(const StepMetrics& m, std::int64_t total_steps, double seconds_left) {
  std::vector<Field> fields{
      {0, fmt::format("step {}/{}", m.step, total_steps)},
      {6, fmt::format("epoch {:.2f}", m.epoch)},
      {1, fmt::format("loss {:.4f}", m.loss)},
      {4, fmt::format("lr {:.3g}", m.lr)},
      {5, fmt::format("grad norm {:.3g}", m.grad_norm)},
      {3, fmt::format("{:.0f} tok/s", m.tokens_per_s)},
      {7, fmt::format("{:.3g} TFLOP/s", m.model_tflops)},
      {8, fmt::format("memory {}", format_bytes(m.host_memory_bytes + m.device_memory_bytes))},
      {2, fmt::format("ETA {}", format_duration(seconds_left))},
  };
  if (m.skipped) fields.push_back({1, "SKIPPED"});
  return fields;
}

}  // namespace

std::string training_progress_text(const StepMetrics& metrics, std::int64_t total_steps, double seconds_left,
                                   std::size_t columns) {
  const std::vector<Field> fields = fields_of(metrics, total_steps, seconds_left);
  std::vector<std::size_t> order(fields.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return fields[a].rank < fields[b].rank; });
  std::vector<bool> shown(fields.size());
  std::size_t used = 0;
  for (const std::size_t i : order) {
    const std::size_t wide = fields[i].text.size() + (used == 0 ? 0 : separator.size());
    if (columns > 0 && used > 0 && used + wide > columns) break;  // what ranks lower does not take its place
    shown[i] = true;
    used += wide;
  }
  std::string text;
  for (std::size_t i = 0; i < fields.size(); ++i)
    if (shown[i]) text.append(text.empty() ? "" : separator).append(fields[i].text);
  return text;
}

Progress::Progress(std::int64_t first_step, std::int64_t total_steps, std::int64_t interval)
    : done_at_start_(first_step), total_(total_steps), interval_(interval), start_(Clock::now()) {}

void Progress::step(const StepMetrics& m) {
  const auto now = Clock::now();
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  last_ = m;
  seconds_left_ = elapsed / static_cast<double>(m.step - done_at_start_) * static_cast<double>(total_ - m.step);
  logged_ = false;
  const bool due = m.step % interval_ == 0 || m.step == total_;
  if (due || now - drawn_ >= between_redraws) draw();
  if (due) log();
}

std::string Progress::text(std::size_t columns) const {
  return training_progress_text(last_, total_, seconds_left_, columns);
}

void Progress::draw() {
  if (!stderr_is_terminal()) return;
  set_progress_line(ProgressLine::run, text(stderr_columns() - 1));
  drawn_ = Clock::now();
}

void Progress::log() {
  log_progress(text(stderr_is_terminal() ? stderr_columns() - 1 : 0), text(0));
  logged_ = true;
}

void Progress::end() {
  if (stderr_is_terminal()) set_progress_line(ProgressLine::run, "");
  if (!logged_) log();
}

}  // namespace so
