// superoffload bench step.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "base/quantities.h"
#include "base/standard_output.h"
#include "checkpoint/named_model.h"
#include "checkpoint/parameter_options.h"
#include "commands/bench/bench_state.h"
#include "commands/bench/bench_step_report.h"
#include "commands/bench/random_model.h"
#include "commands/command.h"
#include "commands/program/rank_work.h"
#include "commands/shared_rows.h"
#include "device/trace_summary.h"
#include "device/wait_on_exit.h"
#include "io/output_file.h"
#include "io/trace_file.h"
#include "model/fp8_layers.h"
#include "model/model_on_device.h"
#include "model/parameters.h"
#include "offload/engine_report.h"
#include "offload/schedule/placement.h"
#include "plan/machine/hardware.h"
#include "plan/machine/measure.h"
#include "plan/machine/rank_rates.h"
#include "plan/machine/rank_share.h"
#include "plan/measure_units.h"
#include "plan/memory/training_shape.h"
#include "plan/plan_comparison.h"
#include "plan/refusal.h"
#include "plan/requested_engine.h"
#include "plan/row_step.h"
#include "plan/training_placement.h"
#include "plan/training_plan.h"
#include "ranks/communicator.h"
#include "ranks/together.h"
#include "train/training_step.h"

namespace so {
namespace {

struct BenchStepOptions : StepOptions,
                          ParameterOptions,
                          ClipOption,
                          JsonOption,
                          ComputeOptions,
                          RankOptions,
                          MessageOptions {
  BenchStepOptions() { max_length = 4096; }
  std::string config;  // a config.json, a directory that has one, or a preset's name
  std::int64_t steps = 5;
  std::int64_t warmup = 2;
  bool no_optimizer = false;  // forward and backward only
  bool breakdown = true;
  std::optional<std::string> trace;
};

OptionTable<BenchStepOptions> bench_step_table() {
  using namespace default_from;
  using O = BenchStepOptions;
  OptionTable<O> t;
  t.group("Model and step");
  add_config_row(t, &O::config).required();
  t.borrow(step_rows(), train);
  t.row("batch_size").help = "Rows of random tokens a micro-batch";
  t.row("max_length").help = "Tokens a row";
  t.add("no_optimizer", &O::no_optimizer, "Forward and backward only: no optimizer state, no update")
      .default_from(ours);
  t.borrow(parameter_rows(), ours);
  t.borrow(clip_rows(), train);
  t.row("max_grad_norm").help += "; a large one clips rarely, a small one always";
  t.group("Measurement");
  t.add("steps", &O::steps, "Measured steps").unit("steps").at_least(1).at_most(1e6).default_from(ours);
  t.add("warmup", &O::warmup, "Steps before them").unit("steps").at_least(0).at_most(1e6).default_from(ours);
  t.add("breakdown", &O::breakdown, "Trace two more steps and say where their time went").default_from(ours);
  t.add("trace", &O::trace, "Write a timeline of two more steps for ui.perfetto.dev")
      .metavar("FILE")
      .default_from(ours);
  t.take(json_rows());
  add_machine_and_messages(t);
  return t;
}

void check(BenchStepOptions& options, OptionOrigins& origins, int launched) {
  complete_ranks(options, origins, launched);
  if (!options.no_optimizer) {  // a mode that has no use for any of it
    check_ranks(options);
    check_placement(options, origins, options.gpus);
  }
  if (options.gpus > 1 && options.no_optimizer)
    fail(
        "--no_optimizer: there is no optimizer, so that the {} ranks of --gpus would have nothing to do together; "
        "measure one rank",
        options.gpus);
}

// plan_training() without an engine.
TrainingPlan plan_plain(const DecoderSpec& spec, const ParameterLayout& layout, const PlanningMachine& machine,
                        const TrainingShape& shape, const NumberFormats& formats, const StepOptions& options) {
  TrainingPlan plan;
  plan.shape = shape;
  plan.decoder.formats = formats;
  plan.decoder.any_order = in_any_order(*machine.backend, options.deterministic);
  plan.decoder.loss_chunk_rows = 1;  // as yet; it takes no memory but among the activations
  {
    const auto device = make_dry_device(*machine.backend);
    const auto ops = make_ops(*device);
    const auto state = make_plain_state(*device, layout, formats);
    const auto stream = device->create_stream("compute");
    const ModelOnDevice model(*device, *ops, *stream, spec, layout, plan.decoder, model_shape(plan.shape));
    plan.memory.add(device->ledger());
  }
  add_libraries(plan.memory, *machine.backend, formats.activations, machine.pool->size());
  plan_activations(spec, layout, machine, options.activation_checkpointing,
                   "use a smaller --batch_size or --max_length, a smaller model, or a GPU with more memory", plan);
  return plan;
}

TrainingPlan make_plan(const BenchStepOptions& options, const OptionOrigins& origins, const DecoderSpec& spec,
                       const ParameterLayout& layout, Runtime& runtime, Communicator& ranks, const RankSeat& seat,
                       DType dtype) {
  const MemoryCaps caps = memory_caps(backend_of(runtime.device()), options.device_memory, options.host_memory);
  RunRequest request = run_request(options, origins, dtype);
  request.collectives = seat.collectives;
  const NumberFormats formats = number_formats(request);
  // Without an optimizer there is nothing to change of it.
  if (options.no_optimizer) request.optimizer_state_dtype = StatePrecision::bf16;
  PlanningMachine machine = planning_machine(runtime, formats, caps, ranks.place().local_size);
  share_machine(ranks, machine, seat.gpu_ranks);
  if (ranks.size() > 1)
    use_rates_of_ranks(machine, runtime, formats, {.fresh = true, .keep = false}, ranks, seat.collectives);
  if (!options.no_optimizer)
    machine.unit_factors =
        measure_units(machine, runtime, spec, formats, row_shape({request, caps}), !request.deterministic, ranks);
  PlanQuestion question = make_question({spec, layout, machine, WeightOrigin::random, row_shape}, request,
                                        *find_command("bench step")->rows);
  question.host_ranks = ranks.place().local_size;
  if (options.no_optimizer) {
    NumberFormats plain = model_formats(dtype);
    plain.gradients = dtype;  // whatever is added up: nothing reads them
    question.plan = [&, plain](const PlanKnobs& knobs) {
      return plan_plain(spec, layout, with_memory(machine, knobs.memory), row_shape(knobs), plain, knobs);
    };
    question.fits = {};
  }
  TrainingPlan plan;
  together(ranks, [&] { plan = plan_or_refuse(question); });
  RankFacts facts = option_facts(OptionsView(*find_command("bench step")->rows, &options));
  facts.emplace_back("the parameters of the model", std::to_string(layout.elements()));
  facts.emplace_back("the layers' kept activations", describe(plan.decoder.keep, plan.decoder.tile_rows));
  facts.emplace_back("the layers whose weights are gathered", std::to_string(plan.engine.placement.gathered()));
  require_same_run(ranks, facts);
  return plan;
}

StepMeasurement measure(const BenchStepOptions& options, const DecoderSpec& spec, const ParameterLayout& layout,
                        Runtime& runtime, Communicator& ranks, const SequenceGroups& groups, Stream& stream,
                        const TrainingPlan& plan) {
  Device& device = runtime.device();
  const MemoryMeter memory(device);

  const auto state = options.no_optimizer ? make_plain_state(device, layout, plan.decoder.formats)
                                          : make_engine_state(runtime, ranks, layout, plan.engine);
  state->randomize(spec, runtime.ops(), stream);
  ModelOnDevice model(device, runtime.ops(), stream, spec, layout, plan.decoder, model_shape(plan.shape),
                      groups.exchange.get());
  model.make_arena(plan.activation_bytes);
  const std::uint64_t seed = 2 + static_cast<std::uint64_t>(groups.group);
  RepeatedBatch batches(random_batch(spec, options.batch_size, options.max_length, seed),
                        options.gradient_accumulation_steps, groups.groups, groups.place);
  TrainingStep training(spec, layout, model, state->of_step(), ranks, batches, stream,
                        all_recomputed(plan.decoder.keep));
  const WaitOnExit idle(stream);  // a step returns while the device's last updates are still under way

  StepMeasurement result;
  std::int64_t updates = 0;
  const auto step = [&] {
    constexpr double lr = 1e-6;
    result.last = training.run(lr, updates + 1);
    const double loss = result.last.loss;
    if (!result.last.verdict.finite || !std::isfinite(loss))
      fail_on_all(fmt::format("the step was not finite (loss {}); measuring it would say nothing", loss));
    if (updates++ == 0) result.first_loss = loss;
    return result.last.seconds;
  };
  for (std::int64_t i = 0; i < options.warmup; ++i) {
    const double seconds = step();
    log_info("warm-up step {}: {:.4f} s, loss {:.4f}", i + 1, seconds, result.last.loss);
  }
  std::vector<MeasuredStep> timed;
  const EngineCounters before = state->of_step().counters();
  for (std::int64_t i = 0; i < options.steps; ++i) {
    result.seconds.push_back(step());
    const StepOverlap overlap = overlap_of(result.last.counters);
    timed.push_back({.overlap = overlap, .model_flops = result.last.model_flops});
    log_info("step {}: {:.4f} s{}", i + 1, result.seconds.back(),
             options.no_optimizer ? "" : fmt::format(", overlap efficiency {:.3f}", overlap.efficiency()));
  }
  result.counters = since(state->of_step().counters(), before);
  result.steps = figures_of(timed);
  result.figures = compare_with_plan(plan, device, memory, result.steps);

  if (!options.breakdown) return result;
  // Last, since recording may slow what comes after it. Weights may still be on their way: they belong to no trace.
  state->require_updates(stream);
  stream.synchronize();
  // Two steps: the first begins with nothing under way, and hides its last updates under the second.
  const bool traces = ranks.rank() == 0;
  std::optional<TraceSession> session;
  if (traces) session.emplace(device);
  step();
  step();
  stream.synchronize();  // the second one's last updates belong to the trace
  if (!traces) return result;
  const Trace trace = session->stop();
  result.remarks = trace.remarks;
  const TimeSummary time = summarize(trace);
  if (!time.kernels.empty()) result.time = time;
  if (options.trace) write_trace_file(*options.trace, trace);
  return result;
}

// Brings every rank's measurements to all ranks.
std::vector<RankSteps> gather_steps(const BenchStepOptions& options, Communicator& ranks, const StepMeasurement& m,
                                    double gemm_rate) {
  RankSteps own;
  own.seconds = median(m.seconds);
  own.tokens = static_cast<double>(m.last.plan.tokens) / ranks.size();
  own.waiting = m.steps.of_a_step(total(m.steps.sum.overlap.device_idle));
  if (!options.no_optimizer) own.efficiency = m.steps.sum.overlap.efficiency();
  own.host_bytes = static_cast<double>(peak_resident_bytes());
  own.gemm_rate = gemm_rate;
  own.host = ranks.place().host;
  std::vector<RankSteps> all(static_cast<std::size_t>(ranks.size()));
  const std::vector<std::int64_t> one_each(all.size(), 1);
  ranks.all_gather(std::span<const RankSteps>(&own, 1), one_each, std::span(all));
  return all;
}

// Returns the rate that the device reaches in large products, of which `share` is in FP8.
double products_rate(Device& device, Ops& ops, Stream& stream, DType dtype, double share) {
  const double rate = measure_gemm_rate(device, ops, stream, dtype);
  return share > 0 ? 1 / (share / measure_fp8_rate(device, ops, stream) + (1 - share) / rate) : rate;
}

int run_bench_step(const BenchStepOptions& options, const OptionOrigins& origins, Communicator& ranks) {
  const NamedModel model = read_named_model(options.config, options.dtype);
  const ModelConfig& config = model.config;
  const DecoderSpec spec = requested_spec(model.spec, options, config.origin);
  require_rows(options.batch_size, options.max_length, spec, config.origin);
  if (options.trace && ranks.rank() == 0) require_output_file(*options.trace, "--trace", is_own_trace);
  const ParameterLayout layout(make_parameters(spec, parameter_rules(options)));
  const RankSeat seat = take_seat(ranks, options.device, options);
  check_cpu_threads(options, seat.cpus);
  Runtime runtime(seat.device, rank_threads(ranks, seat, options.cpu_threads.value_or(0)), seat.gpu, seat.own_cpus);
  Device& device = runtime.device();
  const SequenceGroups groups =
      sequence_groups(ranks, device, options.sequence_parallel_size, seat.collectives, spec, config.origin);
  const TrainingPlan plan = make_plan(options, origins, spec, layout, runtime, ranks, seat, model.dtype);
  plan.log_reasons();
  const char* optimizer = options.no_optimizer                                ? "none"
                          : options.offload_optimizer == OptimizerDevice::cpu ? "cpu"
                                                                              : "device";
  log_info("{}, {:.4g} billion parameters, {} on {}; {}{} x {} x {} tokens a step; activations kept: {}; optimizer: {}",
           config.origin, static_cast<double>(parameter_count(spec)) / 1e9, name_of(model.dtype), device.name(),
           ranks_text(plan.shape), options.gradient_accumulation_steps, options.batch_size, options.max_length,
           describe(plan.decoder.keep, plan.decoder.tile_rows), optimizer);
  const std::string frozen = frozen_line(layout);
  if (!frozen.empty()) log_info("{}", frozen);
  const double host_owned = options.no_optimizer ? 0 : host_share(layout, plan.engine.placement.count(Owner::device));
  log_detail("memory plan:\n{}", plan.memory.table());

  // One stream for all, as the ops want it.
  const auto stream = device.create_stream("compute");
  ranks.barrier();  // all measure at once
  const double in_fp8 = fp8_share(spec, usual_documents(plan.shape));
  const double gemm_rate = products_rate(device, runtime.ops(), *stream, model.dtype, in_fp8);
  device.limit_memory(plan.limits);  // measuring is over
  const StepMeasurement m = measure(options, spec, layout, runtime, ranks, groups, *stream, plan);

  const StepReport report{.config = config.origin,
                          .parameters = parameter_count(spec),
                          .trained_parameters = layout.trained_parameter_elements(),
                          .frozen = frozen,
                          .device = device.name(),
                          .dtype = model.dtype,
                          .batch_size = options.batch_size,
                          .max_length = options.max_length,
                          .gradient_accumulation_steps = options.gradient_accumulation_steps,
                          .optimizer = optimizer,
                          .mode = std::string(enum_name(options.mode)),
                          .host_share = host_owned,
                          .fp8_share = in_fp8,
                          .trace = options.trace.value_or(""),
                          .ranks = gather_steps(options, ranks, m, gemm_rate),
                          .plan = plan,
                          .measured = m};
  if (ranks.rank() > 0) return exit_ok;
  if (options.json)
    print_json(to_json(report).dump());
  else
    print(report);
  return exit_ok;
}

const RegisteredCommand bench_step_command([] {
  return make_rank_command<BenchStepOptions>(
      {.name = "bench step",
       .position = 13,
       .summary = "time training steps of a model with random weights",
       .details =
           R"(Makes random weights and tokens on the device, runs training steps, and prints the step time, tokens/s,
TFLOP/s beside the rate of a large matrix product in the same process, peak memory beside the plan, and
where the time of a step went. TFLOP/s count the model's own work: recomputation does not count, nor what
--freeze leaves out. What does not fit is refused. With several ranks tokens/s and TFLOP/s are those of
all, a line each says what the ranks measured, and the rest is rank 0's.)",
       .examples =
           {"superoffload bench step --config qwen3-4b --batch_size 4 --max_length 4096",
            "superoffload bench step --config llama-3.1-8b --no_optimizer --trace step.json --json",
            "superoffload bench step --config qwen3-4b --freeze \"model.embed_tokens.*,model.layers.[0-9].*\"",
            "superoffload bench step --config qwen3-0.6b --device cpu --gpus 2 --batch_size 1 --max_length 128"},
       .modes = {{"no_optimizer",
                  "true",
                  "there is no optimizer",
                  {"offload_optimizer", "offload_ratio", "streamed_layers", "gathered_layers", "mode", "cast_side",
                   "update_over_link", "move_gradients", "bucket_size", "max_grad_norm", "optimizer_state_dtype",
                   "gpus", "sequence_parallel_size", "bind_cores_to_rank", "collectives"}},
                 {"device", "cpu", "the memory of its ranks is the host's", {"collectives"}},
                 all_state_on_device("offload_optimizer", "none"),
                 one_rank(),
                 all_state_on_device("offload_ratio", "0"),
                 {"breakdown", "false", "no steps are traced", {"trace"}}}},
      bench_step_table(), check, run_bench_step);
});

}  // namespace
}  // namespace so
