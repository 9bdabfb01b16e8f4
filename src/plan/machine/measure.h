// Measures the machine's limits, in the same process as the figures that are compared with them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/number_formats.h"
#include "base/thread_pool.h"
#include "device/device.h"
#include "ops/ops.h"
#include "plan/machine/rates.h"

namespace so {

// The middle one, of an even number the larger of the two. At least one.
double median(std::vector<double> values);

// Seconds that one call's work takes on the stream: the median of `rounds` rounds. A round makes enough calls between
// two synchronisations to last `round_seconds`. `enqueue` is given the number of the call, for going round several
// buffers. The first calls, which choose algorithms and warm up, do not count.
double seconds_per_call(Stream& stream, const std::function<void(std::int64_t)>& enqueue, double round_seconds = 0.02,
                        int rounds = 5);

// FLOP/s of a large square product of random matrices through Ops::linear: side 8192 on a GPU, 1024 on the CPU.
// Random, since a chip's clock, and with it its rate, depends on the data. Takes and gives back 3 such matrices.
// `quick`: in about a tenth of the time, before a chip has come to the clock that it can keep.
double measure_gemm_rate(Device& device, Ops& ops, Stream& stream, DType dtype, bool quick = false);

// The same of a product in FP8 (Ops::fp8_product), where the device has them. Takes 2.5 such matrices.
double measure_fp8_rate(Device& device, Ops& ops, Stream& stream);

// Bytes/s of a large copy within device memory, read and written both counted.
double measure_copy_bandwidth(Device& device, Stream& stream);

// Measures the rates that a plan is made from (plan/placement/placement.h). It takes a few seconds on a GPU, most of
// them for its clock to settle and for a mean of the host's memory (plan/machine/measure_host.h, also about
// `most_host_bytes`), and a tenth of one on the CPU device. All memory is given back. On the CPU device, where there is
// one kind of memory and no link, the figures of the link are those of a copy in that memory, and a plan should not
// depend on them.
MachineRates measure_rates(Device& device, Ops& ops, Stream& stream, ThreadPool& pool, const NumberFormats& formats,
                           std::size_t most_host_bytes);

}  // namespace so
