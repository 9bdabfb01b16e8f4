#include "commands/program/terminate.h"

#include <execinfo.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>

#include "commands/command.h"

namespace so {
namespace {

// Allocates nothing: there may be no memory.
[[noreturn]] void end(const char* text, int code) {
  const auto write_text = [](const char* part) {
    const ssize_t written = ::write(STDERR_FILENO, part, std::strlen(part));
    static_cast<void>(written);  // nobody is left to tell
  };
  write_text("superoffload: ");
  write_text(text);
  write_text("\n");
  std::_Exit(code);
}

[[noreturn]] void on_terminate() {
  if (!std::current_exception()) end("internal error, please report it: it ended itself", exit_internal_error);
  try {
    throw;
  } catch (const std::bad_alloc&) {
    end("out of memory", exit_failure);
  } catch (const std::system_error& error) {
    end(error.what(), exit_failure);
  } catch (const std::exception& error) {
    end(error.what(), exit_internal_error);
  } catch (...) {
    end("internal error, please report it: an exception of an unknown kind", exit_internal_error);
  }
}

}  // namespace

void install_terminate_handler() {
  std::set_terminate(on_terminate);
  // The C library loads its unwinder at the first use and aborts if there is no memory for it: now there is.
  void* frame = nullptr;
  static_cast<void>(::backtrace(&frame, 1));
}

}  // namespace so
