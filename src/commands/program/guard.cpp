#include "commands/program/guard.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/process_limits.h"
#include "commands/command.h"

namespace so {

namespace {

// A text that comes from a file may be of any length. A message of several lines, such as a table of memory, stays
// whole.
std::string shortened(const std::string& text) {
  constexpr std::size_t longest = 5500, head = 4000, tail = 1000;  // a path as long as the kernel takes may be in it
  std::string all;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    const std::string line = text.substr(at, end - at);
    all += line.size() <= longest
               ? line
               : printable(line.substr(0, head), head) + " ... " + printable(line.substr(line.size() - tail), tail);
    at = end;
  }
  return all;
}

}  // namespace

int run_guarded(const std::function<int()>& body, std::string& message) {
  try {
    return body();
  } catch (const NoRoom& error) {
    message = "superoffload: " + shortened(error.what());
    return exit_failure;
  } catch (const Error& error) {
    message = "superoffload: " + shortened(error.what());
    return exit_user_error;
  } catch (const Bug& bug) {
    message = std::string("superoffload: internal error, please report it: ") + bug.what();
    return exit_internal_error;
  } catch (const std::bad_alloc&) {
    message = "superoffload: out of memory";
    if (const std::string limits = memory_limits_text(); !limits.empty()) message += fmt::format(" ({})", limits);
    return exit_failure;
  } catch (const std::length_error&) {
    message = "superoffload: out of memory: something is larger than an array can be";
    return exit_failure;
  } catch (const std::filesystem::filesystem_error& error) {
    message = fmt::format("superoffload: cannot use {}: {}",
                          error.path1().empty() ? "a file" : printable_path(error.path1()), error.code().message());
    return exit_user_error;
  } catch (const std::system_error& error) {
    message = fmt::format("superoffload: the system refused what the program needs: {}{}", error.code().message(),
                          error.code() == std::errc::resource_unavailable_try_again
                              ? " (threads; raise `ulimit -u` or `-v`, or give a smaller --cpu_threads)"
                              : "");
    return exit_failure;
  } catch (const std::runtime_error& error) {  // thrown on purpose: the system failed, and the text says how
    message = std::string("superoffload: ") + printable(error.what(), 4096);
    return exit_failure;
  } catch (const std::exception& error) {
    message = std::string("superoffload: internal error, please report it: ") + printable(error.what());
    return exit_internal_error;
  } catch (...) {
    message = "superoffload: internal error, please report it: an exception of an unknown kind";
    return exit_internal_error;
  }
}

}  // namespace so
