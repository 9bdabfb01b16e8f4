// A written trace, read back for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "support/files.h"

namespace so::test {

struct WrittenTrace {
  struct Span {
    std::string name, kind;
    double begin, end;  // microseconds
  };
  std::map<std::string, std::vector<Span>> streams, threads;
  std::map<std::string, std::vector<Span>> bucket_rows;  // their spans' kind is the state
  std::map<int, std::vector<Span>> buckets;              // the same by bucket
  std::vector<std::string> remarks;

  std::set<std::string> names(const std::map<std::string, std::vector<Span>>& tracks) const {
    std::set<std::string> all;
    for (const auto& [track, spans] : tracks)
      for (const Span& span : spans) all.insert(span.name);
    return all;
  }
};

// Also holds every stream to doing one thing at a time, and every bucket and every row of them.
inline WrittenTrace read_trace(const std::filesystem::path& path) {
  const auto file = nlohmann::json::parse(read_file(path));
  WrittenTrace trace;
  trace.remarks = file["otherData"]["remarks"].get<std::vector<std::string>>();
  std::map<int, std::string> processes;
  std::map<std::pair<int, int>, std::string> names;
  for (const auto& event : file["traceEvents"]) {
    if (event["name"] == "process_name") processes[event["pid"]] = event["args"]["name"];
    if (event["name"] == "thread_name") names[{event["pid"], event["tid"]}] = event["args"]["name"];
    if (event["ph"] != "X") continue;
    const double begin = event["ts"], duration = event["dur"];
    if (processes.at(event["pid"]) == "buckets") {
      const WrittenTrace::Span span{event["name"], event["args"]["state"], begin, begin + duration};
      trace.bucket_rows[names.at({event["pid"], event["tid"]})].push_back(span);
      trace.buckets[event["args"]["bucket"]].push_back(span);
      continue;
    }
    auto& tracks = processes.at(event["pid"]) == "streams" ? trace.streams : trace.threads;
    tracks[names.at({event["pid"], event["tid"]})].push_back({event["name"], event["cat"], begin, begin + duration});
  }
  const auto hold = [](auto& tracks) {
    for (auto& [name, spans] : tracks) {
      std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
      for (std::size_t i = 1; i < spans.size(); ++i)
        EXPECT_GE(spans[i].begin, spans[i - 1].end - 1e-3)  // the file has nanoseconds
            << name << ": " << spans[i].name << " begins before " << spans[i - 1].name << " has ended";
    }
  };
  hold(trace.streams);
  hold(trace.bucket_rows);
  hold(trace.buckets);
  return trace;
}

}  // namespace so::test
