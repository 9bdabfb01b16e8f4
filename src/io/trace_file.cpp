#include "io/trace_file.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace so {
namespace {

constexpr int stream_process = 1, host_process = 2;

nlohmann::ordered_json metadata(const char* what, int process, int thread, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", process}, {"tid", thread}, {"args", {{"name", name}}}};
}

}  // namespace

void write_trace_file(const std::filesystem::path& path, const Trace& trace) {
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  events.push_back(metadata("process_name", stream_process, 0, "streams"));
  events.push_back(metadata("process_name", host_process, 0, "host threads"));
  const auto process_of = [&](int track) {
    return trace.tracks[static_cast<std::size_t>(track)].stream ? stream_process : host_process;
  };
  for (int track = 0; track < static_cast<int>(trace.tracks.size()); ++track)
    events.push_back(
        metadata("thread_name", process_of(track), track + 1, trace.tracks[static_cast<std::size_t>(track)].name));
  for (const TraceActivity& activity : trace.activities) {
    const auto microseconds = [](std::int64_t ns) { return static_cast<double>(ns) / 1e3; };
    nlohmann::ordered_json event{{"ph", "X"},
                                 {"name", activity.name},
                                 {"cat", name_of(activity.kind)},
                                 {"pid", process_of(activity.track)},
                                 {"tid", activity.track + 1},
                                 {"ts", microseconds(activity.begin)},
                                 {"dur", microseconds(activity.end - activity.begin)}};
    if (activity.bytes > 0) {
      event["args"]["bytes"] = activity.bytes;
      if (activity.direction != CopyDirection::none) event["args"]["direction"] = name_of(activity.direction);
      if (activity.end > activity.begin)
        event["args"]["GB/s"] =
            static_cast<double>(activity.bytes) / static_cast<double>(activity.end - activity.begin);
    }
    events.push_back(std::move(event));
  }
  const nlohmann::ordered_json document{
      {"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}, {"otherData", {{"remarks", trace.remarks}}}};
  write_text_file_atomically(path, document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace so
