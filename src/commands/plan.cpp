// superoffload plan.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/standard_output.h"
#include "base/terminal.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/export.h"
#include "checkpoint/named_model.h"
#include "checkpoint/output_space.h"
#include "checkpoint/parameter_options.h"
#include "commands/command.h"
#include "commands/planned_step.h"
#include "commands/program/parse.h"
#include "device/backend.h"
#include "io/output_file.h"
#include "io/presets.h"
#include "io/trace_file.h"
#include "model/flops.h"
#include "model/parameters.h"
#include "model/sequence_split.h"
#include "offload/schedule/placement.h"
#include "plan/machine/hardware.h"
#include "plan/machine/rank_hardware.h"
#include "plan/machine/rate_cache.h"
#include "plan/memory/activation_memory.h"
#include "plan/refusal.h"
#include "plan/requested_engine.h"
#include "plan/row_step.h"
#include "plan/simulate/timeline.h"
#include "plan/training_plan.h"

namespace so {
namespace {

struct PlanOptions : HubOptions, StepOptions, ParameterOptions, DtypeOption, JsonOption, MessageOptions {
  PlanOptions() { max_length = 4096; }
  std::string model;              // a directory, a config.json or a preset
  std::string hardware = "h200";  // a file, or the key of a known machine
  int gpus = 1;
  int sequence_parallel_size = 1;
  std::optional<int> gpus_per_host;
  bool next_larger = false;
  PlanChoice explain = PlanChoice::none;
  std::optional<std::string> trace;
};

std::vector<std::string> keys_of(std::span<const Preset> presets) {
  std::vector<std::string> keys;
  for (const Preset& preset : presets) keys.emplace_back(preset.name);
  return keys;
}

OptionTable<PlanOptions> plan_table() {
  using namespace default_from;
  using O = PlanOptions;
  OptionTable<O> t;
  t.group("Model and step");
  t.add("model", &O::model, "Hugging Face model directory, a config.json, or a preset: " + names_of(model_presets()))
      .metavar("DIR|FILE|PRESET")
      .knows(keys_of(model_presets()))
      .required()
      .hub(HubUse::config)
      .elsewhere("config");
  t.take(hub_rows());
  t.borrow(step_rows(), train);
  t.row("batch_size").help = "Rows of a micro-batch";
  t.row("max_length").help = "Tokens a row";
  t.borrow(parameter_rows(), ours);
  t.borrow(dtype_rows(), ours);
  t.group("Machine");
  t.add("hardware", &O::hardware,
        "Hardware file, as superoffload profile writes it, or a known machine: " + names_of(hardware_presets()))
      .metavar("FILE|NAME")
      .knows(keys_of(hardware_presets()))
      .default_from(ours);
  t.add(
       "gpus", &O::gpus,
       "GPUs that share the run, a rank each. batch_size and gradient_accumulation_steps are a rank's. The hardware file "
       "has to say what the GPUs of one host share")
      .unit("GPUs")
      .at_least(1)
      .at_most(100'000)
      .default_from(ours);
  t.add("sequence_parallel_size", &O::sequence_parallel_size,
        "GPUs that split the tokens of each micro-batch among them; rows and micro-batches are then a group's")
      .unit("GPUs")
      .at_least(1)
      .at_most(100'000)
      .default_from(ours);
  t.add("gpus_per_host", &O::gpus_per_host, "GPUs of one host")
      .unit("GPUs")
      .at_least(1)
      .at_most(100'000)
      .or_else(-1, "as many as the largest host of the hardware file has, at most all")
      .default_from(ours);
  t.group("Result");
  t.add("next_larger", &O::next_larger,
        "Say too what the next larger preset would need on this machine, planned with the same options")
      .default_from(ours);
  t.add("explain", &O::explain,
        "One choice of the plan: what else there was, how long a step would take with it, and why it lost")
      .default_from(ours);
  t.add("trace", &O::trace, "Write a step as it is expected to be as a timeline for ui.perfetto.dev")
      .metavar("FILE")
      .default_from(ours);
  t.take(json_rows());
  t.group("Messages");
  t.take(message_rows());
  return t;
}

void check(PlanOptions& options, OptionOrigins& origins, int) {
  check_ranks({.gpus = options.gpus, .sequence_parallel_size = options.sequence_parallel_size});
  check_placement(options, origins, options.gpus);
  if (options.next_larger && (options.freeze || options.fp8))
    fail("--next_larger: --{} is of this model, and another may have no such tensors or sizes; leave out one of them",
         options.freeze ? "freeze" : "fp8");
  if (!is_open(options.explain, options.gpus))
    fail("--explain {}: with {} GPU{} there is nothing of it to choose; leave it out", name_of(options.explain),
         options.gpus, options.gpus == 1 ? "" : "s");
}

const Backend& backend_of(const HardwareProfile& hardware) {
  return hardware.one_memory ? shared_cuda_backend() : cuda_backend();
}

// The limits that the user gives go before those of the hardware.
PlanningMachine machine_of(const HardwareProfile& hardware, ThreadPool& pool, const MemoryCaps& caps) {
  PlanningMachine machine{.backend = &backend_of(hardware),
                          .name = hardware.name,
                          .device_limited_by = "what the hardware file says",
                          .host = {hardware.host_memory, "what the hardware file says"},
                          .fixed_memory = hardware.fixed_memory,
                          .pool = &pool,
                          .rates = [rates = hardware.rates] { return rates; },
                          .rates_origin = "by the hardware file"};
  if (!hardware.one_memory)
    machine.device_memory = machine.whole_device_memory = std::max(hardware.device_memory, caps.device.value_or(0));
  if (caps.host) enlarge_host(machine, *caps.host);
  apply(caps, machine);
  return machine;
}

// A step once steps repeat.
SimulatedTimeline timeline_of(const SimulatedRun& run) {
  Simulator simulator(run);
  simulator.settle();
  return simulator.timeline();
}

void print_plan(const PlannedStep& step, bool all) {
  const std::size_t columns = help_columns();
  fmt::print("{}{}{}", plan_answer(step, columns), plan_alternatives(step, columns),
             all ? plan_details(step, columns) : "");
}

RunRequest asked_request(const PlanOptions& options, const OptionOrigins& origins, DType dtype,
                         const RankHosts& ranks) {
  RunRequest request = run_request(options, origins, dtype);
  request.gpus = options.gpus;
  request.sequence_parallel_size = options.sequence_parallel_size;
  if (ranks.hosts() > 1) request.collectives = CollectiveRoute::nccl;  // copies go between the GPUs of one host
  return request;
}

// What --explain asks for; a program that reads the JSON gets it all.
std::vector<PlanChoice> explained(const PlanOptions& options) {
  if (options.explain != PlanChoice::none) return {options.explain};
  std::vector<PlanChoice> all;
  if (options.json)
    std::copy_if(plan_choices().begin(), plan_choices().end(), std::back_inserter(all),
                 [&](PlanChoice choice) { return is_open(choice, options.gpus); });
  return all;
}

// What a run is planned for.
struct PlannedFor {
  PlannedFor(const HardwareProfile& profile, const PlanOptions& options)
      : ranks(rank_hosts(profile, options.hardware, options.gpus, options.gpus_per_host)),
        hardware(part_of_rank(profile, ranks, options.sequence_parallel_size)),
        pool("planned", std::vector<int>(static_cast<std::size_t>(hardware.host_threads), 0), false) {
    caps = memory_caps(backend_of(hardware), options.device_memory, options.host_memory);
    if (caps.host) *caps.host /= static_cast<std::size_t>(ranks.per_host);
    machine = machine_of(hardware, pool, caps);
  }
  PlanQuestion question(const DecoderSpec& spec, const ParameterLayout& layout, const RunRequest& request) const {
    PlanQuestion question =
        make_question({spec, layout, machine, WeightOrigin::files, row_shape}, request, *find_command("plan")->rows);
    question.askable.host = hardware.fixed_memory
                                ? std::max(hardware.host_memory, caps.host.value_or(0))
                                : std::numeric_limits<std::size_t>::max();  // the machine need not be there
    question.host_ranks = ranks.per_host;
    return question;
  }

  const RankHosts ranks;
  const HardwareProfile hardware;
  ThreadPool pool;  // threads that are never started on anything: their number counts
  MemoryCaps caps;
  PlanningMachine machine;
};

using SizedPreset = std::pair<std::int64_t, std::string>;  // parameters, name

// All presets, ascending.
std::vector<SizedPreset> presets_by_size(Precision dtype) {
  std::vector<SizedPreset> presets;
  for (const Preset& preset : model_presets()) {
    std::string name(preset.name);
    const std::int64_t count = parameter_count(read_named_model(name, dtype).spec);
    presets.emplace_back(count, std::move(name));
  }
  std::sort(presets.begin(), presets.end());
  return presets;
}

// A preset in place of the model that the options are for, none of which is of that model alone.
struct PresetQuestion {
  PresetQuestion(const PlannedFor& planned, const PlanOptions& options, const OptionOrigins& origins,
                 const std::string& name)
      : model(read_named_model(name, options.dtype)),
        layout(make_parameters(model.spec)),
        question(planned.question(model.spec, layout, asked_request(options, origins, model.dtype, planned.ranks))) {}
  PresetQuestion(const PresetQuestion&) = delete;
  PresetQuestion& operator=(const PresetQuestion&) = delete;
  bool fits() const { return question.fits(question.asked)(question.asked.memory); }
  std::optional<double> rate() const { return tokens_per_second(question.plan(question.asked)); }

  const NamedModel model;
  const ParameterLayout layout;
  const PlanQuestion question;
};

// The largest preset below `parameters` that fits as the options ask.
std::optional<SmallerModel> smaller_preset(const PlannedFor& planned, const PlanOptions& options,
                                           const OptionOrigins& origins, std::int64_t parameters,
                                           const std::function<bool()>& in_time) {
  // Names are of this model, and sizes of another may be none for FP8.
  if (options.freeze || options.fp8) return std::nullopt;
  const auto presets = presets_by_size(options.dtype);
  for (auto preset = presets.rbegin(); preset != presets.rend(); ++preset) {
    if (preset->first >= parameters) continue;
    if (!in_time()) break;
    const PresetQuestion smaller(planned, options, origins, preset->second);
    if (!smaller.fits()) continue;
    SmallerModel found{preset->second, std::nullopt};
    if (in_time()) found.tokens_per_second = smaller.rate();
    return found;
  }
  return std::nullopt;
}

// The smallest preset that has a tenth more parameters.
SizedPreset next_larger_preset(Precision dtype, std::int64_t parameters) {
  for (const SizedPreset& preset : presets_by_size(dtype))
    if (preset.first * 10 >= parameters * 11) return preset;
  fail("--next_larger: no preset is larger; leave it out");
}

LargerModel plan_larger(const PlannedFor& planned, const PlanOptions& options, const OptionOrigins& origins,
                        const SizedPreset& preset) {
  const auto& [parameters, name] = preset;
  const PresetQuestion asked(planned, options, origins, name);
  LargerModel larger{name, parameters, std::nullopt, {}};
  if (asked.fits())
    larger.tokens_per_second = asked.rate();
  else
    larger.changes = find_changes(asked.question);
  return larger;
}

// A refusal says what is known of the machine, too.
TrainingPlan planned_or_refused(const PlanQuestion& question, const HardwareProfile& hardware) {
  try {
    state_or_refuse(question);
    return plan_or_refuse(question);
  } catch (const PlanRefusal&) {
    log_info("{}: {}", hardware.name, measured_text(hardware));
    throw;
  }
}

std::vector<OtherPlan> plan_other_rates(const HardwareProfile& profile, const PlanOptions& options,
                                        const PlanQuestion& asked, const DecoderSpec& spec,
                                        const ParameterLayout& layout) {
  std::vector<OtherPlan> others;
  for (const OtherRates& rates : profile.other_rates) {
    const PlannedFor planned(with_rates(profile, rates), options);
    RunRequest request = asked.asked;
    request.explain.clear();
    others.push_back({rates, planned.question(spec, layout, request).plan({request, {}})});
  }
  return others;
}

int run(const PlanOptions& options, const OptionOrigins& origins) {
  const NamedModel model = read_named_model(options.model, options.dtype);
  const ModelConfig& config = model.config;
  const DecoderSpec spec = requested_spec(model.spec, options, config.origin);
  require_rows(options.batch_size, options.max_length, spec, config.origin);
  std::optional<SizedPreset> larger;
  if (options.next_larger) larger = next_larger_preset(options.dtype, parameter_count(spec));
  if (options.trace) require_output_file(*options.trace, "--trace", is_own_trace);
  const HardwareProfile profile = resolve_hardware(options.hardware);
  const PlannedFor planned(profile, options);
  const auto& [ranks, hardware, pool, caps, machine] = planned;
  if (options.fp8 && !hardware.fp8)
    fail("--fp8: {} has no products in FP8 whose scales are of 128 elements, as its file has it; Hopper GPUs have",
         hardware.name);
  require_sequence_split(spec, options.sequence_parallel_size, config.origin);
  const ParameterLayout layout(make_parameters(spec, parameter_rules(options)));
  RunRequest request = asked_request(options, origins, model.dtype, ranks);
  request.explain = explained(options);
  PlanQuestion question = planned.question(spec, layout, request);
  question.smaller_model = [&](const std::function<bool()>& in_time) {
    return smaller_preset(planned, options, origins, parameter_count(spec), in_time);
  };

  PlannedStep step{options, config.origin, spec, layout, hardware, planned_or_refused(question, hardware)};
  step.ranks = ranks;
  const TrainingPlan& plan = step.plan;
  SO_CHECK(plan.estimate && plan.run, "a plan for a GPU without an estimate");
  step.others = plan_other_rates(profile, options, question, spec, layout);
  step.quicker = quicker_changes(question, plan);
  if (larger) step.larger = plan_larger(planned, options, origins, *larger);
  step.timeline = timeline_of(*plan.run);
  if (options.trace) write_trace_file(*options.trace, to_trace(step.timeline));
  // A rank's share of a micro-batch that its group splits.
  const double micro_batches = static_cast<double>(options.gradient_accumulation_steps) / plan.shape.sequence;
  step.tokens = static_cast<double>(plan.shape.micro_batch_tokens) * micro_batches;
  const std::vector<UnitBackward> backward = unit_backward(spec, layout);
  step.flops = model_flops(spec, row_offsets(options.batch_size, options.max_length), backward) * micro_batches;
  step.reference =
      reference_flops(spec, options.batch_size, options.max_length, all_recomputed(plan.decoder.keep), backward) *
      micro_batches;
  step.host_share = host_share(layout, plan.engine.placement.count(Owner::device));
  step.host = {plan.memory.host_total(*machine.backend),
               hardware.one_memory ? usable_host(machine).available : caps.host.value_or(hardware.host_memory)};
  step.device = {plan.memory.total(MemoryKind::device), machine.device_memory.value_or(step.host.available)};
  step.disk = saved_bytes(exported_bytes(layout, plan.engine.formats.exported), layout.trained_parameter_elements(),
                          plan.engine.formats, "");
  if (options.json)
    print_json(to_json(step).dump());
  else
    print_plan(step, options.verbose);
  return exit_ok;
}

const RegisteredCommand plan_command([] {
  return make_command<PlanOptions>(
      {.name = "plan",
       .position = 8,
       .summary = "what a training run would need and do, on any machine, without a GPU",
       .details =
           R"(Plans a step as train does, from a model's config and what is known of a machine: what the GPU and the
host would hold, who owns the optimizer state, what is recomputed, how long a step is expected to take,
who waits for whom, and a sketch of it in time. --explain says what else there was to choose and why it
lost. --gpus plans for several GPUs: what one of them and its host take, and what collectives cost. What
does not fit is refused with what is short and what would fit, each planned with its tokens/s. A step that
waits for the host says what would be quicker, --next_larger what the next larger model needs. Nothing is
allocated; weights are not needed.)",
       .examples = {"superoffload plan --model qwen3-14b",
                    "superoffload plan --model gpt-oss-20b --optimizer_state_dtype bf16 --hardware gh200 --json",
                    "superoffload plan --model qwen3-14b --explain split --trace expected.json",
                    "superoffload plan --model qwen3-14b --gpus 4",
                    "superoffload plan --model qwen3-14b --next_larger true"},
       .modes = {all_state_on_device("offload_optimizer", "none"), all_state_on_device("offload_ratio", "0")}},
      plan_table(), check, run);
});

}  // namespace
}  // namespace so
