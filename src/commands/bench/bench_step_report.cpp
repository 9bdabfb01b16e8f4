#include "commands/bench/bench_step_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/quantities.h"
#include "base/result_line.h"
#include "offload/engine_report.h"
#include "plan/machine/hardware.h"
#include "plan/memory/activation_memory.h"

namespace so {
namespace {

nlohmann::ordered_json to_json(const TimeSummary& time) {
  nlohmann::ordered_json categories, kernels = nlohmann::ordered_json::array();
  for (int i = 0; i < time_categories; ++i) {
    const auto& c = time.categories[static_cast<std::size_t>(i)];
    categories[std::string(name_of(static_cast<TimeCategory>(i)))] = {
        {"share", c.share}, {"busy_seconds", c.busy_seconds}, {"count", c.count}, {"bytes", c.bytes}};
  }
  for (const auto& kernel : time.kernels)
    kernels.push_back({{"name", kernel.name},
                       {"category", name_of(kernel.category)},
                       {"seconds", kernel.seconds},
                       {"count", kernel.count}});
  return {{"traced_seconds", time.seconds}, {"traced_steps", 2}, {"categories", categories}, {"kernels", kernels}};
}

// Seconds of one of `steps` steps.
nlohmann::ordered_json to_json(const StepOverlap& overlap, double steps) {
  nlohmann::ordered_json object{{"efficiency", overlap.efficiency()}};
  const auto add = [&](const char* side, const NamedParts& parts) {
    object[side] = nlohmann::ordered_json::object();
    for (const auto& [name, seconds] : parts) object[side][name] = seconds / steps;
  };
  add("device_seconds", device_parts(overlap));
  add("host_seconds", host_parts(overlap));
  return object;
}

nlohmann::ordered_json to_json(const RankSteps& rank, std::size_t number) {
  return {{"rank", number},
          {"host", rank.host},
          {"step_seconds", rank.seconds},
          {"tokens_per_s", rank.tokens_per_second()},
          {"overlap_efficiency", rank.efficiency},
          {"device_wait_seconds_a_step", rank.waiting},
          {"host_bytes", static_cast<std::int64_t>(rank.host_bytes)},
          {"gemm_tflops", rank.gemm_rate / 1e12}};
}

}  // namespace

double StepReport::gemm_rate() const {
  return std::accumulate(ranks.begin(), ranks.end(), 0.0,
                         [](double sum, const RankSteps& rank) { return sum + rank.gemm_rate; });
}

nlohmann::ordered_json to_json(const StepReport& r) {
  const StepMeasurement& m = r.measured;
  const double seconds = r.seconds(), model_rate = r.model_rate(), reference_rate = r.reference_rate(),
               gemm_rate = r.gemm_rate();
  const auto [least, most] = std::minmax_element(m.seconds.begin(), m.seconds.end());
  const auto steps = std::ssize(m.seconds);
  nlohmann::ordered_json result{
      {"config", r.config},
      {"parameters", r.parameters},
      {"trained_parameters", r.trained_parameters},
      {"device", r.device},
      {"dtype", name_of(r.dtype)},
      {"batch_size", r.batch_size},
      {"max_length", r.max_length},
      {"gradient_accumulation_steps", r.gradient_accumulation_steps},
      {"optimizer", r.optimizer},
      {"mode", r.plain() ? "none" : r.mode},
      {"optimizer_state_dtype", r.plain() ? "none" : name_of_moments(r.plan.engine.formats.moments)},
      {"host_share", r.host_share},
      {"spare_buckets", r.plan.engine.placement.spare_buckets},
      {"keep", describe(r.plan.decoder.keep, r.plan.decoder.tile_rows)},
      {"steps", steps},
      {"step_seconds", {{"median", seconds}, {"min", *least}, {"max", *most}, {"all", m.seconds}}},
      {"tokens_per_s", r.tokens_per_second()},
      {"model_tflops", model_rate / 1e12},
      {"reference_tflops", reference_rate / 1e12},
      {"gemm_tflops", gemm_rate / 1e12},
      {"share_of_gemm_limit", model_rate / gemm_rate},
      {"fp8_share", r.fp8_share},
      {"device_units", r.plan.engine.placement.count(Owner::device)},
      {"transient_weights", r.plan.engine.placement.makes_from_masters(Owner::device)},
      {"host_masters_travel", r.plan.engine.placement.makes_from_masters(Owner::host)},
      {"transient_gradients", r.plan.engine.placement.moves()},
      {"streamed_units", r.plan.engine.placement.streamed()},
      {"gathered_units", r.plan.engine.placement.gathered()},
      {"first_loss", m.first_loss},
      {"last_loss", m.last.loss},
      {"clipped_steps", m.counters.clipped_steps},
      {"device_wait_seconds_a_step", m.steps.of_a_step(total(m.steps.sum.overlap.device_idle))}};
  if (!r.plain()) result["overlap"] = to_json(m.steps.sum.overlap, static_cast<double>(m.steps.steps));
  if (r.plan.estimate) {
    result["expected"] = {{"step_seconds", r.plan.estimate->seconds()}, {"waiting_seconds", r.plan.estimate->exposed}};
    if (!r.plain()) result["expected"]["overlap"] = to_json(r.plan.estimate->overlap(), 1);
    for (const auto& [name, rate] : rate_names()) result["rates"][name] = r.plan.rates.*rate;
  }
  for (const PlannedFigure& f : m.figures)
    result["summary"][f.name] = {{"planned", f.planned}, {"measured", f.measured}, {"difference", f.difference()}};
  result["ranks"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < r.ranks.size(); ++i) result["ranks"].push_back(to_json(r.ranks[i], i));
  if (m.time) result["time"] = to_json(*m.time);
  result["trace_remarks"] = m.remarks;
  return result;
}

void print(const StepReport& r) {
  const StepMeasurement& m = r.measured;
  const double seconds = r.seconds(), model_rate = r.model_rate(), reference_rate = r.reference_rate(),
               gemm_rate = r.gemm_rate();
  const auto [least, most] = std::minmax_element(m.seconds.begin(), m.seconds.end());
  const auto steps = std::ssize(m.seconds);
  if (!r.frozen.empty()) print_text("{}\n", r.frozen);
  print_text("step            {:.4f} s (median of {}; {:.4f} to {:.4f})\n", seconds, steps, *least, *most);
  if (r.plan.estimate)
    print_text("expected        {:.4f} s, {:.4f} s of it waiting for the host\n", r.plan.estimate->seconds(),
               r.plan.estimate->exposed);
  print_text("throughput      {:.1f} tokens/s{}\n", r.tokens_per_second(),
             r.ranks.size() > 1 ? fmt::format(" of {} ranks", r.ranks.size()) : "");
  for (std::size_t i = 0; i < r.ranks.size() && r.ranks.size() > 1; ++i)
    print_text("  rank {:<3}      {:.1f} tokens/s, {:.4f} s a step, {:.4f} s of it waiting; peak host memory {}\n", i,
               r.ranks[i].tokens_per_second(), r.ranks[i].seconds, r.ranks[i].waiting,
               format_bytes(static_cast<std::size_t>(r.ranks[i].host_bytes)));
  print_text("model           {:.4g} TFLOP/s, {:.1f}% of the {:.4g} TFLOP/s of {} here\n", model_rate / 1e12,
             100 * model_rate / gemm_rate, gemm_rate / 1e12,
             r.fp8_share > 0 ? fmt::format("large matrix products, {:.0f}% in FP8,", 100 * r.fp8_share)
                             : "a large matrix product");
  print_text("reference count {:.4g} TFLOP/s\n", reference_rate / 1e12);
  for (const PlannedFigure& figure : m.figures)
    if (figure.name.ends_with("_bytes")) print_text("peak {}\n", describe(figure));
  if (!r.plain()) {
    print_text("overlap         efficiency {:.3f}{}\n", m.steps.sum.overlap.efficiency(),
               r.plan.estimate ? fmt::format(", expected {:.3f}", r.plan.estimate->overlap().efficiency()) : "");
    if (r.plan.estimate) print_text("expected of a step: {}\n", describe(r.plan.estimate->overlap()));
    print_text("measured of a step, {} of {} clipped: {}\n", m.counters.clipped_steps, steps,
               describe(m.steps.sum.overlap, static_cast<double>(m.steps.steps)));
    if (const std::string schedule = describe_schedule(m.counters); !schedule.empty()) print_text("{}\n", schedule);
  }
  print_text("loss            {:.4f} to {:.4f}\n", m.first_loss, m.last.loss);
  if (m.time)
    print_text("where the time of two more steps went ({:.4f} s while traced):\n{}", m.time->seconds,
               time_table(*m.time, 12));
  for (const std::string& remark : m.remarks) print_text("{}\n", remark);
  if (!r.trace.empty()) print_text("wrote {}\n", r.trace);
}

}  // namespace so
