#include "base/units.h"

#include <fmt/format.h>

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

std::string format_duration(double seconds) {
  const auto s = static_cast<std::int64_t>(seconds + 0.5);
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
}

}  // namespace so
