// Quantities as people read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace so {

// "512 bytes", "1.5 MB": decimal units, as disks and GPUs are sold and `df -H` prints.
std::string format_bytes(std::uint64_t bytes);

// "64e6", "1.5GB", "20 GiB": kB, MB, GB, TB are powers of 1000, KiB, MiB, GiB, TiB of 1024. Nothing for another text,
// and for what is no whole number of bytes below 2^63.
std::optional<std::int64_t> parse_bytes(std::string_view text);

// "42s", "3m12s", "5h04m".
std::string format_duration(double seconds);

}  // namespace so
