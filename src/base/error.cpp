#include "base/error.h"

namespace so {

void throw_bug(const char* condition, const std::string& message, const char* file, int line) {
  throw Bug(
      fmt::format("internal error at {}:{}: {}{}{}", file, line, condition, message.empty() ? "" : ": ", message));
}

}  // namespace so
