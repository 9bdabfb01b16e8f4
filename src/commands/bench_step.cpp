// superoffload bench step.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "commands/commands.h"
#include "commands/parse.h"
#include "commands/random_model.h"
#include "device/trace_summary.h"
#include "io/output_file.h"
#include "io/presets.h"
#include "io/trace_file.h"
#include "model/config.h"
#include "model/model_on_device.h"
#include "model/parameters.h"
#include "offload/engine_report.h"
#include "options/precision.h"
#include "plan/machine/hardware.h"
#include "plan/machine/measure.h"
#include "plan/plan_changes.h"
#include "plan/plan_comparison.h"
#include "plan/row_step.h"
#include "plan/training_plan.h"
#include "ranks/communicator.h"
#include "train/training_step.h"

namespace so {
namespace {

// What steps are measured with: the state that a step meets, and what else is asked of it.
class BenchState {
 public:
  virtual ~BenchState() = default;
  virtual StepState& of_step() = 0;
  virtual void randomize(const DecoderSpec& spec, Ops& ops, Stream& stream) = 0;
  // Work that follows on `stream` comes after all of the last step's.
  virtual void require_updates(Stream&) {}
  virtual EngineCounters counters() const { return {}; }
};

// Weights and gradients only, both in the compute dtype: no step changes anything.
class PlainState final : public BenchState, private StepState, private GradientSink {
 public:
  PlainState(Device& device, const ParameterLayout& layout, DType compute)
      : layout_(layout),
        weights_(device, layout, compute),
        gradients_(device.allocate(MemoryKind::device, static_cast<std::size_t>(layout.elements()) * size_of(compute),
                                   "gradients")),
        written_(static_cast<std::size_t>(layout.count()), false) {}

  StepState& of_step() override { return *this; }
  void randomize(const DecoderSpec& spec, Ops& ops, Stream& stream) override {
    so::randomize(weights_, spec, layout_, ops, stream);
  }

 private:
  WeightSource& weights() override { return weights_; }
  GradientSink& gradients() override { return *this; }
  void begin_last_micro_batch(double, std::int64_t) override {}
  Verdict finish_step(Stream&) override {
    written_.assign(written_.size(), false);
    return {};
  }

  void require_gradients(int, Stream&) override {}
  Target gradient(int first, int count) override {
    const auto begin = written_.begin() + first;
    const Target target{layout_.view(gradients_.data(), weights_.dtype(), first, count),
                        *begin ? Accumulate::add : Accumulate::overwrite};
    std::fill_n(begin, count, true);
    return target;
  }
  void gradients_ready(int, Stream&) override {}

  const ParameterLayout& layout_;
  DeviceWeights weights_;
  Buffer gradients_;
  std::vector<bool> written_;
};

// The engine, as training has it.
class EngineBench final : public BenchState {
 public:
  EngineBench(Device& device, Ops& ops, ThreadPool& host_pool, const ParameterLayout& layout,
              const EngineSettings& settings)
      : pool_(host_pool),
        ranks_(make_single_communicator()),
        engine_(device, ops, host_pool, *ranks_, layout, settings),
        state_(engine_) {}

  StepState& of_step() override { return state_; }
  void randomize(const DecoderSpec& spec, Ops&, Stream& stream) override {
    so::randomize(engine_, spec, pool_, stream);
  }
  void require_updates(Stream& stream) override { engine_.require_updates(stream); }
  EngineCounters counters() const override { return engine_.counters(); }

