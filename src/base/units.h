// Quantities as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace so {

// "512 bytes", "1.5 MB": decimal units, as disks and GPUs are sold and `df -H` prints.
std::string format_bytes(std::uint64_t bytes);

// "42s", "3m12s", "5h04m".
std::string format_duration(double seconds);

}  // namespace so
