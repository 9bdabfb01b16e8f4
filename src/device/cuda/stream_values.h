// A stream writes a value to a word of memory, or waits for one there. Whoever sees the value that a stream has
// written, another GPU or the host, sees what the stream's work before it has written.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace so {

// Throws Error if this driver's streams can do neither.
void require_stream_values();

// Enqueue. `word`: its address on the stream's device, a multiple of 4. The wait is over as soon as the word is at
// `value` or up to 2^31 - 1 beyond it, in 32-bit arithmetic that wraps around.
void write_value(cudaStream_t stream, std::uint64_t word, std::uint32_t value);
void wait_for_value(cudaStream_t stream, std::uint64_t word, std::uint32_t value);

}  // namespace so
