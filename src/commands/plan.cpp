// superoffload plan.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/quantities.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/export.h"
#include "commands/command.h"
#include "commands/support/named_model.h"
#include "commands/support/parameter_options.h"
#include "device/backend.h"
#include "io/output_file.h"
#include "io/presets.h"
#include "io/trace_file.h"
#include "model/flops.h"
#include "model/parameters.h"
#include "model/sequence_split.h"
#include "offload/schedule/owner_split.h"
#include "plan/machine/hardware.h"
#include "plan/machine/rank_hardware.h"
#include "plan/machine/rate_cache.h"
#include "plan/output_space.h"
#include "plan/refusal.h"
#include "plan/row_step.h"
#include "plan/simulate/timeline.h"
#include "plan/training_plan.h"

namespace so {
namespace {

struct PlanOptions : StepOptions, ParameterOptions, DtypeOption, JsonOption, MessageOptions {
  PlanOptions() { max_length = 4096; }
  std::string model;              // a directory, a config.json or a preset
  std::string hardware = "h200";  // a file, or the key of a known machine
  int gpus = 1;
  int sequence_parallel_size = 1;
  std::optional<int> gpus_per_host;
  PlanChoice explain = PlanChoice::none;
  std::optional<std::string> trace;
};

OptionTable<PlanOptions> plan_table() {
  using namespace default_from;
  using O = PlanOptions;
  OptionTable<O> t;
  t.group("Model and step");
  t.add("model", &O::model, "Hugging Face model directory, a config.json, or a preset: " + names_of(model_presets()))
      .metavar("DIR|FILE|PRESET")
      .required()
      .elsewhere("config");
  t.borrow(step_rows(), train);
  t.row("batch_size").help = "Rows of a micro-batch";
  t.row("max_length").help = "Tokens a row";
  t.borrow(parameter_rows(), ours);
  t.borrow(dtype_rows(), ours);
  t.group("Machine");
  t.add("hardware", &O::hardware,
        "Hardware file, as superoffload profile writes it, or a known machine: " + names_of(hardware_presets()))
      .metavar("FILE|NAME")
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
  if (!is_open(options.explain, options.gpus))
    fail("--explain {}: with {} GPU{} there is nothing of it to choose; leave it out", name_of(options.explain),
         options.gpus, options.gpus == 1 ? "" : "s");
}

// The limits that the user gives go before those of the hardware.
PlanningMachine machine_of(const HardwareProfile& hardware, ThreadPool& pool, const MemoryCaps& caps) {
  PlanningMachine machine{.backend = &cuda_backend(),
                          .name = hardware.name,
                          .device_memory = hardware.device_memory,
                          .device_limited_by = "what the hardware file says",
                          .host = {hardware.host_memory, "what the hardware file says"},
                          .pool = &pool,
                          .rates = [rates = hardware.rates] { return rates; },
                          .rates_origin = "by the hardware file"};
  if (caps.device) machine.device_memory = std::max(hardware.device_memory, *caps.device);
  if (caps.host) machine.host.available = std::max(hardware.host_memory, *caps.host);
  apply(caps, machine);
  return machine;
}

struct Budget {
  std::size_t planned = 0, available = 0;
  double share() const { return static_cast<double>(planned) / static_cast<double>(available); }
  Budget times(int ranks) const {
    return {planned * static_cast<std::size_t>(ranks), available * static_cast<std::size_t>(ranks)};
  }
  std::string text() const {
    return fmt::format("{} of {} ({:.0f}%)", format_bytes(planned), format_bytes(available), 100 * share());
  }
  nlohmann::ordered_json to_json() const { return {{"planned_bytes", planned}, {"available_bytes", available}}; }
};

// A step once steps repeat.
SimulatedTimeline timeline_of(const SimulatedRun& run) {
  Simulator simulator(run);
  simulator.settle();
  return simulator.timeline();
}

// The plan, and what follows from it. Memory, tokens and FLOPs are those of one rank.
struct PlannedStep {
  double tokens_per_second() const { return tokens / plan.estimate->seconds(); }
  double model_tflops() const { return flops / plan.estimate->seconds() / 1e12; }
  double reference_tflops() const { return reference / plan.estimate->seconds() / 1e12; }

