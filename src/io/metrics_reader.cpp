#include "io/metrics_reader.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json_tree.h"

namespace so {
namespace {

namespace dom = simdjson::dom;
using Json = nlohmann::ordered_json;

constexpr double not_there = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t most_skips = 100;
// A step's time has fewer parts than this; more would be another program's.
constexpr std::size_t most_parts = 32;
constexpr std::size_t most_line_bytes = 16 << 20;

double number_in(const dom::object& object, std::string_view key) {
  double value = not_there;
  return object[key].get(value) == simdjson::SUCCESS ? value : not_there;
}

std::string text_in(const dom::object& object, std::string_view key) {
  std::string_view value;
  return object[key].get(value) == simdjson::SUCCESS ? std::string(value) : std::string();
}

// Lines of a run's start and end are few, and are read by names that may be absent.
double number_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : not_there;
}

std::string text_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// 0 if it is no such count.
std::uint64_t count_in(const Json& object, const char* key) {
  const double value = number_in(object, key);
  return value >= 0 && value < 9e18 ? static_cast<std::uint64_t>(value) : 0;
}

const Json& part_of(const Json& object, const char* key) {
  static const Json nothing;
  const auto found = object.find(key);
  return found != object.end() ? *found : nothing;
}

NamedSeconds seconds_of(const Json& object) {
  NamedSeconds parts;
  if (!object.is_object()) return parts;
  for (const auto& [name, value] : object.items())
    if (value.is_number() && parts.size() < most_parts) parts.emplace_back(name, value.get<double>());
  return parts;
}

std::optional<OverlapRecord> overlap_of(const Json& object) {
  if (!object.is_object() || !object.contains("device_seconds")) return {};
  return OverlapRecord{.efficiency = number_in(object, "overlap_efficiency"),
                       .device_seconds = seconds_of(part_of(object, "device_seconds")),
                       .host_seconds = seconds_of(part_of(object, "host_seconds"))};
}

std::vector<NamedMemory> memory_of(const Json& list) {
  std::vector<NamedMemory> memory;
  if (!list.is_array()) return memory;
  for (const Json& entry : list) {
    if (!entry.is_object()) continue;
    NamedMemory& m = memory.emplace_back();
    m.kind = text_in(entry, "kind");
    m.name = text_in(entry, "name");
    m.planned = count_in(entry, "planned");
    m.phases = text_in(entry, "phases");
    if (const double measured = number_in(entry, "measured"); measured >= 0) m.measured = measured;
  }
  return memory;
}

RunFacts facts_of(const Json& start) {
  RunFacts facts;
  if (!start.is_object()) return facts;
  facts.program = text_in(start, "program");
  facts.model = text_in(start, "model");
  facts.device = text_in(start, "device");
  facts.ranks = static_cast<std::int64_t>(count_in(start, "ranks"));
  facts.total_steps = static_cast<std::int64_t>(count_in(start, "total_steps"));
  facts.time = number_in(start, "time");
  if (const Json& settings = part_of(start, "settings"); settings.is_array())
    for (const Json& s : settings)
      if (s.is_object())
        facts.settings.push_back({text_in(s, "name"), text_in(s, "value"), text_in(s, "origin"), text_in(s, "where"),
                                  text_in(s, "overridden")});
  facts.memory = memory_of(part_of(start, "memory"));
  const Json& plan = part_of(start, "plan");
  facts.overlap = overlap_of(plan);
  if (facts.overlap) facts.step_seconds = number_in(plan, "step_seconds");
  return facts;
}

RecordedEnd end_of(std::int64_t step, const Json& line) {
  RecordedEnd end{.step = step, .memory = memory_of(part_of(line, "memory"))};
  if (const Json& figures = part_of(line, "summary"); figures.is_object())
    for (const auto& [name, figure] : figures.items())
      if (figure.is_object())
        end.figures.push_back({name, number_in(figure, "planned"), number_in(figure, "measured")});
  const Json& run = part_of(line, "run");
  if (!run.is_object()) return end;
  end.outcome = text_in(run, "outcome");
  end.overlap = overlap_of(run);
  return end;
}

class SecondsSum {
 public:
  void add(const dom::object& line, std::string_view key) {
    dom::object parts;
    if (line[key].get(parts) != simdjson::SUCCESS) return;
    for (const dom::key_value_pair& part : parts) {
      double seconds = 0;
      if (part.value.get(seconds) != simdjson::SUCCESS) continue;
      auto found = std::find_if(sums_.begin(), sums_.end(), [&](const auto& sum) { return sum.first == part.key; });
      if (found == sums_.end()) {
        if (sums_.size() == most_parts) continue;
        found = sums_.insert(sums_.end(), {std::string(part.key), 0.0});
      }
      found->second += seconds;
    }
  }
  NamedSeconds mean(double steps) const {
    NamedSeconds parts = sums_;
    for (auto& [name, seconds] : parts) seconds /= steps;
    return parts;
  }

