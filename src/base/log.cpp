#include "base/log.h"

#include <unistd.h>

#include <cstdio>
#include <mutex>
#include <string>

namespace so {
namespace {

struct Console {
  std::mutex mutex;
  LogLevel level = LogLevel::info;
  std::string progress;
  const bool terminal = ::isatty(STDERR_FILENO) == 1;

  void write(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stderr); }
};

Console& console() {
  static Console instance;
  return instance;
}

constexpr const char* clear_line = "\r\x1b[K";

}  // namespace

void set_log_level(LogLevel level) {
  std::lock_guard lock(console().mutex);
  console().level = level;
}

void log_message(LogLevel level, std::string_view text) {
  Console& c = console();
  std::lock_guard lock(c.mutex);
  if (level < c.level) return;
  std::string line;
  if (c.terminal && !c.progress.empty()) line += clear_line;
  if (level == LogLevel::warning) line += "warning: ";
  if (level == LogLevel::error) line += "error: ";
  line += text;
  line += '\n';
  if (c.terminal) line += c.progress;
  c.write(line);
}

void set_progress_line(std::string_view text) {
  Console& c = console();
  std::lock_guard lock(c.mutex);
  if (c.terminal) {
    c.write(clear_line + std::string(text));
    c.progress = text;
  } else if (!text.empty()) {
    c.write(std::string(text) + "\n");
  }
}

}  // namespace so
