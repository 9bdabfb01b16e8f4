#include "commands/planned_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/quantities.h"
#include "base/terminal.h"
#include "checkpoint/parameter_options.h"
#include "model/parameters.h"
#include "plan/memory/activation_memory.h"
#include "plan/simulate/timeline.h"
#include "train/run_report.h"

namespace so {
namespace {

constexpr int sketch_margin = 7;  // columns of a lane's name and its ends

// The longest of the works that go on at once, which bounds the step, and its seconds.
std::pair<std::string_view, double> longest_work(const StepEstimate& estimate) {
  return std::max({std::pair<std::string_view, double>{"device", estimate.overlap().device_work()},
                   {"host_adamw", estimate.overlap().host_adamw()},
                   {"collectives", estimate.collectives}},
                  [](const auto& a, const auto& b) { return a.second < b.second; });
}

std::string_view fuller_memory(const PlannedStep& step) {
  return step.device.share() >= step.host.share() ? "device" : "host";
}

// What bounds a step of several GPUs.
std::string limits_text(const PlannedStep& step) {
  const auto [work, seconds] = longest_work(*step.plan.estimate);
  const std::string_view what = work == "device"       ? "the GPU"
                                : work == "host_adamw" ? "AdamW on the host"
                                                       : "collectives";
  const StepEstimate& estimate = *step.plan.estimate;
  return fmt::format(
      "limits       memory: the {}'s, on every rank alike; step: {}, {:.3f} of {:.3f} s\n"
      "collectives  {:.4f} s a step; the GPU waits {:.4f} s for them, {:.1f}% of the step\n"
      "measured     docs/performance/ranks.md has what was measured on several GPUs\n",
      fuller_memory(step), what, seconds, estimate.seconds(), estimate.collectives, estimate.collective_waits,
      100 * estimate.collective_waits / estimate.seconds());
}

std::string throughput_text(const PlannedStep& step) {
  const double rate = step.tokens_per_second();
  if (step.ranks.ranks == 1) return fmt::format("{:.0f} tokens/s", rate);
  return fmt::format("{:.0f} tokens/s ({:.0f} a GPU)", step.ranks.ranks * rate, rate);
}

// "2.61 s a step, 6,280 tokens/s; 88.1% of the optimizer state in host memory, not 94.7%"
std::string other_text(const PlannedStep& step, const OtherPlan& other) {
  const double share = host_share(step.layout, other.plan.engine.placement.count(Owner::device));
  std::string text = fmt::format("with {}: {:.3g} s a step, {}", other.rates.what, other.plan.estimate->seconds(),
                                 rate_text(tokens_per_second(other.plan).value()));
  if (share != step.host_share)
    text +=
        fmt::format("; {:.1f}% of the optimizer state in host memory, not {:.1f}%", 100 * share, 100 * step.host_share);
  return text;
}

std::string gpus_text(const PlannedStep& step) {
  if (step.ranks.ranks == 1) return {};
  std::string text = fmt::format(" on each of {} GPUs", step.ranks.ranks);
  if (step.ranks.hosts() > 1) text += fmt::format(", {} a host", step.ranks.per_host);
  if (step.plan.shape.sequence > 1) text += fmt::format(", {} of which split each row", step.plan.shape.sequence);
  return text;
}

nlohmann::ordered_json ranks_to_json(const PlannedStep& step) {
  const StepEstimate& estimate = *step.plan.estimate;
  return {{"gpus", step.ranks.ranks},
          {"sequence_parallel_size", step.plan.shape.sequence},
          {"gpus_per_host", step.ranks.per_host},
          {"hosts", step.ranks.hosts()},
          {"memory_of_a_host", step.host.times(step.ranks.per_host).to_json()},
          {"fuller_memory", fuller_memory(step)},
          {"gathered_units", step.plan.engine.placement.gathered()},
          {"longest_work", longest_work(estimate).first},
          {"collective_seconds", estimate.collectives},
          {"collective_waiting_seconds", estimate.collective_waits},
          {"tokens_per_s", step.ranks.ranks * step.tokens_per_second()}};
}

nlohmann::ordered_json to_json(const std::vector<Alternative>& all) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  const auto chosen = std::find_if(all.begin(), all.end(), [](const Alternative& a) { return a.chosen; });
  for (const Alternative& a : all) {
    nlohmann::ordered_json one{{"what", a.what}, {"chosen", a.chosen}, {"step_seconds", a.seconds}};
    if (a.device_bytes > 0) {
      one["device_bytes"] = a.device_bytes;
      one["host_bytes"] = a.host_bytes;
    }
    one["fits"] = a.fits();
    if (!a.chosen) one["why_not"] = why_not(a, *chosen);
    list.push_back(std::move(one));
  }
  return list;
}

nlohmann::ordered_json hardware_to_json(const HardwareProfile& hardware) {
  nlohmann::ordered_json json{
      {"name", hardware.name}, {"source", hardware.source}, {"status", measured_status(hardware)}};
  if (hardware.measured) json["measured"] = *hardware.measured;
  return json;
}

nlohmann::ordered_json others_to_json(const PlannedStep& step) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const OtherPlan& other : step.others) {
    nlohmann::ordered_json rates;
    for (const auto& [name, value] : other.rates.rates) rates[name] = value;
    list.push_back({{"what", other.rates.what},
                    {"source", other.rates.source},
                    {"rates", rates},
                    {"step_seconds", other.plan.estimate->seconds()},
                    {"tokens_per_s", tokens_per_second(other.plan).value()},
                    {"host_share", host_share(step.layout, other.plan.engine.placement.count(Owner::device))}});
  }
  return list;
}

