#include "device/host_pages.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <fstream>

#include "base/error.h"
#include "base/quantities.h"

namespace so {
namespace {

constexpr std::size_t large = std::size_t{8} << 20;  // below this, huge pages would round up too much

std::size_t locked_bytes() {
  std::ifstream status("/proc/self/status");
  constexpr std::string_view key = "VmLck:";
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key)) return std::stoull(line.substr(key.size())) * 1024;
  return 0;
}

}  // namespace

void* map_host_pages(std::size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  if (bytes >= large) madvise(data, bytes, MADV_HUGEPAGE);  // advice: a refusal costs speed only
  return data;
}

void unmap_host_pages(void* data, std::size_t bytes) noexcept { munmap(data, bytes); }

std::optional<std::size_t> lockable_bytes() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  const std::size_t locked = locked_bytes();
  return limit.rlim_cur > locked ? limit.rlim_cur - locked : 0;
}

std::string lock_limit_advice(std::size_t bytes) {
  const auto left = lockable_bytes();
  if (!left || *left >= bytes) return {};
  const std::size_t locked = locked_bytes();
  return fmt::format(
      "this process may lock only {} of memory and holds {}: raise the limit with 'ulimit -l unlimited', or with "
      "memlock in /etc/security/limits.conf",
      format_bytes(*left + locked), format_bytes(locked));
}

}  // namespace so