 private:
  NamedSeconds sums_;
};

class MetricsReader {
 public:
  RecordedRun read(std::string_view text) {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = text.find('\n', begin);
      if (end == text.npos) break;
      const char* complaint = end - begin > most_line_bytes ? "is too long" : take(text.substr(begin, end - begin));
      if (complaint != nullptr) {
        run_.damage = fmt::format("line {} {}", run_.lines + 1, complaint);
        break;
      }
      ++run_.lines;
      begin = end + 1;
    }
    if (with_parts_ > 0) {
      run_.mean_overlap = {.efficiency = efficiency_ / with_parts_,
                           .device_seconds = device_.mean(with_parts_),
                           .host_seconds = host_.mean(with_parts_)};
    }
    return std::move(run_);
  }

 private:
  // Returns what is wrong with the line, or null.
  const char* take(std::string_view bytes) {
    padded_.assign(bytes);
    padded_.append(simdjson::SIMDJSON_PADDING, ' ');
    dom::object line;
    if (parser_.parse(padded_.data(), bytes.size(), false).get(line) != simdjson::SUCCESS) return "is no JSON object";
    std::int64_t step = 0;
    if (line["step"].get(step) != simdjson::SUCCESS || step < 0) return "has no step";
    dom::element element;
    if (line["start"].get(element) == simdjson::SUCCESS || line["summary"].get(element) == simdjson::SUCCESS)
      return take_rare(step, bytes);
    if (line["eval_loss"].get(element) == simdjson::SUCCESS) {
      go_back(run_.evaluations, step);
      run_.evaluations.push_back({step, number_in(line, "eval_loss")});
    } else if (line["loss"].get(element) == simdjson::SUCCESS) {
      take_step(step, line);
    }
    return nullptr;  // a kind of line that a later version may have
  }

  const char* take_rare(std::int64_t step, std::string_view bytes) {
    const Json line = json_tree<Json>(bytes);
    if (!line.is_object()) return "is no JSON object";
    run_.ended = line.contains("summary");
    if (!run_.ended)
      run_.starts.push_back({step, facts_of(part_of(line, "start"))});
    else
      run_.ends.push_back(end_of(step, line));
    return nullptr;
  }

  void take_step(std::int64_t step, const dom::object& line) {
    go_back(run_.steps, step);
    go_back(run_.skips, step);
    run_.ended = false;
    const bool first = run_.steps.empty();
    RecordedStep s;
    s.step = step;
    s.loss = number_in(line, "loss");
    s.grad_norm = number_in(line, "grad_norm");
    s.clip = number_in(line, "clip");
    s.lr = number_in(line, "lr");
    s.tokens = number_in(line, "tokens");
    s.step_time_s = number_in(line, "step_time_s");
    s.tokens_per_s = number_in(line, "tokens_per_s");
    s.host_memory_bytes = number_in(line, "host_memory_bytes");
    s.device_memory_bytes = number_in(line, "device_memory_bytes");
    bool skipped = false;
    s.skipped = line["skipped"].get(skipped) == simdjson::SUCCESS && skipped;
    if (s.skipped && run_.skips.size() < most_skips)
      run_.skips.push_back({step, text_in(line, "skipped_tensor"), text_in(line, "skipped_origin")});
    run_.steps.push_back(s);
    dom::object parts;
    if (first || line["device_seconds"].get(parts) != simdjson::SUCCESS) return;
    ++with_parts_;
    device_.add(line, "device_seconds");
    host_.add(line, "host_seconds");
    if (const double efficiency = number_in(line, "overlap_efficiency"); efficiency >= 0) efficiency_ += efficiency;
  }

  template <class Entry>
  static void go_back(std::vector<Entry>& entries, std::int64_t step) {
    while (!entries.empty() && entries.back().step >= step) entries.pop_back();
  }

  RecordedRun run_;
  dom::parser parser_;
  std::string padded_;
  SecondsSum device_, host_;
  double efficiency_ = 0, with_parts_ = 0;
};

}  // namespace

RecordedRun read_metrics_text(std::string_view text) { return MetricsReader().read(text); }

RecordedRun read_metrics_file(const std::filesystem::path& output_directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(output_directory, error))
    fail("{}: no such directory; give the --output_dir of a run", printable_path(output_directory));
  const std::filesystem::path path = output_directory / "metrics.jsonl";
  if (!std::filesystem::exists(path, error))
    fail("{} holds no metrics.jsonl; give the --output_dir of a run that has begun", printable_path(output_directory));
  const MappedFile map(path);
  map.advise(MappedFile::Advice::sequential);
  return read_metrics_text(map.text());
}

}  // namespace so