nlohmann::ordered_json to_json(std::optional<double> rate) {
  return rate ? nlohmann::ordered_json(*rate) : nlohmann::ordered_json();
}

nlohmann::ordered_json to_json(const std::vector<PlanChange>& changes) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const PlanChange& change : changes) {
    nlohmann::ordered_json options = nlohmann::ordered_json::object();
    for (const auto& [name, value] : change.options) options[name] = value;
    list.push_back({{"options", options}, {"text", change.text}, {"tokens_per_s", to_json(change.tokens_per_second)}});
  }
  return list;
}

nlohmann::ordered_json to_json(const LargerModel& larger) {
  return {{"model", larger.name},
          {"parameters", larger.parameters},
          {"fits", larger.tokens_per_second.has_value()},
          {"tokens_per_s", to_json(larger.tokens_per_second)},
          {"fits_with", to_json(larger.changes)}};
}

// "qwen3-32b, 32.8 B parameters, fits as it is: 1,692 tokens/s", or a line for each change with which it does.
std::vector<std::string> larger_lines(const LargerModel& larger) {
  const std::string name =
      fmt::format("{}, {:.3g} B parameters,", larger.name, static_cast<double>(larger.parameters) / 1e9);
  if (larger.tokens_per_second)
    return {fmt::format("{} fits as it is: {}", name, rate_text(*larger.tokens_per_second))};
  if (larger.changes.empty()) return {name + " does not fit this machine, whatever was changed of the options"};
  std::vector<std::string> lines;
  for (const PlanChange& change : larger.changes)
    lines.push_back(fmt::format("{} fits with {}", lines.empty() ? name : "it also", line_of(change)));
  return lines;
}

nlohmann::ordered_json to_json(const MemoryPlan& memory) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const MemoryPlan::Entry& entry : memory.entries)
    list.push_back({{"kind", name_of(entry.kind)},
                    {"name", entry.name},
                    {"bytes", entry.bytes},
                    {"always", entry.phases == every_phase}});
  return list;
}