 private:
  ThreadPool& pool_;
  std::unique_ptr<Communicator> ranks_;
  OffloadEngine engine_;
  EngineState state_;
};

// plan_training() without an engine.
TrainingPlan plan_plain(const DecoderSpec& spec, const ParameterLayout& layout, const PlanningMachine& machine,
                        const TrainingShape& shape, DType compute, Toggle activation_checkpointing) {
  TrainingPlan plan;
  plan.shape = shape;
  plan.decoder.compute = compute;
  plan.decoder.loss_chunk_rows = 1;  // as yet; it takes no memory but among the activations
  {
    const auto device = make_dry_device(machine.kind);
    const auto ops = make_ops(*device);
    const PlainState state(*device, layout, compute);
    const auto stream = device->create_stream("compute");
    const ModelOnDevice model(*device, *ops, *stream, spec, layout, plan.decoder, model_shape(plan.shape));
    plan.memory.add(device->ledger());
  }
  add_libraries(plan.memory, machine.kind, machine.pool->size());
  plan_activations(spec, layout, machine, activation_checkpointing,
                   "use a smaller --batch_size or --max_length, a smaller model, or a GPU with more memory", plan);
  return plan;
}

TrainingPlan make_plan(const BenchStepOptions& options, const DecoderSpec& spec, const ParameterLayout& layout,
                       Runtime& runtime, DType compute) {
  const auto shape_of = [](const PlanKnobs& knobs) {
    TrainingShape shape;
    shape.micro_batch_tokens = knobs.batch_size * knobs.max_length;
    shape.longest_document = knobs.max_length;
    shape.micro_batches = knobs.gradient_accumulation_steps;
    return shape;
  };
  const MemoryCaps caps = memory_caps(runtime.device().kind(), options.device_memory, options.host_memory);
  PlanKnobs asked = knobs_of(options);
  if (options.no_optimizer) {
    // There is nothing to change of it.
    asked.optimizer_state_dtype = StatePrecision::bf16;
    asked.offload_optimizer = OptimizerDevice::cpu;
    asked.offload_ratio = -1;
    asked.streamed_layers = -1;
  }
  EngineSettings engine = engine_as_in_train(compute, options.bucket_size, options.optimizer_state_dtype);
  engine.gradients = choose_gradient_dtype(compute, options.gradient_accumulation_steps);
  engine.max_grad_norm = options.max_grad_norm;
  const PlanningMachine machine = planning_machine(runtime, compute, engine.moments, caps);
  PlanQuestion question = make_question(
      {spec, layout, machine, engine, options.mode, options.cast_side, true, WeightOrigin::random, shape_of}, asked,
      bench_step_option_table());
  if (options.no_optimizer) {
    question.plan = [&](const PlanKnobs& knobs) {
      return plan_plain(spec, layout, with_memory(machine, knobs.memory), shape_of(knobs), compute,
                        knobs.activation_checkpointing);
    };
    question.fits = {};
  }
  return plan_or_refuse(question);
}

struct Measured {
  EngineCounters counters;      // of the timed steps
  std::vector<double> seconds;  // of each step, in order
  StepResult last;              // each step does the same work
  double first_loss = 0;
  std::vector<PlannedFigure> figures;
  std::optional<TimeSummary> time;
  std::vector<std::string> remarks;  // of the trace

