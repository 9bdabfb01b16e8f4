// The one piece of thread state that results in this room could depend on.
#pragma once

#include <cfloat>

#include "base/error.h"

namespace so {

// Throws Bug if the calling thread flushes subnormal fp32 numbers to zero. Threads inherit that mode, and a shared
// library built with -ffast-math may switch it on when it is loaded.
inline void check_float_mode() {
  volatile float smallest_normal = FLT_MIN;
  volatile float half = smallest_normal * 0.5f;
  SO_CHECK(half != 0.0f, "this thread flushes subnormal numbers to zero, which would change the optimizer's bits");
}

}  // namespace so
