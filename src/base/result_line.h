// What a command prints for people on standard output.
#pragma once

#include <fmt/core.h>

#include <string_view>
#include <utility>

namespace so {

// Writes text as it is; on a terminal wrapped to its width, and without control characters. What is lost on the way is
// told by flush_standard_output() (base/standard_streams.h).
void write_result(std::string_view text);

// The same for a line, unless messages of level `info` are not shown (base/log.h). The log's sink gets it as such a
// message.
void log_result(std::string_view line);

template <class... Args>
void print_text(fmt::format_string<Args...> f, Args&&... args) {
  write_result(fmt::format(f, std::forward<Args>(args)...));
}
template <class... Args>
void print_result(fmt::format_string<Args...> f, Args&&... args) {
  log_result(fmt::format(f, std::forward<Args>(args)...));
}

}  // namespace so
