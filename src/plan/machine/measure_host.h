// Measures the bandwidth that AdamW gets of the host's memory, alone and beside the link's copies.
#pragma once

#include <cstddef>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "device/device.h"

namespace so {

// Bytes/s, in the engine's own way: bucket after bucket, each other one updated in place and the rest beside what they
// read, over so much memory that neither a cache holds a part that matters nor where its pages happen to lie decides:
// between parts of 1.5 GB, of a virtual machine's memory that had been in use before, 40% were seen.
struct HostRates {
  double adamw = 0;       // gradients and weights in bf16
  double adamw_wide = 0;  // in fp32
  double memory = 0;      // what AdamW and copies both ways move together; on the CPU device what AdamW moves
};

// Takes about `most_bytes` of pageable memory or, where that is less, what 64 million elements a thread need, from 4 to
// 16 threads; on the CPU device 256 thousand elements in all. Gives it back. A second or two beside a GPU, most of them
// for the first touch of that memory. `link_to_host`, `link_to_device`: bytes/s of those copies when they are alone.
HostRates measure_host(Device& device, ThreadPool& pool, DType moments, std::size_t most_bytes, double link_to_host,
                       double link_to_device);

}  // namespace so
