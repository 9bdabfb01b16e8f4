#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>

#include "commands/report/report_page.h"
#include "commands/report/thinning.h"

namespace so {
namespace {

using nlohmann::ordered_json;

// As many columns as a chart has pixels at most, about; and few enough that a mean smooths.
constexpr std::size_t columns = 400, mean_columns = 120, strip_columns = 200;
constexpr std::size_t most_resumptions = 20;
constexpr std::size_t most_prompts = 20, most_texts = 30, most_text_bytes = 4000;

// As the charts need it: null where a value is not finite, seven digits, which are more than can be seen.
ordered_json numbers(std::span<const double> values) {
  ordered_json list = ordered_json::array();
  for (const double value : values) {
    if (!std::isfinite(value))
      list.push_back(nullptr);
    else if (value == std::floor(value) && std::abs(value) < 1e15)
      list.push_back(static_cast<std::int64_t>(value));
    else
      list.push_back(std::strtod(fmt::format("{:.7g}", value).c_str(), nullptr));
  }
  return list;
}

ordered_json to_json(const Series& series) { return {numbers(series.x), numbers(series.y)}; }

ordered_json to_json(const NamedSeconds& parts) {
  ordered_json list = ordered_json::array();
  for (const auto& [name, seconds] : parts) list.push_back({name, seconds});
  return list;
}

ordered_json to_json(const OverlapRecord& overlap) {
  return {{"device", to_json(overlap.device_seconds)},
          {"host", to_json(overlap.host_seconds)},
          {"efficiency", overlap.efficiency}};
}

std::int64_t total_steps(const RecordedRun& run) {
  return run.starts.empty() ? 0 : run.starts.back().facts.total_steps;
}
std::int64_t last_step(const RecordedRun& run) { return run.steps.empty() ? 0 : run.steps.back().step; }

std::string status(const ReportRun& run) {
  if (run.going_on) return "running";
  if (!run.metrics.ended) return "open";
  const std::string& outcome = run.metrics.ends.back().outcome;
  if (!outcome.empty() && outcome != "finished") return outcome;
  return last_step(run.metrics) < total_steps(run.metrics) ? "stopped early" : "finished";
}

// What the steps that are left will take, as the latest ones took; not finite where that cannot be said.
double seconds_left(const RecordedRun& run) {
  constexpr std::size_t looked_at = 100;
  std::vector<double> times;
  for (auto step = run.steps.rbegin(); step != run.steps.rend() && times.size() < looked_at; ++step)
    if (std::isfinite(step->step_time_s)) times.push_back(step->step_time_s);
  const std::int64_t left = total_steps(run) - last_step(run);
  if (times.empty() || left < 0) return std::numeric_limits<double>::quiet_NaN();
  std::nth_element(times.begin(), times.begin() + std::ssize(times) / 2, times.end());
  return static_cast<double>(left) * times[times.size() / 2];
}

using Steps = std::vector<RecordedStep>;
using Value = std::function<double(const RecordedStep&)>;

std::vector<double> column(const Steps& steps, const Value& value) {
  std::vector<double> values;
  values.reserve(steps.size());
  for (const RecordedStep& step : steps) values.push_back(value(step));
  return values;
}

double sum(std::span<const double> values) {
  double all = 0;
  for (const double value : values) all += std::isfinite(value) ? value : 0;
  return all;
}

bool is_clipped(const RecordedStep& step) { return step.clip < 1; }

// Where the other axes are at some of the steps.
ordered_json axes(std::span<const double> steps, std::span<const double> tokens, std::span<const double> seconds) {
  std::vector<double> at, token_sums, second_sums;
  double all_tokens = 0, all_seconds = 0;
  const std::size_t every = std::max<std::size_t>(1, steps.size() / columns);
  if (!steps.empty()) {
    at.push_back(0);
    token_sums.push_back(0);
    second_sums.push_back(0);
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    all_tokens += std::isfinite(tokens[i]) ? tokens[i] : 0;
    all_seconds += std::isfinite(seconds[i]) ? seconds[i] : 0;
    if (i % every != 0 && i + 1 != steps.size()) continue;
    at.push_back(steps[i]);
    token_sums.push_back(all_tokens);
    second_sums.push_back(all_seconds);
  }
  return {{"step", numbers(at)}, {"tokens", numbers(token_sums)}, {"seconds", numbers(second_sums)}};
}

void add_series(ordered_json& out, const RecordedRun& run) {
  const Steps& steps = run.steps;
  const std::vector<double> at = column(steps, [](const RecordedStep& s) { return static_cast<double>(s.step); });
  struct Kind {
    const char* name;
    Value value;
    bool noisy = false;
  };
  const Kind kinds[] = {
      {"loss", [](const RecordedStep& s) { return s.loss; }, true},
      {"grad_norm", [](const RecordedStep& s) { return s.grad_norm; }, true},
      {"lr", [](const RecordedStep& s) { return s.lr; }},
      {"tokens_per_s", [](const RecordedStep& s) { return s.tokens_per_s; }, true},
      {"step_time_s", [](const RecordedStep& s) { return s.step_time_s; }, true},
      {"host_memory", [](const RecordedStep& s) { return s.host_memory_bytes; }},
      {"device_memory", [](const RecordedStep& s) { return s.device_memory_bytes; }},
  };
  ordered_json series = ordered_json::object();
  for (const auto& [name, value, noisy] : kinds) {
    const std::vector<double> all = column(steps, value);
    // Nothing is drawn of what was not recorded, nor of the memory of a device that has none of its own.
    if (std::none_of(all.begin(), all.end(), [](double v) { return std::isfinite(v) && v != 0; })) continue;
    series[name] = to_json(thinned(at, all, columns));
    if (!noisy || steps.size() < 2 * mean_columns) continue;
    std::size_t each = 1;
    series[std::string(name) + "_mean"] = to_json(means(at, all, mean_columns, &each));
    out["mean_of"] = each;
  }
  std::vector<double> evaluated, losses;
  for (const RecordedEvaluation& evaluation : run.evaluations) {
    evaluated.push_back(static_cast<double>(evaluation.step));
    losses.push_back(evaluation.loss);
  }
  if (!losses.empty()) series["eval_loss"] = to_json(thinned(evaluated, losses, columns));
  out["series"] = series;
  const std::vector<double> tokens = column(steps, [](const RecordedStep& s) { return s.tokens; });
  const std::vector<double> seconds = column(steps, [](const RecordedStep& s) { return s.step_time_s; });
  out["axis"] = axes(at, tokens, seconds);
  out["clip_share"] =
      to_json(means(at, column(steps, [](const RecordedStep& s) { return is_clipped(s) ? 1.0 : 0.0; }), strip_columns));
  out["tokens"] = sum(tokens);
  out["seconds"] = sum(seconds);
  out["tokens_per_s"] = sum(seconds) > 0 ? sum(tokens) / sum(seconds) : 0;
}

void add_totals(ordered_json& out, const RecordedRun& run) {
  const Steps& steps = run.steps;
  out["last_step"] = last_step(run);
  if (!steps.empty()) {
    out["first_loss"] = steps.front().loss;
    out["last_loss"] = steps.back().loss;
  }
  out["clipped"] = std::count_if(steps.begin(), steps.end(), is_clipped);
  out["skipped"] = std::count_if(steps.begin(), steps.end(), [](const RecordedStep& s) { return s.skipped; });
  out["skips"] = ordered_json::array();
  for (const RecordedSkip& skip : run.skips)
    out["skips"].push_back({{"step", skip.step}, {"tensor", skip.tensor}, {"origin", skip.origin}});
  const RecordedEvaluation* best = nullptr;
  for (const RecordedEvaluation& e : run.evaluations)
    if (std::isfinite(e.loss) && (best == nullptr || e.loss < best->loss)) best = &e;
  if (best != nullptr) out["best_evaluation"] = {{"step", best->step}, {"loss", best->loss}};
}

// The number with which a text begins, "1 rows", else nothing.
ordered_json leading_number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return end != text.c_str() && value > 0 && std::isfinite(value) ? ordered_json(value) : ordered_json();
}

void add_facts(ordered_json& out, const RecordedRun& run) {
  const RunFacts facts = run.starts.empty() ? RunFacts() : run.starts.back().facts;
  out["program"] = facts.program;
  out["model"] = facts.model;
  out["device"] = facts.device;
  out["ranks"] = facts.ranks;
  out["total_steps"] = facts.total_steps;
  if (!run.starts.empty() && run.starts.front().facts.time > 0) out["started"] = run.starts.front().facts.time;
  out["settings"] = ordered_json::array();
  for (const RecordedSetting& s : facts.settings) {
    out["settings"].push_back({s.name, s.value, s.origin, s.where, s.overridden});
    if (s.name == "max_grad_norm") out["clip_at"] = leading_number(s.value);
    if (s.name == "load_best_model_at_end") out["keeps_best"] = s.value == "true";
  }
  const RecordedEnd* end = run.ended ? &run.ends.back() : nullptr;
  out["memory"] = ordered_json::array();
  for (const NamedMemory& m : end != nullptr && !end->memory.empty() ? end->memory : facts.memory)
    out["memory"].push_back(
        {m.kind, m.name, m.planned, m.measured ? ordered_json(*m.measured) : ordered_json(), m.phases});
  out["figures"] = ordered_json::array();
  if (end != nullptr)
    for (const PlannedFigure& f : end->figures) out["figures"].push_back({f.name, f.planned, f.measured});
  if (!run.mean_overlap.device_seconds.empty()) out["parts"] = to_json(run.mean_overlap);
  if (facts.overlap) out["planned_parts"] = to_json(*facts.overlap);
}

// At most `most` bytes, cut where a character begins.
std::string cut(const std::string& text, std::size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) --most;
  return text.substr(0, most) + "...";
}

