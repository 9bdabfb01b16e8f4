#include "offload/schedule/overlap.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>

namespace so {
namespace {

template <std::size_t count>
double sum(const std::array<double, count>& seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

std::string idle_text(std::vector<std::pair<double, std::string_view>> waits) {
  constexpr double shown = 0.00005;  // with four digits, less is nothing
  double all = 0;
  for (const auto& [seconds, what] : waits) all += seconds;
  std::stable_sort(waits.begin(), waits.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text = fmt::format("idle {:.4f}", all);
  const char* separator = ": waiting for ";
  for (const auto& [seconds, what] : waits) {
    if (seconds < shown) break;
    text += fmt::format("{}{} {:.4f}", separator, what, seconds);
    separator = ", ";
  }
  return text;
}

}  // namespace

bool StepOverlap::has_host() const { return sum(host) > 0; }

double StepOverlap::device_work() const { return std::max(0.0, seconds - sum(device_idle)); }

double StepOverlap::efficiency() const { return seconds > 0 ? std::max(device_work(), host_adamw()) / seconds : 0; }

StepOverlap& StepOverlap::operator+=(const StepOverlap& other) {
  seconds += other.seconds;
  for (std::size_t i = 0; i < wait_reasons; ++i) device_idle[i] += other.device_idle[i];
  for (std::size_t i = 0; i < host_times; ++i) host[i] += other.host[i];
  return *this;
}

NamedParts device_parts(const StepOverlap& overlap) {
  NamedParts parts{{"work", overlap.device_work()}};
  for (std::size_t i = 0; i < wait_reasons; ++i)
    parts.emplace_back(name_of(static_cast<WaitReason>(i)), overlap.device_idle[i]);
  return parts;
}

NamedParts host_parts(const StepOverlap& overlap) {
  NamedParts parts;
  if (!overlap.has_host()) return parts;
  for (std::size_t i = 0; i < host_times; ++i) parts.emplace_back(name_of(static_cast<HostTime>(i)), overlap.host[i]);
  return parts;
}

std::string describe(const StepOverlap& overlap, double steps) {
  std::vector<std::pair<double, std::string_view>> waits;
  for (std::size_t i = 0; i < wait_reasons; ++i)
    waits.emplace_back(overlap.device_idle[i] / steps, awaited(static_cast<WaitReason>(i)));
  std::string text = fmt::format("device: work {:.4f} s, {}", overlap.device_work() / steps, idle_text(waits));
  if (!overlap.has_host()) return text;
  waits.clear();
  for (std::size_t i = 0; i < host_times; ++i)
    if (const auto time = static_cast<HostTime>(i); is_idle(time))
      waits.emplace_back(overlap.host[i] / steps, described(time));
  const double other = overlap.host[static_cast<std::size_t>(HostTime::other)];
  return text + fmt::format("; host: AdamW {:.4f} s, other work {:.4f}, {}", overlap.host_adamw() / steps,
                            other / steps, idle_text(waits));
}

}  // namespace so
