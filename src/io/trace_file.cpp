#include "io/trace_file.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace so {
namespace {

constexpr int stream_process = 1, host_process = 2, bucket_process = 3;

double microseconds(std::int64_t ns) { return static_cast<double>(ns) / 1e3; }

nlohmann::ordered_json metadata(const char* what, int process, int thread, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", process}, {"tid", thread}, {"args", {{"name", name}}}};
}

// The row of each state: the one its bucket was in last, if that is free, else the lowest that is.
std::vector<int> rows_of(const std::vector<TraceBucketState>& states) {
  std::vector<int> rows;
  int count = 0;
  std::set<int> free;
  std::set<std::pair<std::int64_t, int>> busy;  // end, row
  std::map<int, int> last;                      // of each bucket
  for (const TraceBucketState& state : states) {
    while (!busy.empty() && busy.begin()->first <= state.begin) free.insert(busy.extract(busy.begin()).value().second);
    const auto before = last.find(state.bucket);
    int row = 0;
    if (before != last.end() && free.contains(before->second))
      row = before->second;
    else
      row = free.empty() ? count++ : *free.begin();
    free.erase(row);
    busy.emplace(state.end, row);
    last[state.bucket] = row;
    rows.push_back(row);
  }
  return rows;
}

void add_bucket_states(nlohmann::ordered_json& events, const std::vector<TraceBucketState>& states) {
  if (states.empty()) return;
  events.push_back(metadata("process_name", bucket_process, 0, "buckets"));
  const std::vector<int> rows = rows_of(states);
  for (int row = 0; row <= *std::max_element(rows.begin(), rows.end()); ++row) {
    events.push_back(metadata("thread_name", bucket_process, row + 1, fmt::format("row {}", row + 1)));
    events.push_back({{"ph", "M"},
                      {"name", "thread_sort_index"},
                      {"pid", bucket_process},
                      {"tid", row + 1},
                      {"args", {{"sort_index", row}}}});
  }
  for (std::size_t i = 0; i < states.size(); ++i)
    events.push_back({{"ph", "X"},
                      {"name", fmt::format("{} {}", states[i].state, states[i].bucket)},
                      {"cat", "bucket"},
                      {"pid", bucket_process},
                      {"tid", rows[i] + 1},
                      {"ts", microseconds(states[i].begin)},
                      {"dur", microseconds(states[i].end - states[i].begin)},
                      {"args", {{"bucket", states[i].bucket}, {"state", states[i].state}}}});
}

// Every trace of this program begins with an event of this name.
nlohmann::ordered_json first_event() { return metadata("process_name", stream_process, 0, "streams"); }

}  // namespace

bool is_own_trace(std::string_view beginning) {
  return beginning.starts_with(R"({"traceEvents":[)" + first_event().dump());
}

void write_trace_file(const std::filesystem::path& path, const Trace& trace) {
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  events.push_back(first_event());
  events.push_back(metadata("process_name", host_process, 0, "host threads"));
  const auto process_of = [&](int track) {
    return trace.tracks[static_cast<std::size_t>(track)].stream ? stream_process : host_process;
  };
  for (int track = 0; track < static_cast<int>(trace.tracks.size()); ++track)
    events.push_back(
        metadata("thread_name", process_of(track), track + 1, trace.tracks[static_cast<std::size_t>(track)].name));
  for (const TraceActivity& activity : trace.activities) {
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
  add_bucket_states(events, trace.bucket_states);
  const nlohmann::ordered_json document{
      {"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}, {"otherData", {{"remarks", trace.remarks}}}};
  write_text_file_atomically(path, document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace so