// The texts of each prompt by step; of many the first, the last, and some between.
ordered_json texts_of(std::span<const Sample> samples) {
  std::vector<std::pair<std::string, std::vector<const Sample*>>> prompts;
  for (const Sample& sample : samples) {
    auto found = std::find_if(prompts.begin(), prompts.end(), [&](const auto& p) { return p.first == sample.prompt; });
    if (found == prompts.end()) {
      if (prompts.size() == most_prompts) continue;
      found = prompts.insert(prompts.end(), {sample.prompt, {}});
    }
    found->second.push_back(&sample);
  }
  ordered_json list = ordered_json::array();
  for (const auto& [prompt, all] : prompts) {
    ordered_json texts = ordered_json::array();
    const std::size_t shown = std::min(all.size(), most_texts);
    for (std::size_t i = 0; i < shown; ++i) {
      const Sample& sample = *all[shown == 1 ? 0 : i * (all.size() - 1) / (shown - 1)];
      texts.push_back({sample.step, cut(sample.text, most_text_bytes), sample.finish_reason});
    }
    list.push_back({{"prompt", cut(prompt, most_text_bytes)}, {"texts", texts}});
  }
  return list;
}

ordered_json to_json(const ReportRun& run) {
  const RecordedRun& metrics = run.metrics;
  ordered_json out{{"name", run.name}, {"status", status(run)}, {"notes", ordered_json::array()}};
  if (!metrics.damage.empty())
    out["notes"].push_back(fmt::format("metrics.jsonl: {}; read up to there", metrics.damage));
  if (!run.samples.damage.empty())
    out["notes"].push_back(fmt::format("{}: {}; read up to there", samples_file, run.samples.damage));
  if (metrics.steps.empty()) out["notes"].push_back("no step is recorded yet");
  out["resumed"] = ordered_json::array();
  for (const RecordedStart& start : metrics.starts)
    if (start.step > 0 && out["resumed"].size() < most_resumptions) out["resumed"].push_back(start.step);
  add_facts(out, metrics);
  add_totals(out, metrics);
  if (const double left = seconds_left(metrics); run.going_on && std::isfinite(left)) out["seconds_left"] = left;
  add_series(out, metrics);
  out["samples"] = texts_of(run.samples.samples);
  return out;
}

}  // namespace

std::string report_data(std::span<const ReportRun> runs, double watching) {
  ordered_json list = ordered_json::array();
  for (const ReportRun& run : runs) list.push_back(to_json(run));
  const ordered_json data{{"version", SO_VERSION}, {"watching", watching}, {"runs", list}};
  return data.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace so
