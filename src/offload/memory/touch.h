// The first touch of large host memory: by all threads, which is many times quicker than by the driver that pins it,
// and leaves each page where a thread works.
#pragma once

#include "base/thread_pool.h"
#include "device/device.h"

namespace so {

// Returns what writes zeros to a block (Device::allocate()). `pool` must outlive it.
Device::Touch zeros_by(ThreadPool& pool);

}  // namespace so
