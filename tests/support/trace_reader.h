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
  std::vector<std::string> remarks;

  std::set<std::string> names(const std::map<std::string, std::vector<Span>>& tracks) const {
    std::set<std::string> all;
    for (const auto& [track, spans] : tracks)
      for (const Span& span : spans) all.insert(span.name);
    return all;
  }
};

// Also holds every stream to doing one thing at a time.
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
    auto& tracks = processes.at(event["pid"]) == "streams" ? trace.streams : trace.threads;
    const double begin = event["ts"], duration = event["dur"];
    tracks[names.at({event["pid"], event["tid"]})].push_back({event["name"], event["cat"], begin, begin + duration});
  }
  for (auto& [name, spans] : trace.streams) {
    std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < spans.size(); ++i)
      EXPECT_GE(spans[i].begin, spans[i - 1].end - 1e-3)  // the file has nanoseconds
          << name << ": " << spans[i].name << " begins before " << spans[i - 1].name << " has ended";
  }
  return trace;
}

}  // namespace so::test
