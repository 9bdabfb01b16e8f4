#include "offload/memory/touch.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace so {

Device::Touch zeros_by(ThreadPool& pool) {
  return [&pool](void* data, std::size_t bytes) {
    const auto size = static_cast<std::int64_t>(bytes);
    const std::int64_t grain = std::max<std::int64_t>(1 << 18, size / (8 * pool.size()));
    pool.parallel_for(size, grain, [&](std::int64_t begin, std::int64_t end) {
      std::memset(static_cast<std::byte*>(data) + begin, 0, static_cast<std::size_t>(end - begin));
    });
  };
}

}  // namespace so
