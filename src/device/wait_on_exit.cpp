#include "device/wait_on_exit.h"

#include <exception>
#include <new>

namespace so {

void wait_or_log(Stream& stream, LogLevel level) noexcept {
  try {
    stream.synchronize();
  } catch (const std::bad_alloc&) {
    log_message(level, fmt::format("{}: out of memory", stream.name()));
  } catch (const std::exception& error) {
    log_message(level, fmt::format("{}: {}", stream.name(), error.what()));
  }
}

}  // namespace so
