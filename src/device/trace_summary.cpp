#include "device/trace_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/quantities.h"

namespace so {
namespace {

bool has_any(std::string_view name, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](auto part) { return name.find(part) != std::string_view::npos; });
}

}  // namespace

std::string_view name_of(TimeCategory category) {
  switch (category) {
    case TimeCategory::matrix_products:
      return "matrix products";
    case TimeCategory::attention:
      return "attention";
    case TimeCategory::memory_bound:
      return "memory-bound kernels";
    case TimeCategory::copies:
      return "copies";
    case TimeCategory::other:
      return "other kernels";
    case TimeCategory::idle:
      return "idle";
  }
  SO_BUG("time category {}", static_cast<int>(category));
}

TimeCategory category_of(const TraceActivity& activity) {
  switch (activity.kind) {
    case TraceKind::copy:
    case TraceKind::fill:
      return TimeCategory::copies;
    case TraceKind::host:
    case TraceKind::wait:
      return TimeCategory::idle;
    case TraceKind::work:
      break;
  }
  switch (activity.category) {
    case WorkCategory::matrix_products:
      return TimeCategory::matrix_products;
    case WorkCategory::attention:
      return TimeCategory::attention;
    case WorkCategory::memory_bound:
      return TimeCategory::memory_bound;
    case WorkCategory::by_name:
      break;
  }
  const std::string_view name = activity.name;
  // cuDNN's attention first: its kernels also say cutlass.
  if (has_any(name, {"sdpa", "fmha", "flash", "cudnn", "attention"})) return TimeCategory::attention;
  if (has_any(name, {"nvjet", "cutlass", "cublas", "gemm", "xmma"})) return TimeCategory::matrix_products;
  if (name.find("so::") != std::string_view::npos) return TimeCategory::memory_bound;
  return TimeCategory::other;
}

TimeSummary summarize(const Trace& trace) {
  struct Edge {
    std::int64_t at;
    int category, change;
  };
  TimeSummary summary;
  summary.seconds = static_cast<double>(trace.duration) / 1e9;
  std::vector<Edge> edges;
  std::map<std::string, TimeSummary::Kernel> kernels;
  for (const TraceActivity& activity : trace.activities) {
    if (!trace.tracks[static_cast<std::size_t>(activity.track)].stream) continue;
    const TimeCategory category = category_of(activity);
    if (category == TimeCategory::idle) continue;
    const int index = static_cast<int>(category);
    const double seconds = static_cast<double>(activity.end - activity.begin) / 1e9;
    edges.push_back({activity.begin, index, 1});
    edges.push_back({activity.end, index, -1});
    TimeSummary::Category& sum = summary.categories[static_cast<std::size_t>(index)];
    sum.busy_seconds += seconds;
    sum.bytes += activity.bytes;
    ++sum.count;
    TimeSummary::Kernel& kernel = kernels[activity.name];
    kernel.name = activity.name;
    kernel.category = category;
    kernel.seconds += seconds;
    ++kernel.count;
  }
  for (auto& [name, kernel] : kernels) summary.kernels.push_back(std::move(kernel));
  std::stable_sort(summary.kernels.begin(), summary.kernels.end(),
                   [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  if (trace.duration <= 0) return summary;

  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });
  std::array<int, time_categories> busy{};
  std::array<std::int64_t, time_categories> shares{};
  std::int64_t now = 0;
  const auto advance = [&](std::int64_t to) {
    // Idle is last and stands for nothing being busy.
    const auto first = std::find_if(busy.begin(), busy.end() - 1, [](int n) { return n > 0; });
    shares[static_cast<std::size_t>(first - busy.begin())] += to - now;
    now = to;
  };
  for (const Edge& edge : edges) {
    if (edge.at > now) advance(edge.at);
    busy[static_cast<std::size_t>(edge.category)] += edge.change;
  }
  if (trace.duration > now) advance(trace.duration);
  for (std::size_t i = 0; i < shares.size(); ++i)
    summary.categories[i].share = static_cast<double>(shares[i]) / static_cast<double>(trace.duration);
  TimeSummary::Category& idle = summary.categories[static_cast<std::size_t>(TimeCategory::idle)];
  idle.busy_seconds = idle.share * summary.seconds;
  return summary;
}

std::string time_table(const TimeSummary& summary, std::size_t kernels) {
  std::string text;
  for (int i = 0; i < time_categories; ++i) {
    const auto category = static_cast<TimeCategory>(i);
    const TimeSummary::Category& c = summary[category];
    if (category == TimeCategory::other && c.count == 0) continue;
    text += fmt::format("  {:<22} {:5.1f}%  {:>9.3f} ms", name_of(category), 100 * c.share,
                        1e3 * c.share * summary.seconds);
    if (category == TimeCategory::copies && c.count > 0)
      text +=
          fmt::format("  (with those beside other work {:.3f} ms, {})", 1e3 * c.busy_seconds, format_bytes(c.bytes));
    else if (c.count > 0)
      text += fmt::format("  {} calls", c.count);
    text += "\n";
  }
  if (kernels == 0 || summary.kernels.empty()) return text;
  text += "  longest:\n";
  for (std::size_t i = 0; i < std::min(kernels, summary.kernels.size()); ++i) {
    const TimeSummary::Kernel& kernel = summary.kernels[i];
    text += fmt::format("    {:>9.3f} ms  {:>5} x  {:.90}\n", 1e3 * kernel.seconds, kernel.count, kernel.name);
  }
  return text;
}

}  // namespace so
