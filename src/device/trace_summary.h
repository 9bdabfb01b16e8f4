// Where the time of a trace went.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "device/trace.h"

namespace so {

enum class TimeCategory : std::uint8_t {
  matrix_products,
  attention,
  memory_bound,  // the program's other kernels
  copies,
  other,  // kernels that nobody here knows
  idle,   // no stream works
};
inline constexpr int time_categories = 6;
std::string_view name_of(TimeCategory category);

// Returns the category that an activity carries. A GPU's kernels carry none; they are recognised by their names: those
// of cuBLASLt, CUTLASS and cuDNN, and those in the program's namespace `so`. The waits and host functions of a stream
// count as idle.
TimeCategory category_of(const TraceActivity& activity);

struct TimeSummary {
  struct Category {
    // Shares of the trace's duration that sum to 1: a moment counts for the first category above that is busy in it, so
    // copies here are those that nothing else hides.
    double share = 0;
    double busy_seconds = 0;  // of all its activities, hidden or not
    std::int64_t count = 0;
    std::uint64_t bytes = 0;  // copies and fills
  };
  struct Kernel {
    std::string name;
    TimeCategory category;
    double seconds = 0;
    std::int64_t count = 0;
  };
  double seconds = 0;
  std::array<Category, time_categories> categories;
  std::vector<Kernel> kernels;  // by name, the longest total first
  const Category& operator[](TimeCategory category) const { return categories[static_cast<std::size_t>(category)]; }
};
TimeSummary summarize(const Trace& trace);

// For people: a line a category, then the kernels that took longest.
std::string time_table(const TimeSummary& summary, std::size_t kernels);

}  // namespace so
