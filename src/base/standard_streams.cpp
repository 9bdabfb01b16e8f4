#include "base/standard_streams.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdio_ext.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <stdexcept>
#include <system_error>

namespace so {

void prepare_standard_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is this one, since those below it are open. Reading from standard input and writing to the
    // others fails, as it does with a closed descriptor.
    const int wrong_way = descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    if (::open("/dev/null", wrong_way) < 0) return;  // without /dev/null nothing better can be done
  }
  ::signal(SIGPIPE, SIG_IGN);
}

namespace {

int first_error = 0;  // with which standard output could not be written

}  // namespace

void write_standard_output(std::string_view text) {
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written && first_error == 0) first_error = errno;
}

void excuse_standard_output() {
  if (std::fflush(stdout) != 0) ::__fpurge(stdout);
  std::clearerr(stdout);
  first_error = 0;
}

void flush_standard_output(int known_error) {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return;
  const int error = first_error != 0 ? first_error : known_error != 0 ? known_error : flushed ? 0 : errno;
  if (error == EPIPE) throw ReaderGone();
  throw std::runtime_error(fmt::format("cannot write the result to standard output{}{}", error != 0 ? ": " : "",
                                       error != 0 ? std::generic_category().message(error) : std::string()));
}

}  // namespace so
