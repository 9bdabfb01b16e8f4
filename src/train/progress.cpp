#include "train/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include "base/log.h"
#include "base/units.h"

namespace so {

Progress::Progress(std::int64_t first_step, std::int64_t total_steps, std::int64_t interval)
    : done_at_start_(first_step), total_(total_steps), interval_(interval), start_(std::chrono::steady_clock::now()) {}

void Progress::step(const StepMetrics& m) {
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  if (!terminal && m.step % interval_ != 0 && m.step != total_) return;
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const double left = elapsed / static_cast<double>(m.step - done_at_start_) * static_cast<double>(total_ - m.step);
  set_progress_line(fmt::format(
      "step {}/{} | loss {:.4f} | grad norm {:.3g}{} | lr {:.3g} | {:.0f} tokens/s | {:.3g} TFLOP/s "
      "(reference {:.3g}) | memory {} | ETA {}",
      m.step, total_, m.loss, m.grad_norm, m.skipped ? " SKIPPED" : "", m.lr, m.tokens_per_s, m.model_tflops,
      m.reference_tflops, format_bytes(m.host_memory_bytes + m.device_memory_bytes), format_duration(left)));
}

void Progress::end() { set_progress_line(""); }

}  // namespace so
