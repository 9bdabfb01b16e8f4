#include "base/quantities.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <utility>

namespace so {

std::string format_bytes(std::uint64_t bytes) {
  if (bytes == 1) return "1 byte";
  if (bytes < 10'000) return fmt::format("{} bytes", bytes);
  double value = static_cast<double>(bytes) / 1000;
  const char* unit = "kB";
  for (const char* next : {"MB", "GB", "TB", "PB", "EB"}) {
    if (value < 999.95) break;
    value /= 1000;
    unit = next;
  }
  return fmt::format("{:.1f} {}", value, unit);
}

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  double scale = unit.empty() || unit == "B" ? 1 : 0;
  for (const auto& [name, bytes] : {std::pair<std::string_view, double>{"kB", 1e3},
                                    {"KB", 1e3},
                                    {"MB", 1e6},
                                    {"GB", 1e9},
                                    {"TB", 1e12},
                                    {"KiB", 0x1p10},
                                    {"MiB", 0x1p20},
                                    {"GiB", 0x1p30},
                                    {"TiB", 0x1p40}})
    if (unit == name) scale = bytes;
  const double bytes = scale > 1 ? std::round(number * scale) : number * scale;
  if (scale == 0 || !std::isfinite(bytes) || bytes != std::floor(bytes) || std::abs(bytes) >= 0x1p63)
    return std::nullopt;
  return static_cast<std::int64_t>(bytes);
}

std::string format_duration(double seconds) {
  const auto s = static_cast<std::int64_t>(seconds + 0.5);
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
}

}  // namespace so
