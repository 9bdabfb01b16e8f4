// Errors: what the user can mend (Error, exit code 2) and what only we can (Bug, exit code 70).
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace so {

// Something the user can fix: a file, a key, an option, the machine. The message is one line that names the cause and,
// where there is one, the fix. The command line prints it and exits with 2.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// There is no room for what is written: a disk is full, or a quota or a limit on the size of a file is met. The command
// line exits with 1.
class NoRoom : public Error {
 public:
  using Error::Error;
};

// A broken invariant of the program itself: a call in the wrong state, a shape that cannot be.
class Bug : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void throw_bug(const char* condition, const std::string& message, const char* file, int line);

}  // namespace so

// SO_CHECK(condition, "format", args...): throws Bug with the condition, file and line.
#define SO_CHECK(condition, ...)                                                      \
  do {                                                                                \
    if (!(condition)) [[unlikely]]                                                    \
      ::so::throw_bug(#condition, ::fmt::format("" __VA_ARGS__), __FILE__, __LINE__); \
  } while (false)

// SO_BUG("format", args...): throws Bug with file and line, where the program cannot come.
#define SO_BUG(...) ::so::throw_bug("", ::fmt::format(__VA_ARGS__), __FILE__, __LINE__)
