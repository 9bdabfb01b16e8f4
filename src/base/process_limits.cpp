#include "base/process_limits.h"

#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cstdint>
#include <new>
#include <optional>
#include <stdexcept>

#include "base/error.h"
#include "base/quantities.h"

namespace so {
namespace {

std::optional<std::uint64_t> limit_of(__rlimit_resource resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return limit.rlim_cur;
}

constexpr std::uint64_t least_stack = 256 << 10;  // 64 kB were seen to be enough

}  // namespace

std::string memory_limits_text() {
  std::string text;
  const auto append = [&](const char* name, std::optional<std::uint64_t> limit) {
    if (limit) text += fmt::format("{}{} is {}", text.empty() ? "" : ", ", name, format_bytes(*limit));
  };
  append("ulimit -v", limit_of(RLIMIT_AS));
  append("ulimit -d", limit_of(RLIMIT_DATA));
  return text;
}

void prepare_for_memory_limits() {
#ifdef M_ARENA_MAX
  if (limit_of(RLIMIT_AS)) ::mallopt(M_ARENA_MAX, 1);
#endif
}

void require_room(std::size_t bytes) {
  static const bool limited = limit_of(RLIMIT_AS) || limit_of(RLIMIT_DATA);
  if (!limited) return;
  // Writable, since a limit on data counts only that; never touched, so it takes no memory.
  void* room = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) throw std::bad_alloc();
  ::munmap(room, bytes);
}

void require_stack() {
  const auto limit = limit_of(RLIMIT_STACK);
  if (limit && *limit < least_stack)
    throw std::runtime_error(fmt::format("the stack may have only {} (ulimit -s); {} are needed", format_bytes(*limit),
                                         format_bytes(least_stack)));
}

}  // namespace so
