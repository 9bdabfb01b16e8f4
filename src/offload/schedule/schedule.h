// When the host updates what it owns, and where its numbers are cast.
#pragma once

#include <cstdint>

namespace so {

enum class Schedule : std::uint8_t {
  synchronous,  // finish_step() returns when all updates are done; the device waits meanwhile
  overlapped,
};

// Where bf16 and fp32 are changed into each other between a device that computes in bf16 and AdamW, which computes in
// fp32: inside the host's AdamW loop, so that bf16 travels; or on the device, so that fp32 does. The bits are the same.
enum class CastSide : std::uint8_t { host, device };

}  // namespace so