// The placement's rows; units that follow one another with equal rows have one.
nlohmann::ordered_json to_json(const std::vector<UnitPlacement>& units) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (std::size_t from = 0, to = 0; from < units.size(); from = to + 1) {
    for (to = from; to + 1 < units.size() && units[to + 1] == units[from];) ++to;
    const UnitPlacement& row = units[from];
    list.push_back({{"from", from},
                    {"to", to},
                    {"owner", name_of(row.owner)},
                    {"weights", name_of(row.weights)},
                    {"gradients_moved", row.moved},
                    {"gradients_sliced", row.sliced},
                    {"input", name_of(row.input)}});
  }
  return list;
}

nlohmann::ordered_json to_object(const NamedParts& parts) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const auto& [name, seconds] : parts) object[name] = seconds;
  return object;
}

nlohmann::ordered_json rank_to_json(const PlannedStep& step) {
  const TrainingPlan& plan = step.plan;
  nlohmann::ordered_json waits, alternatives = nlohmann::ordered_json::object();
  for (std::size_t i = 0; i < wait_reasons; ++i)
    waits[std::string(name_of(static_cast<WaitReason>(i)))] = plan.estimate->waits[i];
  for (const auto& [choice, all] : plan.alternatives) alternatives[std::string(name_of(choice))] = to_json(all);
  return {{"model", step.origin},
          {"parameters", parameter_count(step.spec)},
          {"trained_parameters", step.layout.trained_parameter_elements()},
          {"hardware", hardware_to_json(step.hardware)},
          {"batch_size", step.options.batch_size},
          {"max_length", step.options.max_length},
          {"gradient_accumulation_steps", step.options.gradient_accumulation_steps},
          {"dtype", name_of(plan.decoder.formats.weights)},
          {"optimizer_state_dtype", name_of_moments(plan.engine.formats.moments)},
          {"host_share", step.host_share},
          {"units", plan.engine.placement.units.size()},
          {"device_units", plan.engine.placement.count(Owner::device)},
          {"spare_buckets", plan.engine.placement.spare_buckets},
          {"bucket_bytes", plan.engine.placement.bucket_elements * static_cast<std::int64_t>(sizeof(float))},
          {"update_over_link", plan.engine.placement.over_link},
          {"cast_side", plan.engine.placement.cast == CastSide::device ? "device" : "host"},
          {"transient_weights", plan.engine.placement.makes_from_masters(Owner::device)},
          {"host_masters_travel", plan.engine.placement.makes_from_masters(Owner::host)},
          {"transient_gradients", plan.engine.placement.moves()},
          {"streamed_units", plan.engine.placement.streamed()},
          {"keep", describe(plan.decoder.keep, plan.decoder.tile_rows)},
          {"placement", to_json(plan.engine.placement.units)},
          {"memory", to_json(plan.memory)},
          {"disk", {{"model_bytes", step.disk.model}, {"checkpoint_bytes", step.disk.checkpoint}}},
          {"device_memory", step.device.to_json()},
          {"host_memory", step.host.to_json()},
          {"expected",
           {{"step_seconds", plan.estimate->seconds()},
            {"waiting_seconds", plan.estimate->exposed},
            {"waiting_by_reason", waits},
            {"overlap_efficiency", plan.estimate->overlap().efficiency()},
            {"device_seconds", to_object(device_parts(plan.estimate->overlap()))},
            {"host_seconds", to_object(host_parts(plan.estimate->overlap()))},
            {"tokens_per_s", step.tokens_per_second()},
            {"model_tflops", step.model_tflops()},
            {"reference_tflops", step.reference_tflops()}}},
          {"other_rates", others_to_json(step)},
          {"quicker", to_json(step.quicker)},
          {"next_larger", step.larger ? to_json(*step.larger) : nlohmann::ordered_json()},
          {"reasons", plan.reasons},
          {"alternatives", alternatives}};
}

}  // namespace

