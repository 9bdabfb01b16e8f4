#include "base/standard_input.h"

#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/quantities.h"

namespace so {

std::string read_standard_input(std::uint64_t max_bytes) {
  std::string text;
  std::vector<char> piece(1 << 16);
  for (;;) {
    const ssize_t n = ::read(STDIN_FILENO, piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot read standard input: {}", std::generic_category().message(errno));
    if (n == 0) return text;
    text.append(piece.data(), static_cast<std::size_t>(n));
    if (text.size() > max_bytes)
      fail("standard input has more than the {} that are taken from it; give a file", format_bytes(max_bytes));
  }
}

}  // namespace so
