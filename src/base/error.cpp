#include "base/error.h"

namespace so {

void throw_bug(const char* condition, const std::string& message, std::source_location where) {
  throw Bug(fmt::format("internal error at {}:{}: {}{}{}", where.file_name(), where.line(), condition,
                        message.empty() ? "" : ": ", message));
}

}  // namespace so
