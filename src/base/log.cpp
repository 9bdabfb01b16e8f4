#include "base/log.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <mutex>
#include <string>

#include "base/progress.h"
#include "base/result_line.h"
#include "base/standard_streams.h"
#include "base/terminal.h"

namespace so {
namespace {

constexpr const char* clear_line = "\r\x1b[K";

// Standard error, in whole writes. What cannot be written is dropped: nobody is there to read it.
void write_out(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    if (n > 0) {
      text.remove_prefix(static_cast<std::size_t>(n));
    } else if (n < 0 && errno == EAGAIN) {  // another program has made it non-blocking
      pollfd ready{STDERR_FILENO, POLLOUT, 0};
      if (::poll(&ready, 1, 1000) <= 0) return;
    } else if (n == 0 || errno != EINTR) {
      return;
    }
  }
}

std::string_view prefix_of(LogLevel level) {
  return level == LogLevel::warning ? "warning: " : level == LogLevel::error ? "error: " : "";
}

struct Console {
  std::mutex mutex;
  LogLevel level = LogLevel::info;
  std::string progress[2];  // by ProgressLine
  LogSink sink;
  const bool terminal = stderr_is_terminal();

  // One column stays free: a character in the last one would make some terminals go to the next line.
  std::string shown() const {
    const std::string& task = progress[1];
    return std::string(head_of(task.empty() ? progress[0] : task, stderr_columns() - 1));
  }

  void show(LogLevel message_level, std::string_view text) {
    if (message_level < level) return;
    std::string line = std::string(prefix_of(message_level)).append(text);
    if (!terminal) {
      write_out(line + '\n');
      return;
    }
    const std::string progress_line = shown();
    line = wrapped(line, stderr_columns()) + '\n';
    write_out((progress_line.empty() ? "" : clear_line) + line + progress_line);
  }

  void show_result(std::string_view text) {
    if (level > LogLevel::info) return;
    const std::string progress_line = terminal ? shown() : "";
    if (!progress_line.empty()) write_out(clear_line);
    write_result(std::string(text) + '\n');
    if (!progress_line.empty()) write_out(progress_line);
  }

  void record(LogLevel message_level, std::string_view text) {
    if (!sink || message_level < LogLevel::detail) return;
    const std::string complaint = sink(message_level, std::string(prefix_of(message_level)).append(text));
    if (!complaint.empty()) show(LogLevel::warning, printable_text(complaint));
  }
};

Console& console() {
  static Console instance;
  return instance;
}

}  // namespace

void set_log_level(LogLevel level) {
  std::lock_guard lock(console().mutex);
  console().level = level;
}

void set_log_sink(LogSink sink) {
  std::lock_guard lock(console().mutex);
  console().sink = std::move(sink);
}

void log_message(LogLevel level, std::string_view text) {
  // What is written to a file or a pipe is shown on a terminal later.
  const std::string shown = printable_text(text);
  Console& c = console();
  std::lock_guard lock(c.mutex);
  c.show(level, shown);
  c.record(level, shown);
}

void log_progress(std::string_view shown, std::string_view recorded) {
  const std::string line = printable_text(shown);
  Console& c = console();
  std::lock_guard lock(c.mutex);
  c.show(LogLevel::info, c.terminal ? line : time_stamp().append(" ").append(line));
  c.record(LogLevel::info, printable_text(recorded));
}

void write_result(std::string_view text) {
  static const bool terminal = stdout_is_terminal();
  write_standard_output(terminal ? wrapped(printable_text(text), stdout_columns()) : std::string(text));
}

void log_result(std::string_view text) {
  Console& c = console();
  std::lock_guard lock(c.mutex);
  c.show_result(text);
  c.record(LogLevel::info, printable_text(text));
}

void set_progress_line(ProgressLine line, std::string_view given) {
  std::string text = printable_text(given);
  std::replace(text.begin(), text.end(), '\t', ' ');  // a tab's width is not known
  Console& c = console();
  std::lock_guard lock(c.mutex);
  if (c.level > LogLevel::info) return;
  if (c.terminal) {
    const std::string before = c.shown();
    c.progress[static_cast<int>(line)] = text;
    const std::string now = c.shown();
    if (!before.empty() || !now.empty()) write_out(clear_line + now);
  } else if (!text.empty()) {
    write_out(time_stamp().append(" ").append(text).append("\n"));
  }
}

void keep_progress_line() {
  Console& c = console();
  std::lock_guard lock(c.mutex);
  if (!c.progress[0].empty() && c.progress[1].empty()) write_out("\n");
  c.progress[0].clear();
}

std::string time_stamp() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  char text[32] = "";
  if (::localtime_r(&now, &local) != nullptr) std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  return text;
}

}  // namespace so