  const PlanOptions& options;
  const ModelConfig& config;
  const DecoderSpec& spec;
  const ParameterLayout& layout;
  const HardwareProfile& hardware;
  TrainingPlan plan;
  SimulatedTimeline timeline;
  double tokens = 0, flops = 0, reference = 0;  // of a step; FLOPs of the model, and by the reference count
  double host_share = 0;
  Budget device, host;
  SavedBytes disk;
  RankHosts ranks;
};

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

nlohmann::ordered_json ranks_to_json(const PlannedStep& step) {
  const StepEstimate& estimate = *step.plan.estimate;
  return {{"gpus", step.ranks.ranks},
          {"sequence_parallel_size", step.plan.shape.sequence},
          {"gpus_per_host", step.ranks.per_host},
          {"hosts", step.ranks.hosts()},
          {"memory_of_a_host", step.host.times(step.ranks.per_host).to_json()},
          {"fuller_memory", fuller_memory(step)},
          {"gathered_units", step.plan.engine.gathered},
          {"longest_work", longest_work(estimate).first},
          {"collective_seconds", estimate.collectives},
          {"collective_waiting_seconds", estimate.collective_waits},
          {"tokens_per_s", step.ranks.ranks * step.tokens_per_second()}};
}

void print_ranks(const PlannedStep& step) {
  const auto [work, seconds] = longest_work(*step.plan.estimate);
  const std::string_view what = work == "device"       ? "the GPU"
                                : work == "host_adamw" ? "AdamW on the host"
                                                       : "collectives";
  fmt::print("limits          memory: the {}'s, on every rank alike; step: {}, {:.3f} of {:.3f} s\n",
             fuller_memory(step), what, seconds, step.plan.estimate->seconds());
  fmt::print("collectives     {:.4f} s a step; the GPU waits {:.4f} s for them, {:.1f}% of the step\n",
             step.plan.estimate->collectives, step.plan.estimate->collective_waits,
             100 * step.plan.estimate->collective_waits / step.plan.estimate->seconds());
  fmt::print("all GPUs        {:.0f} tokens/s (predicted; docs/performance/ranks.md has what was measured)\n",
             step.ranks.ranks * step.tokens_per_second());
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

nlohmann::ordered_json to_json(const MemoryPlan& memory) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const MemoryPlan::Entry& entry : memory.entries)
    list.push_back({{"kind", name_of(entry.kind)},
                    {"name", entry.name},
                    {"bytes", entry.bytes},
                    {"always", entry.phases == every_phase}});
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
  return {{"model", step.config.origin},
          {"parameters", parameter_count(step.spec)},
          {"trained_parameters", step.layout.trained_parameter_elements()},
          {"hardware", {{"name", step.hardware.name}, {"source", step.hardware.source}}},
          {"batch_size", step.options.batch_size},
          {"max_length", step.options.max_length},
          {"gradient_accumulation_steps", step.options.gradient_accumulation_steps},
          {"dtype", name_of(plan.decoder.formats.weights)},
          {"optimizer_state_dtype", name_of(plan.engine.formats.moments)},
          {"host_share", step.host_share},
          {"device_units", plan.engine.device_units},
          {"undo_buckets", plan.engine.undo_buckets},
          {"bucket_bytes", plan.engine.bucket_elements * static_cast<std::int64_t>(sizeof(float))},
          {"update_over_link", plan.engine.update_over_link},
          {"late_embedding", plan.engine.late_embedding},
          {"cast_side", plan.engine.cast == CastSide::device ? "device" : "host"},
          {"transient_weights", plan.engine.device_weights == ResidencyKind::from_masters},
          {"host_masters_travel", plan.engine.host_weights == ResidencyKind::from_masters},
          {"transient_gradients", plan.engine.host_gradients == GradientResidency::moved},
          {"streamed_units", plan.engine.streamed_units},
          {"keep", describe(plan.decoder.keep, plan.decoder.tile_rows)},
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
          {"reasons", plan.reasons},
          {"alternatives", alternatives}};
}

nlohmann::ordered_json to_json(const PlannedStep& step) {
  nlohmann::ordered_json json = rank_to_json(step);
  if (step.ranks.ranks > 1) json["ranks"] = ranks_to_json(step);
  return json;
}

void print(const PlannedStep& step) {
  const PlanOptions& options = step.options;
  const TrainingPlan& plan = step.plan;
  fmt::print("model           {}: {}, {:.4g} billion parameters, {}\n", step.config.origin, step.spec.architecture,
             static_cast<double>(parameter_count(step.spec)) / 1e9, name_of(plan.decoder.formats.weights));
  if (const std::string line = frozen_line(step.layout); !line.empty()) fmt::print("{}\n", line);
  fmt::print("hardware        {}: {}\n", step.hardware.name, step.hardware.source);
  // No PCIe reaches this: the GPU and the processor share a package, and such machines need setting up.
  if (step.hardware.rates.link_to_device > 150e9)
    fmt::print("                superoffload doctor says there what to switch on (docs/superchips.md)\n");
  fmt::print("step            {} x {} rows of at most {} tokens\n", options.gradient_accumulation_steps,
             options.batch_size, options.max_length);
  const bool several = step.ranks.ranks > 1;
  if (several)
    fmt::print("ranks           {} GPUs{}{}; the step and the memory below are one rank's\n", step.ranks.ranks,
               step.ranks.hosts() == 1
                   ? " of one host"
                   : fmt::format(", {} on each of {} hosts", step.ranks.per_host, step.ranks.hosts()),
               plan.shape.sequence == 1 ? "" : fmt::format(", {} of which split each row", plan.shape.sequence));
  fmt::print("memory\n{}", plan.memory.table());
  fmt::print("device memory   {}\nhost memory     {}\n", step.device.text(), step.host.text());
  if (several) fmt::print("of a host       {}\n", step.host.times(step.ranks.per_host).text());
  fmt::print("disk            final model {}, a checkpoint {}\n", format_bytes(step.disk.model),
             format_bytes(step.disk.checkpoint));
  for (const std::string& reason : plan.reasons) fmt::print("{}\n", reason);
  for (const auto& [choice, all] : plan.alternatives) fmt::print("{}\n{}", name_of(choice), alternatives_table(all));
  fmt::print("timeline\n{}", sketch(step.timeline));
  fmt::print("throughput      {:.0f} tokens/s{}, {:.4g} model TFLOP/s, {:.4g} TFLOP/s by the reference count\n",
             step.tokens_per_second(), several ? " a GPU" : "", step.model_tflops(), step.reference_tflops());
  if (several) print_ranks(step);
}

// With what --explain asks for; a program that reads the JSON gets it all.
RunRequest explained_request(const PlanOptions& options, const OptionOrigins& origins, DType dtype) {
  RunRequest request = run_request(options, origins, dtype);
  request.gpus = options.gpus;
  request.sequence_parallel_size = options.sequence_parallel_size;
  if (options.explain != PlanChoice::none)
    request.explain = {options.explain};
  else if (options.json)
    std::copy_if(plan_choices().begin(), plan_choices().end(), std::back_inserter(request.explain),
                 [&](PlanChoice choice) { return is_open(choice, options.gpus); });
  return request;
}

int run(const PlanOptions& options, const OptionOrigins& origins) {
  const NamedModel model = read_named_model(options.model, options.dtype);
  const ModelConfig& config = model.config;
  const DecoderSpec& spec = model.spec;
  require_rows(options.batch_size, options.max_length, spec, config.origin);
  if (options.trace) require_output_file(*options.trace, "--trace", is_own_trace);
  const HardwareProfile profile = resolve_hardware(options.hardware);
  const RankHosts ranks = rank_hosts(profile, options.hardware, options.gpus, options.gpus_per_host);
  require_sequence_split(spec, options.sequence_parallel_size, config.origin);
  const HardwareProfile hardware = part_of_rank(profile, ranks, options.sequence_parallel_size);
  const ParameterLayout layout(make_parameters(spec, parameter_rules(options)));
  // Threads that are never started on anything: their number counts.
  ThreadPool pool("planned", std::vector<int>(static_cast<std::size_t>(hardware.host_threads), 0), false);
  MemoryCaps caps = memory_caps(cuda_backend(), options.device_memory, options.host_memory);
  if (caps.host) *caps.host /= static_cast<std::size_t>(ranks.per_host);
  const PlanningMachine machine = machine_of(hardware, pool, caps);
  RunRequest request = explained_request(options, origins, model.dtype);
  if (ranks.hosts() > 1) request.collectives = CollectiveRoute::nccl;  // copies go between the GPUs of one host
  PlanQuestion question =
      make_question({spec, layout, machine, WeightOrigin::files, row_shape}, request, *find_command("plan")->rows);
  // The machine need not be there, so it may be asked for any other.
  question.askable = {std::numeric_limits<std::size_t>::max(), std::numeric_limits<std::size_t>::max()};
  question.host_ranks = ranks.per_host;
  state_or_refuse(question);

  PlannedStep step{options, config, spec, layout, hardware, plan_or_refuse(question)};
  step.ranks = ranks;
  const TrainingPlan& plan = step.plan;
  SO_CHECK(plan.estimate && plan.run, "a plan for a GPU without an estimate");
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
  step.host_share = host_share(layout, plan.engine.owners());
  step.device = {plan.memory.total(MemoryKind::device), *machine.device_memory};
  step.host = {plan.memory.host_total(cuda_backend()), caps.host.value_or(hardware.host_memory)};
  step.disk = saved_bytes(exported_bytes(layout, plan.engine.formats.exported), layout.trained_parameter_elements(),
                          plan.engine.formats.exported, "");
  if (options.json)
    fmt::print("{}\n", to_json(step).dump());
  else
    print(step);
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
does not fit is refused with what is short. Nothing is allocated; weights are not needed.)",
       .examples = {"superoffload plan --model qwen3-14b",
                    "superoffload plan --model gpt-oss-20b --optimizer_state_dtype bf16 --hardware gh200 --json",
                    "superoffload plan --model qwen3-14b --explain split --trace expected.json",
                    "superoffload plan --model qwen3-14b --gpus 4"},
       .modes = {all_state_on_device("offload_optimizer", "none"), all_state_on_device("offload_ratio", "0")}},
      plan_table(), check, run);
});

}  // namespace
}  // namespace so
