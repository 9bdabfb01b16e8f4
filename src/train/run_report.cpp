#include "train/run_report.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "base/program_path.h"
#include "base/quantities.h"
#include "io/hub_cache.h"
#include "model/parameters.h"
#include "offload/schedule/placement.h"
#include "plan/memory/activation_memory.h"
#include "plan/plan_comparison.h"

namespace so {
namespace {

std::string counted(std::int64_t n, std::string_view thing) {
  return fmt::format("{} {}{}", n, thing, n == 1 ? "" : "s");
}

std::string parameters_text(std::int64_t parameters) {
  const auto n = static_cast<double>(parameters);
  return n >= 1e9 ? fmt::format("{:.4g} B", n / 1e9) : fmt::format("{:.4g} M", n / 1e6);
}

}  // namespace

std::string state_text(double host_share) {
  if (host_share >= 1) return "100% in host memory";
  if (host_share <= 0) return "100% in the GPU's memory";
  return fmt::format("{:.1f}% in host memory, the rest in the GPU's", 100 * host_share);
}

std::string model_line(const std::string& directory, const DecoderSpec& spec, DType dtype, const Device& device) {
  return fmt::format(
      "model: {}: {}, {} parameters, {} on {}", title_of_model(directory),
      spec.wrapper.empty() ? spec.architecture : fmt::format("{}, text model of {}", spec.architecture, spec.wrapper),
      parameters_text(parameter_count(spec)), name_of(dtype), device.name());
}

std::string plan_line(const StepOptions& options, const TrainingPlan& plan, const PlanningMachine& machine,
                      const ParameterLayout& layout, std::int64_t total_steps) {
  std::string line = fmt::format("plan: {} of {}{} x {}", counted(total_steps, "step"), ranks_text(plan.shape),
                                 options.gradient_accumulation_steps, counted(options.batch_size, "row"));
  if (machine.device_memory)  // else all memory is the host's
    line +=
        fmt::format("; optimizer state {}", state_text(host_share(layout, plan.engine.placement.count(Owner::device))));
  line += fmt::format("; activations kept: {}", describe(plan.decoder.keep, plan.decoder.tile_rows));
  if (const int streamed = plan.engine.placement.streamed(); streamed > 0)
    line += fmt::format("; weights of {} streamed from host memory", counted(streamed, "layer"));
  if (const int gathered = plan.engine.placement.gathered(); gathered > 0)
    line += fmt::format("; weights of {} gathered from all ranks", counted(gathered, "layer"));
  if (plan.estimate) line += fmt::format("; {:.3g} s a step expected", plan.estimate->seconds());
  return line;
}

std::string memory_line(const TrainingPlan& plan, const PlanningMachine& machine) {
  const bool shared = machine.backend->shares_memory();
  const std::string host =
      fmt::format("{}{} of {}{}", shared ? "" : "host ", format_bytes(plan.memory.host_total(*machine.backend)),
                  format_bytes(usable_host(machine).available), shared ? ", which GPU and CPU share" : "");
  if (!machine.device_memory) return "memory: " + host + (plan.shape.ranks > 1 ? " for each rank" : "");
  return fmt::format("memory: GPU {} of {}; {}", format_bytes(plan.memory.total(MemoryKind::device)),
                     format_bytes(*machine.device_memory), host);
}

std::string output_line(const LoopOptions& options) {
  std::string checkpoints = "a checkpoint at the end";
  if (options.save_strategy == Cadence::epoch)
    checkpoints = "checkpoints after each epoch and at the end";
  else if (options.save_strategy == Cadence::steps && options.save_steps)
    checkpoints = fmt::format("checkpoints every {} and at the end",
                              options.save_steps == 1 ? "step" : counted(*options.save_steps, "step"));
  if (options.save_only_model) checkpoints += ", of the model alone";
  if (options.save_total_limit) checkpoints += fmt::format(", the last {} kept", *options.save_total_limit);
  if (options.load_best_model_at_end)
    checkpoints += fmt::format("; the model is the best by {}", enum_name(options.metric_for_best_model));
  return fmt::format("output: {}; {}; details in {}", options.output_dir, checkpoints, run_log_file);
}

std::string figures_line(std::span<const PlannedFigure> figures) {
  std::string line;
  for (const PlannedFigure& figure : figures) line += (line.empty() ? "" : "; ") + describe(figure);
  return "measured: " + line;
}

RunFacts run_facts(const std::string& model, const TrainingPlan& plan, const Device& device, OptionsView options,
                   const OptionOrigins& origins, std::int64_t total_steps) {
  RunFacts facts;
  facts.program = SO_VERSION;
  facts.model = title_of_model(model);
  facts.device = device.name();
  facts.ranks = plan.shape.ranks;
  facts.total_steps = total_steps;
  facts.time = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  for (auto& [name, value, origin] : effective_settings(options, origins))
    facts.settings.push_back(
        {std::string(name), std::move(value), std::string(name_of(origin->origin)), origin->where, origin->overridden});
  facts.memory = memory_by_name(plan.memory);
  if (!plan.estimate) return facts;
  facts.step_seconds = plan.estimate->seconds();
  facts.overlap = record_of(plan.estimate->overlap());
  return facts;
}

OverlapRecord record_of(const StepOverlap& overlap, double steps) {
  OverlapRecord record{
      .efficiency = overlap.efficiency(), .device_seconds = device_parts(overlap), .host_seconds = host_parts(overlap)};
  for (NamedSeconds* parts : {&record.device_seconds, &record.host_seconds})
    for (auto& [name, seconds] : *parts) seconds /= steps;
  return record;
}

std::string overlap_line(const StepOverlap& overlap, double steps) {
  return fmt::format("overlap efficiency: {:.3f}; a step's {}", overlap.efficiency(), describe(overlap, steps));
}

std::string left_out_line(const StepFigures& figures) {
  return fmt::format(
      "figures of {} of {} steps: {} took more than half as long again for the work, as steps that load kernels do",
      figures.steps, figures.steps + figures.left_out, figures.left_out);
}

std::string trained_model_line(const std::string& directory, std::uint64_t weight_bytes, DType dtype) {
  return fmt::format("model: {} (a Hugging Face directory, {} of weights in {})", directory, format_bytes(weight_bytes),
                     name_of(dtype));
}

std::string next_lines(const std::string& directory, bool has_chat_template) {
  const std::string word = shell_word(directory);
  return fmt::format("next: superoffload {} --model {}{}\n      superoffload report {}",
                     has_chat_template ? "chat" : "generate", word, has_chat_template ? "" : " --prompt \"...\"", word);
}

}  // namespace so