  double median_step() const { return median(seconds); }
};

Measured measure(const BenchStepOptions& options, const DecoderSpec& spec, const ParameterLayout& layout,
                 Runtime& runtime, Stream& stream, const TrainingPlan& plan) {
  Device& device = runtime.device();
  const MemoryMeter memory(device);

  std::unique_ptr<BenchState> state;
  if (options.no_optimizer)
    state = std::make_unique<PlainState>(device, layout, plan.decoder.compute);
  else
    state = std::make_unique<EngineBench>(device, runtime.ops(), runtime.host_pool(), layout, plan.engine);
  state->randomize(spec, runtime.ops(), stream);
  ModelOnDevice model(device, runtime.ops(), stream, spec, layout, plan.decoder, model_shape(plan.shape));
  model.make_arena(plan.activation_bytes);
  RepeatedBatch batches(random_batch(spec, options.batch_size, options.max_length, 2),
                        options.gradient_accumulation_steps);
  TrainingStep training(spec, model, state->of_step(), batches, stream, all_recomputed(plan.decoder.keep));

  Measured result;
  std::int64_t updates = 0;
  const auto step = [&] {
    constexpr double lr = 1e-6;
    result.last = training.run(lr, updates + 1);
    const double loss = result.last.loss;
    if (!result.last.verdict.finite || !std::isfinite(loss))
      fail("the step was not finite (loss {}); measuring it would say nothing", loss);
    if (updates++ == 0) result.first_loss = loss;
    return result.last.seconds;
  };
  for (std::int64_t i = 0; i < options.warmup; ++i) {
    const double seconds = step();
    log_info("warm-up step {}: {:.4f} s, loss {:.4f}", i + 1, seconds, result.last.loss);
  }
  const EngineCounters before = state->counters();
  EngineCounters last = before;
  for (std::int64_t i = 0; i < options.steps; ++i) {
    result.seconds.push_back(step());
    const EngineCounters now = state->counters();
    log_info("step {}: {:.4f} s{}", i + 1, result.seconds.back(),
             options.no_optimizer ? "" : fmt::format(", {:.4f} s of it waiting", total(since(now, last).device_waits)));
    last = now;
  }
  result.counters = since(state->counters(), before);
  result.figures = compare_with_plan(plan, device, memory, seconds_of(result.seconds, result.counters));

  if (!options.breakdown) return result;
  // Last, since recording may slow what comes after it. Weights may still be on their way: they belong to no trace.
  state->require_updates(stream);
  stream.synchronize();
  // Two steps: the first begins with nothing under way, and hides its last updates under the second.
  TraceSession session(device);
  step();
  step();
  const Trace trace = session.stop();
  result.remarks = trace.remarks;
  const TimeSummary time = summarize(trace);
  if (!time.kernels.empty()) result.time = time;
  if (!options.trace.empty()) write_trace_file(options.trace, trace);
  return result;
}

}  // namespace

int run_bench_step(const BenchStepOptions& options) {
  const ModelConfig config = resolve_config(options.config);
  const DecoderSpec spec = read_decoder_spec(config.text, config.origin);
  const DType compute = resolve_dtype(options.dtype, config.text, config.origin);
  require_rows(options.batch_size, options.max_length, spec, config.origin);
  if (!options.trace.empty()) require_output_file(options.trace, "--trace", is_own_trace);
  const ParameterLayout layout(make_parameters(spec));
  check_cpu_threads(options.cpu_threads, static_cast<int>(usable_cpus().size()));
  Runtime runtime(options.device, options.cpu_threads);
  Device& device = runtime.device();
  const TrainingPlan plan = make_plan(options, spec, layout, runtime, compute);
  plan.log_reasons();
  const char* optimizer = options.no_optimizer                                ? "none"
                          : options.offload_optimizer == OptimizerDevice::cpu ? "cpu"
                                                                              : "device";
  log_info("{}, {:.4g} billion parameters, {} on {}; {} x {} x {} tokens a step; activations kept: {}; optimizer: {}",
           config.origin, static_cast<double>(parameter_count(spec)) / 1e9, name_of(compute), device.name(),
           options.gradient_accumulation_steps, options.batch_size, options.max_length, describe(plan.decoder.keep),
           optimizer);
  const double host_owned = options.no_optimizer ? 0 : host_share(layout, plan.engine.device_units);
  log_detail("memory plan:\n{}", plan.memory.table());

  // One stream for all, as the ops want it.
  const auto stream = device.create_stream("compute");
  const double gemm_rate = measure_gemm_rate(device, runtime.ops(), *stream, compute);
  device.limit_memory(plan.limits);  // measuring is over
  const Measured m = measure(options, spec, layout, runtime, *stream, plan);

  const double seconds = m.median_step(), tokens = static_cast<double>(m.last.plan.tokens),
               model_rate = m.last.model_flops / seconds, reference_rate = m.last.reference_flops / seconds;
  const auto [least, most] = std::minmax_element(m.seconds.begin(), m.seconds.end());

  if (options.json) {
    nlohmann::ordered_json result{
        {"config", config.origin},
        {"parameters", parameter_count(spec)},
        {"device", device.name()},
        {"dtype", name_of(compute)},
        {"batch_size", options.batch_size},
        {"max_length", options.max_length},
        {"gradient_accumulation_steps", options.gradient_accumulation_steps},
        {"optimizer", optimizer},
        {"mode", options.no_optimizer ? "none" : to_string(bench_step_option_table().view(options).get("mode"))},
        {"optimizer_state_dtype", options.no_optimizer ? "none" : name_of(plan.engine.moments)},
        {"host_share", host_owned},
        {"undo_buckets", plan.engine.undo_buckets},
        {"keep", describe(plan.decoder.keep)},
        {"steps", options.steps},
        {"step_seconds", {{"median", seconds}, {"min", *least}, {"max", *most}, {"all", m.seconds}}},
        {"tokens_per_s", tokens / seconds},
        {"model_tflops", model_rate / 1e12},
        {"reference_tflops", reference_rate / 1e12},
        {"gemm_tflops", gemm_rate / 1e12},
        {"share_of_gemm_limit", model_rate / gemm_rate},
        {"device_units", plan.engine.device_units},
        {"transient_weights", plan.engine.transient_weights},
        {"transient_gradients", plan.engine.transient_gradients},
        {"streamed_units", plan.engine.streamed_units},
        {"first_loss", m.first_loss},
        {"last_loss", m.last.loss},
        {"clipped_steps", m.counters.clipped_steps},
        {"device_wait_seconds_a_step", total(m.counters.device_waits) / static_cast<double>(options.steps)}};
    for (std::size_t i = 0; i < wait_reasons; ++i)
      result["device_waits"][std::string(name_of(static_cast<WaitReason>(i)))] =
          m.counters.device_waits[i] / static_cast<double>(options.steps);
    if (plan.estimate) {
      result["expected"] = {{"step_seconds", plan.estimate->seconds()}, {"waiting_seconds", plan.estimate->exposed}};
      for (const auto& [name, rate] : rate_names()) result["rates"][name] = plan.rates.*rate;
    }
    for (const PlannedFigure& f : m.figures)
      result["summary"][f.name] = {{"planned", f.planned}, {"measured", f.measured}, {"difference", f.difference()}};
    if (m.time) {
      nlohmann::ordered_json categories, kernels = nlohmann::ordered_json::array();
      for (int i = 0; i < time_categories; ++i) {
        const auto& c = m.time->categories[static_cast<std::size_t>(i)];
        categories[std::string(name_of(static_cast<TimeCategory>(i)))] = {
            {"share", c.share}, {"busy_seconds", c.busy_seconds}, {"count", c.count}, {"bytes", c.bytes}};
      }
      for (const auto& kernel : m.time->kernels)
        kernels.push_back({{"name", kernel.name},
                           {"category", name_of(kernel.category)},
                           {"seconds", kernel.seconds},
                           {"count", kernel.count}});
      result["time"] = {
          {"traced_seconds", m.time->seconds}, {"traced_steps", 2}, {"categories", categories}, {"kernels", kernels}};
    }
    result["trace_remarks"] = m.remarks;
    fmt::print("{}\n", result.dump());
    return exit_ok;
  }
  fmt::print("step            {:.4f} s (median of {}; {:.4f} to {:.4f})\n", seconds, options.steps, *least, *most);
  if (plan.estimate)
    fmt::print("expected        {:.4f} s, {:.4f} s of it waiting for the host\n", plan.estimate->seconds(),
               plan.estimate->exposed);
  fmt::print("throughput      {:.1f} tokens/s\n", tokens / seconds);
  fmt::print("model           {:.4g} TFLOP/s, {:.1f}% of the {:.4g} TFLOP/s of a large matrix product here\n",
             model_rate / 1e12, 100 * model_rate / gemm_rate, gemm_rate / 1e12);
  fmt::print("reference count {:.4g} TFLOP/s\n", reference_rate / 1e12);
  for (const PlannedFigure& figure : m.figures)
    if (figure.name != "step_seconds") fmt::print("peak {}\n", describe(figure));
  if (!options.no_optimizer) {
    const double waited = total(m.counters.device_waits) / static_cast<double>(options.steps);
    fmt::print("device waits    {:.4f} s a step, {:.1f}% of it\n", waited, 100 * waited / seconds);
    fmt::print("in {} steps, {} of them clipped: {}\n", options.steps, m.counters.clipped_steps,
               describe_waits(m.counters));
    if (const std::string schedule = describe_schedule(m.counters); !schedule.empty()) fmt::print("{}\n", schedule);
  }
  fmt::print("loss            {:.4f} to {:.4f}\n", m.first_loss, m.last.loss);
  if (m.time)
    fmt::print("where the time of two more steps went ({:.4f} s while traced):\n{}", m.time->seconds,
               time_table(*m.time, 12));
  for (const std::string& remark : m.remarks) fmt::print("{}\n", remark);
  if (!options.trace.empty()) fmt::print("wrote {}\n", options.trace);
  return exit_ok;
}

namespace {

ParsedCommand finish(const std::vector<std::pair<std::string, std::string>>& values, int) {
  BenchStepOptions options;
  OptionOrigins origins;
  assign_values(bench_step_option_table().ref(options), origins, values);
  check_options(options, origins);
  return {std::move(options), std::move(origins)};
}

}  // namespace

const Command& bench_step_command() {
  static const Command command{
      "bench step",
      "time training steps of a model with random weights",
      "Makes random weights and tokens on the device, runs training "
      "steps, and prints the step time, tokens/s, TFLOP/s beside\n"
      "the rate of a large matrix product in the same process, peak "
      "memory beside the plan, and where the time of a step went.\n"
      "TFLOP/s count the model's own work: recomputation does not count. What does not fit is refused.",
      {"superoffload bench step --config qwen3-4b --batch_size 4 --max_length 4096",
       "superoffload bench step --config llama-3.1-8b --no_optimizer --trace step.json --json"},
      &bench_step_option_table(),
      finish};
  return command;
}

}  // namespace so
