// Logging to standard error. Standard output belongs to a command's result (text, --json).
#pragma once

#include <fmt/core.h>

#include <string_view>
#include <utility>

namespace so {

enum class LogLevel { debug, info, warning, error };

void set_log_level(LogLevel level);
void log_message(LogLevel level, std::string_view text);

// The progress line: on a terminal it is rewritten in place and log messages appear above it; elsewhere each call
// prints a line. An empty text clears it.
void set_progress_line(std::string_view text);

template <class... Args>
void log_debug(fmt::format_string<Args...> f, Args&&... args) {
  log_message(LogLevel::debug, fmt::format(f, std::forward<Args>(args)...));
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
