// How far work may be enqueued ahead of a CPU stream.
#pragma once

#include <cstddef>

namespace so {

// Whoever enqueues more waits until half of it is done, so that a step of a million micro-batches does not fill the
// memory with work to come. Far more than a usual step: the limit keeps no pipeline short.
inline constexpr std::size_t cpu_queue_limit = std::size_t{1} << 16;

}  // namespace so
