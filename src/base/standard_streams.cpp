#include "base/standard_streams.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
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

void flush_standard_output(int known_error) {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return;
  const int error = known_error != 0 ? known_error : flushed ? 0 : errno;
  throw std::runtime_error(fmt::format("cannot write the result to standard output{}{}", error != 0 ? ": " : "",
                                       error != 0 ? std::generic_category().message(error) : std::string()));
}

}  // namespace so
