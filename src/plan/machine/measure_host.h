// Measures the bandwidth that AdamW gets of the host's memory, alone and beside the link's copies.
#pragma once

#include <cstddef>
#include <functional>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "device/device.h"
#include "optim/adamw_tuning.h"

namespace so {

// Bytes/s, measured in the engine's own way: bucket after bucket, every other one updated in place and the rest beside
// the state they read. The memory is large, so that neither caches nor the places of its pages decide: parts of 1.5 GB
// of a virtual machine's memory that had been in use before differed by 40%.
struct HostRates {
  double adamw = 0;       // gradients and weights in bf16
  double adamw_wide = 0;  // in fp32
  double memory = 0;      // what AdamW and copies both ways move together; on the CPU device what AdamW moves
  AdamWTuning tuning;     // with which the others were measured, and which is in use from then on
};

// The tuning that is quickest: candidates differ in how far ahead they fetch, and, with the best of these, in their
// tiles. `seconds` measures one update with a tuning. Others on the machine make updates slower by chance, so a
// candidate is taken only if it is 3% quicker than the best so far in the sum of several updates that take turns with
// that one's, and again in as many more.
AdamWTuning find_tuning(const std::function<double(const AdamWTuning&)>& seconds);

// Takes about `most_bytes` of pageable memory or, where that is less, what 64 million elements a thread need, from 4 to
// 16 threads; on the CPU device 256 thousand elements in all. Beside it a tenth as much pinned memory, from 0.5 to 2
// GiB, and 0.5 GiB of the device's. Gives all back. A second or two beside a GPU, most of them for the first touch of
// that memory. `link_to_host`, `link_to_device`: bytes/s of those copies when they are alone.
HostRates measure_host(Device& device, ThreadPool& pool, DType moments, std::size_t most_bytes, double link_to_host,
                       double link_to_device);

}  // namespace so
