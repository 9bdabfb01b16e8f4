#include "plan/simulate/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string_view>
#include <vector>

namespace so {
namespace {

// A slice is drawn as busy if at least this share of it is.
constexpr double least_share = 0.125;

struct Lane {
  std::string_view sketched, track;
  bool stream;
  bool optional = false;  // shown where it works at all
};
constexpr std::array<Lane, simulated_lanes> lanes{{{"GPU", "compute", true},
                                                   {"D2H", "to host", true},
                                                   {"CPU", "optimizer", false},
                                                   {"H2D", "to device", true},
                                                   {"LNK", "over link", true, true},
                                                   {"RED", "reduce", true, true},
                                                   {"GTH", "gather", true, true}}};

bool is_shown(const SimulatedTimeline& timeline, std::size_t lane) {
  return !lanes[lane].optional ||
         std::any_of(timeline.spans.begin(), timeline.spans.end(),
                     [&](const SimulatedSpan& span) { return static_cast<std::size_t>(span.lane) == lane; });
}

struct Mark {
  char character;
  std::string_view meaning;
};

Mark mark_of_wait(WaitReason reason) {
  switch (reason) {
    case WaitReason::link:
      return {'L', "waits for transfers"};
    case WaitReason::stream:
      return {'S', "waits for streamed or gathered weights"};
    case WaitReason::gradient:
      return {'G', "waits for a gradient buffer"};
    case WaitReason::moving:
      return {'M', "waits for gradients that move"};
    case WaitReason::verdict:
      return {'V', "waits for the gradient norm"};
    case WaitReason::checkpoint:  // none is simulated
    case WaitReason::host:
      break;
  }
  return {'H', "waits for the host"};
}

Mark mark_of_task(HostTask task) {
  switch (task) {
    case HostTask::speculate:
      return {'a', "AdamW before the gradient norm is known"};
    case HostTask::preview:
      return {'p', "weights only, before it is known"};
    case HostTask::update:
      return {'d', "AdamW after it"};
    case HostTask::weights_first:
      return {'e', "weights only, after it"};
    default:
      return {'o', "moments, after weights only"};
  }
}

Mark mark_of(const SimulatedSpan& span) {
  switch (span.work) {
    case SimulatedWork::forward:
      return {'f', "forward"};
    case SimulatedWork::backward:
      return {'b', "backward"};
    case SimulatedWork::device_update:
      return {'u', "AdamW on the GPU"};
    case SimulatedWork::wait:
      return mark_of_wait(span.reason);
    case SimulatedWork::fetch:
      return {'g', "gradients"};
    case SimulatedWork::bring_sum:
      return {'m', "sums of gradients"};
    case SimulatedWork::host_task:
    case SimulatedWork::over_link:
      return mark_of_task(span.task);
    case SimulatedWork::send:
      return {'w', "weights"};
    case SimulatedWork::reduce_scatter:
      return {'r', "gradients are summed over GPUs"};
    case SimulatedWork::all_gather:
      return {'t', "weights are gathered from all GPUs"};
    case SimulatedWork::masters:
      return {'M', "fp32 weights"};
    case SimulatedWork::stream:
      break;
  }
  return {'s', "streamed weights"};
}

bool is_work(const SimulatedSpan& span) {
  return span.lane == SimulatedLane::device || lanes[static_cast<std::size_t>(span.lane)].optional;
}

std::string name_of_span(const SimulatedSpan& span) {
  const std::string of = span.unit < 0 ? "" : fmt::format(" {}", span.unit);
  switch (span.work) {
    case SimulatedWork::forward:
      return span.unit < 0 ? "micro-batches" : "forward" + of;
    case SimulatedWork::backward:
      return "backward" + of;
    case SimulatedWork::device_update:
      return "AdamW";
    case SimulatedWork::wait:
      return std::string(mark_of_wait(span.reason).meaning);
    case SimulatedWork::fetch:
      return "gradient" + of;
    case SimulatedWork::bring_sum:
      return "sum of gradients" + of;
    case SimulatedWork::host_task:
    case SimulatedWork::over_link:
      return std::string(name_of(span.task)) + of;
    case SimulatedWork::send:
      return "weights" + of;
    case SimulatedWork::reduce_scatter:
      return "reduce_scatter" + of;
    case SimulatedWork::all_gather:
      return "all_gather" + of;
    case SimulatedWork::masters:
      return "fp32 weights" + of;
    case SimulatedWork::stream:
      break;
  }
  return "streamed weights" + of;
}

}  // namespace

std::string sketch(const SimulatedTimeline& timeline, int width) {
  const double slice = timeline.seconds / width;
  // Seconds of each mark, by lane and slice.
  std::array<std::vector<std::map<char, double>>, simulated_lanes> busy;
  busy.fill(std::vector<std::map<char, double>>(static_cast<std::size_t>(width)));
  std::array<std::map<char, std::string_view>, simulated_lanes> meanings;
  for (const SimulatedSpan& span : timeline.spans) {
    const auto lane = static_cast<std::size_t>(span.lane);
    const Mark mark = mark_of(span);
    const int first = std::clamp(static_cast<int>(span.begin / slice), 0, width - 1),
              last = std::clamp(static_cast<int>(span.end / slice), 0, width - 1);
    for (int i = first; i <= last; ++i)
      busy[lane][static_cast<std::size_t>(i)][mark.character] +=
          std::max(0.0, std::min(span.end, (i + 1) * slice) - std::max(span.begin, i * slice));
    meanings[lane].emplace(mark.character, mark.meaning);
  }
  std::string text, legend;
  for (std::size_t lane = 0; lane < simulated_lanes; ++lane) {
    if (!is_shown(timeline, lane)) continue;
    text += fmt::format("{} |", lanes[lane].sketched);
    std::map<char, std::string_view> shown;
    for (const std::map<char, double>& marks : busy[lane]) {
      double all = 0;
      char most = ' ';
      for (const auto& [mark, seconds] : marks) {
        all += seconds;
        if (most == ' ' || seconds > marks.at(most)) most = mark;
      }
      if (all < least_share * slice) most = ' ';
      if (most != ' ') shown.emplace(most, meanings[lane].at(most));
      text += most;
    }
    text += lane == 0 ? "|v\n" : "|\n";
    if (shown.empty()) continue;
    legend += fmt::format("  {}:", lanes[lane].sketched);
    const char* separator = " ";
    for (const auto& [mark, meaning] : shown) {
      legend += fmt::format("{}{} {}", separator, mark, meaning);
      separator = ", ";
    }
    legend += '\n';
  }
  return text +
         fmt::format("  one step of {:.3f} s, from gradient norm (v) to gradient norm, {:.3g} ms per character\n",
                     timeline.seconds, 1e3 * slice) +
         legend;
}

Trace to_trace(const SimulatedTimeline& timeline) {
  const auto nanoseconds = [](double seconds) { return static_cast<std::int64_t>(std::llround(seconds * 1e9)); };
  Trace trace;
  std::array<int, simulated_lanes> tracks{};
  for (std::size_t lane = 0; lane < simulated_lanes; ++lane) {
    tracks[lane] = static_cast<int>(trace.tracks.size());
    if (is_shown(timeline, lane)) trace.tracks.push_back({std::string(lanes[lane].track), lanes[lane].stream});
  }
  const int weights = static_cast<int>(trace.tracks.size());
  // These have a stream of their own.
  const auto streams = [](const SimulatedSpan& span) { return span.work == SimulatedWork::stream; };
  const auto is_sum = [](const SimulatedSpan& span) { return span.work == SimulatedWork::bring_sum; };
  const auto are_masters = [](const SimulatedSpan& span) { return span.work == SimulatedWork::masters; };
  if (std::any_of(timeline.spans.begin(), timeline.spans.end(), streams)) trace.tracks.push_back({"weights", true});
  const int sums = static_cast<int>(trace.tracks.size());
  if (std::any_of(timeline.spans.begin(), timeline.spans.end(), is_sum))
    trace.tracks.push_back({"gradient sums", true});
  const int masters = static_cast<int>(trace.tracks.size());
  if (std::any_of(timeline.spans.begin(), timeline.spans.end(), are_masters)) trace.tracks.push_back({"masters", true});
  for (const SimulatedSpan& span : timeline.spans) {
    TraceActivity activity;
    activity.track = streams(span)       ? weights
                     : is_sum(span)      ? sums
                     : are_masters(span) ? masters
                                         : tracks[static_cast<std::size_t>(span.lane)];
    activity.kind = span.work == SimulatedWork::wait        ? TraceKind::wait
                    : is_work(span)                         ? TraceKind::work
                    : span.work == SimulatedWork::host_task ? TraceKind::host
                                                            : TraceKind::copy;
    activity.name = name_of_span(span);
    activity.begin = nanoseconds(span.begin);
    activity.end = nanoseconds(span.end);
    activity.bytes = static_cast<std::uint64_t>(span.bytes);
    if (span.lane == SimulatedLane::to_host) activity.direction = CopyDirection::device_to_host;
    if (span.lane == SimulatedLane::to_device) activity.direction = CopyDirection::host_to_device;
    trace.activities.push_back(std::move(activity));
  }
  std::stable_sort(trace.activities.begin(), trace.activities.end(),
                   [](const TraceActivity& a, const TraceActivity& b) { return a.begin < b.begin; });
  trace.duration = nanoseconds(timeline.seconds);
  trace.remarks.push_back("simulated, not measured");
  return trace;
}

}  // namespace so
