// What the machine can do at most, measured in the process whose figures are set beside it.
#pragma once

#include <cstdint>
#include <functional>

#include "device/device.h"
#include "ops/ops.h"

namespace so {

// Seconds that one call's work takes on the stream: the median of `rounds` rounds, each of so many calls between two
// synchronisations that it lasts `round_seconds` or more. `enqueue` is given the number of the call, for going round
// several buffers. The first calls, which choose algorithms and warm up, do not count.
double seconds_per_call(Stream& stream, const std::function<void(std::int64_t)>& enqueue, double round_seconds = 0.02,
                        int rounds = 5);

// FLOP/s of a large square product of random matrices through Ops::linear: side 8192 on a GPU, 1024 on the CPU.
// Random, since a chip's clock, and with it its rate, depends on the data. Takes and gives back 3 such matrices.
double measure_gemm_rate(Device& device, Ops& ops, Stream& stream, DType dtype);

// Bytes/s of a large copy within device memory, read and written both counted.
double measure_copy_bandwidth(Device& device, Stream& stream);

}  // namespace so
