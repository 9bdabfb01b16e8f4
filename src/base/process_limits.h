// The limits on this process's memory and stack (ulimit -v, -d, -s), for code that would crash where it meets them
// unprepared.
#pragma once

#include <cstddef>
#include <string>

namespace so {

// Names the limits on memory that are set, "ulimit -v is 120.0 MB"; empty if there are none.
std::string memory_limits_text();

// Under a limit on address space all threads share one heap: the C library otherwise reserves 64 MB for each thread
// that allocates, memory that nobody uses and no plan knows of. Call before the first thread.
void prepare_for_memory_limits();

// Throws std::bad_alloc unless `bytes` more could be mapped now. For libraries that crash where their own allocation
// fails. Free where memory is not limited.
void require_room(std::size_t bytes);

// Throws std::runtime_error with the fix if the stack may not grow as far as the program needs.
void require_stack();

}  // namespace so
