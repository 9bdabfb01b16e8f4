// Reads what another program, or a person, gives on standard input.
#pragma once

#include <cstdint>
#include <string>

namespace so {

// Reads it to its end; more than `max_bytes` is an Error, so that an endless input does not take all memory.
std::string read_standard_input(std::uint64_t max_bytes);

}  // namespace so