std::string plan_answer(const PlannedStep& step, std::size_t columns) {
  const TrainingPlan& plan = step.plan;
  const bool several = step.ranks.ranks > 1;
  std::string text =
      fmt::format("it fits; expected: {:.3g} s a step, {}\n", plan.estimate->seconds(), throughput_text(step));
  const auto row = [&](std::string_view label, const std::string& what) {
    constexpr std::size_t column = 13;
    text += filled(what, columns, column).replace(0, label.size(), label);
  };
  row("model",
      fmt::format("{}: {}, {:.4g} B parameters, {}", step.origin, step.spec.architecture,
                  static_cast<double>(parameter_count(step.spec)) / 1e9, name_of(plan.decoder.formats.weights)));
  if (step.layout.has_frozen()) row("frozen", frozen_line(step.layout).substr(std::string_view("frozen: ").size()));
  row("hardware", fmt::format("{}: {}", step.hardware.name, measured_text(step.hardware)));
  row("step", fmt::format("{} x {} rows of at most {} tokens{}", step.options.gradient_accumulation_steps,
                          step.options.batch_size, step.options.max_length, gpus_text(step)));
  const std::size_t pinned = plan.memory.total(MemoryKind::pinned);
  if (step.hardware.one_memory) {
    row("memory", fmt::format("{}{}, which GPU and CPU share; {} of it the GPU's", step.host.text(),
                              several ? " for each" : "", format_bytes(step.device.planned)));
  } else {
    row("GPU memory", step.device.text() + (several ? " on each" : ""));
    row("host memory", fmt::format("{}, {} of it pinned", step.host.times(step.ranks.per_host).text(),
                                   format_bytes(pinned * static_cast<std::size_t>(step.ranks.per_host))));
  }
  row("disk", fmt::format("final model {}, a checkpoint {}", format_bytes(step.disk.model),
                          format_bytes(step.disk.checkpoint)));
  row("optimizer", "state " + state_text(step.host_share));
  const std::string kept = describe(plan.decoder.keep, plan.decoder.tile_rows);
  row("activations", kept == "all" ? "all kept" : "kept in part, the rest is recomputed in backward");
  for (const OtherPlan& other : step.others) row("other rates", other_text(step, other));
  for (const PlanChange& change : step.quicker) row("quicker", "with " + line_of(change));
  if (step.larger)
    for (const std::string& line : larger_lines(*step.larger)) row("larger", line);
  row("more", "--verbose, --explain CHOICE, --json");
  return text;
}

std::string plan_details(const PlannedStep& step, std::size_t columns) {
  const TrainingPlan& plan = step.plan;
  std::string text = "\nhardware\n" + filled(step.hardware.source, columns, 2);
  // No PCIe reaches this: the GPU and the processor share a package, and such machines need setting up.
  if (step.hardware.rates.link_to_device > 150e9)
    text += filled("superoffload doctor says there what to switch on (docs/superchips.md)", columns, 2);
  text += fmt::format("memory{}\n{}", step.ranks.ranks > 1 ? " of one rank" : "", plan.memory.table());
  for (const std::string& reason : plan.reasons) text += reason + '\n';
  constexpr int least_width = 20, most_width = 100;
  const int width = std::clamp(static_cast<int>(columns) - sketch_margin, least_width, most_width);
  text += fmt::format("timeline\n{}", sketch(step.timeline, width));
  text += fmt::format("throughput   {:.4g} model TFLOP/s, {:.4g} TFLOP/s by the reference count{}\n",
                      step.model_tflops(), step.reference_tflops(), step.ranks.ranks > 1 ? ", a GPU" : "");
  if (step.ranks.ranks > 1) text += limits_text(step);
  return wrapped(text, columns);
}

std::string plan_alternatives(const PlannedStep& step, std::size_t columns) {
  std::string text;
  for (const auto& [choice, all] : step.plan.alternatives)
    text += fmt::format("\n{}\n{}", name_of(choice), alternatives_table(all, columns));
  return wrapped(text, columns);
}

nlohmann::ordered_json to_json(const PlannedStep& step) {
  nlohmann::ordered_json json = rank_to_json(step);
  if (step.ranks.ranks > 1) json["ranks"] = ranks_to_json(step);
  return json;
}

}  // namespace so
