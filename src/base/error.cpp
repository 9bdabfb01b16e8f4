#include "base/error.h"

#include <string_view>

namespace so {

void throw_bug(const char* condition, const std::string& message, const char* file, int line) {
  const std::string_view between = *condition == '\0' || message.empty() ? "" : ": ";
  throw Bug(fmt::format("internal error at {}:{}: {}{}{}", file, line, condition, between, message));
}

}  // namespace so
