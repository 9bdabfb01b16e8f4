// Logging to standard error. Standard output belongs to a command's result (text, --json).
#pragma once

#include <fmt/core.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace so {

// detail: settings, tables and reasons, for --verbose and a run's log file. failure: the one line with which a command
// that fails ends; it has its own prefix.
enum class LogLevel { debug, detail, info, warning, error, failure };

// Messages below the level are not shown, and below `warning` neither is progress. The default is info.
void set_log_level(LogLevel level);

// On a terminal a message is wrapped to its width. A standard error that cannot be written to, such as a pipe whose
// reader has gone, is no failure: the program goes on without it.
void log_message(LogLevel level, std::string_view text);

// A second place for messages, a file say: it gets those of `detail` and above, shown or not. What it returns is
// shown as a warning, if it is not empty. It is called by one thread at a time and must not log. Empty: none.
using LogSink = std::function<std::string(LogLevel level, std::string_view text)>;
void set_log_sink(LogSink sink);

// Progress, in one of two lines. On a terminal the line is rewritten in place, cut to the terminal's width, and
// messages appear above it; elsewhere each call prints a line with the time before it.
enum class ProgressLine {
  run,   // of the whole run; shown while there is none of a task
  task,  // of something that the run waits for
};
void set_progress_line(ProgressLine line, std::string_view text);  // an empty text clears it
void keep_progress_line();  // the line of the run stays on the terminal as it is; the next message comes below it

// "2026-11-22 19:41:23", local time.
std::string time_stamp();

template <class... Args>
void log_debug(fmt::format_string<Args...> f, Args&&... args) {
  log_message(LogLevel::debug, fmt::format(f, std::forward<Args>(args)...));
}
template <class... Args>
void log_detail(fmt::format_string<Args...> f, Args&&... args) {
  log_message(LogLevel::detail, fmt::format(f, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> f, Args&&... args) {
  log_message(LogLevel::info, fmt::format(f, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> f, Args&&... args) {
  log_message(LogLevel::warning, fmt::format(f, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> f, Args&&... args) {
  log_message(LogLevel::error, fmt::format(f, std::forward<Args>(args)...));
}

}  // namespace so
