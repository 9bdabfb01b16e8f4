// When the host updates what it owns, and the slots that limit it.
#pragma once

#include <cstdint>

namespace so {

// Units whose gradients are moved to the host take turns in so many slots of device memory.
inline constexpr int gradient_slots = 2;

enum class Schedule : std::uint8_t {
  synchronous,  // finish_step() returns when all updates are done; the device waits meanwhile
  overlapped,
};

}  // namespace so
