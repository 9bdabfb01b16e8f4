#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/run_log.h"
#include "base/units.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/directory_checks.h"
#include "checkpoint/export.h"
#include "checkpoint/output_directory.h"
#include "checkpoint/run_length.h"
#include "commands/command.h"
#include "data/dataset.h"
#include "data/model_encoder.h"
#include "device/backend.h"
#include "io/atomic_directory.h"
#include "io/output_file.h"
#include "io/temporary_cache.h"
#include "io/trace_file.h"
#include "model/compute_dtype.h"
#include "model/flops.h"
#include "model/parameters.h"
#include "options/deepspeed_config.h"
#include "options/run_request.h"
#include "plan/data_shape.h"
#include "plan/disk_plan.h"
#include "plan/machine/rate_cache.h"
#include "plan/plan_comparison.h"
#include "plan/plan_review.h"
#include "plan/refusal.h"
#include "plan/row_step.h"
#include "train/run_report.h"
#include "train/trainer.h"

namespace so {
namespace {

void complete(TrainOptions& options, OptionOrigins& origins, int ranks) {
  if (options.deepspeed_config) apply_deepspeed_config(*options.deepspeed_config, ranks, options, origins);
  check_train_options(options, origins);
  if (!options.pin_memory)
    fail("{} is false: host memory that a GPU reads and writes is always page-locked; set it to true or remove it",
         origins.of("pin_memory").where);
}

// Whether the directory holds the model of a run that has done all its steps, with nothing left to write.
bool is_finished(const std::filesystem::path& output, std::int64_t step, std::int64_t total_steps) {
  return step >= total_steps && has_metrics_line(output, step, "summary") && has_weight_files(output);
}

int run(const TrainOptions& given, const OptionOrigins& origins) {
  TrainOptions options = given;
  if (!options.dry_run) begin_run_log();
  if (options.dry_run && !options.quiet) set_log_level(LogLevel::detail);  // the details are what it is for
  const std::string config_file = (std::filesystem::path(options.model) / "config.json").string();

  // Refusals come first, the cheap ones before the dear ones; nothing is written until the run is known to be possible.
  if (options.trace) require_output_file(*options.trace, "--trace", is_own_trace, false, options.output_dir);
  const DecoderSpec spec = read_spec(options.model);
  options.max_length = resolve_max_length(given.max_length, origins.given("max_length"), spec, given.model);
  if (options.max_length != given.max_length) log_info("max_length is {}, the model's limit", options.max_length);
  const DType compute = compute_dtype(asked_dtype(options.dtype), read_text_file(config_file, 16 << 20), config_file);
  options.dtype = compute == DType::bf16 ? Precision::bf16 : Precision::fp32;
  Runtime runtime(options.device, resolve_cpu_threads(options, static_cast<int>(usable_cpus().size())));
  log_info("{}", model_line(options.model, spec, compute, runtime.device()));
  const RunRequest request = run_request(options, origins, compute);
  const MemoryCaps caps = memory_caps(backend_of(runtime.device()), options.device_memory, options.host_memory);
  const DType moments = moments_dtype(options.optimizer_state_dtype);
  const ParameterLayout layout(make_parameters(spec));
  const auto ask = [&](const PlanningMachine& machine, std::function<TrainingShape(const PlanKnobs&)> shape) {
    PlanQuestion question =
        make_question({spec, layout, machine, WeightOrigin::files, std::move(shape)}, request, train_option_table());
    question.results_fixed = options.resume.has_value();
    return question;
  };
  {
    const PlanningMachine machine = planning_machine(runtime, compute, moments, caps);
    state_or_refuse(
        ask(machine, [&](const PlanKnobs& knobs) { return largest_shape(knobs, options.eval_data.has_value()); }));
  }
  OutputDirectory output(options, origins);
  std::optional<ModelFiles> model;
  if (!options.dry_run || has_weight_files(options.model))
    model.emplace(options.model);
  else
    log_info("{} has no weights: planning by its config.json", options.model);
  const ModelEncoder encoder(options.model, spec.vocab, special_tokens(options.parse_special_tokens));

  // Where the cache is if it can be nowhere else: never in the output directory, which holds what people publish.
  TemporaryCache temporary;
  const std::string cache_dir = options.cache_dir.value_or("");
  const auto open = [&](const std::string& file, const char* name) {
    return open_dataset(
        {file, {options.max_length, options.train_on_prompt}, cache_dir, temporary.if_needed(cache_dir), name}, encoder,
        runtime.host_pool());
  };
  const TokenDataset data = open(options.data, "data");
  std::optional<TokenDataset> evaluation;
  if (options.eval_data) evaluation.emplace(open(*options.eval_data, "evaluation data"));
  temporary.remove();  // what was opened is mapped, and nothing is left whatever ends the run

  BatchOptions batch_options;
  batch_options.batch_size = options.batch_size;
  batch_options.gradient_accumulation_steps = options.gradient_accumulation_steps;
  batch_options.packing = options.packing;
  batch_options.max_length = options.max_length;
  batch_options.shuffle = options.shuffle;
  batch_options.seed = static_cast<std::uint64_t>(options.seed);
  BatchIterator batches(data, batch_options);

  Device& device = runtime.device();
  MemoryMeter memory(device);
  const DataShape shape(data, evaluation ? &*evaluation : nullptr, batch_options, options.max_steps,
                        options.num_train_epochs);
  PlanningMachine machine = planning_machine(runtime, compute, moments, caps);
  use_cached_rates(machine, runtime, compute, moments,
                   {.fresh = options.profile == ProfileUse::fresh, .keep = !options.dry_run});
  const auto shape_of = [&](const PlanKnobs& knobs) { return shape.of(knobs); };
  const TrainingPlan plan = plan_or_refuse(ask(machine, shape_of));
  memory.forget_peaks();
  std::optional<PlanReview> review;
  if (plan.estimate)
    review.emplace(plan, layout,
                   [&, held = resident_bytes()](const MachineRates& rates, const PlanReview::Wanted& wanted) {
                     PlanningMachine same = machine;
                     same.rates = [rates] { return rates; };
                     same.held = held;
                     PlanQuestion other = ask(same, shape_of);
                     other.asked.offload_ratio = wanted.ratio;
                     other.asked.streamed_layers = wanted.streamed_layers;
                     return other.plan(other.asked);
                   });
  plan.log_reasons();

  const std::optional<Checkpoint> checkpoint = output.checkpoint();
  std::optional<TrainerState> state;
  if (checkpoint) {
    const ResumeCheck check(checkpoint->path);
    check.require_whole_state();
    state = read_trainer_state(checkpoint->path / trainer_state_file);
    output.require_same_run(*state, data.key());
    check.require_whole();
  }
  const RunLength length = run_length(options, batches, state ? &*state : nullptr,
                                      checkpoint ? (checkpoint->path / trainer_state_file).string() : std::string());
  const std::int64_t total_steps = length.steps;
  if (state && is_finished(options.output_dir, state->step, total_steps)) {
    log_info("{} holds the finished run: {} of {} steps; raise --max_steps or --num_train_epochs to train on",
             options.output_dir, state->step, total_steps);
    return exit_ok;
  }
  if (options.trace) {
    const std::int64_t steps = total_steps - (state ? state->step : 0), needed = Trainer::steps_before_trace + 1;
    if (steps < needed) fail("--trace begins with the third step, and this run has {}; raise --max_steps", steps);
  }
  const std::uint64_t export_bytes = model ? exported_bytes(*model, compute) : exported_bytes(layout, compute);
  const DiskPlan disk = disk_plan(options, saved_bytes(export_bytes, parameter_count(spec), compute, options.model),
                                  state ? state->step : 0, total_steps);
  if (!options.bench_steps) disk.require(options.output_dir);
  if (options.dry_run)
    output.require_usable(export_bytes);
  else
    output.prepare(export_bytes);
  if (!options.dry_run) open_run_log(std::filesystem::path(options.output_dir) / run_log_file);

  log_info("{}", plan_line(options, plan, layout, total_steps));
  log_info("{}", memory_line(plan, machine));
  log_info("{}", output_line(options));
  if (!options.bench_steps) log_info("{}", disk.line(free_space(options.output_dir)));
  log_detail("{}", settings_log(train_option_table().view(options), origins));
  log_detail("memory plan:\n{}  in all {}", plan.memory.table(),
             format_bytes(plan.memory.host_total(backend_of(device))));

  if (options.dry_run) {
    if (length.extended_from) log_info("{}", length.extension_text(options.lr_scheduler));
    if (checkpoint) log_info("would go on from {} at step {}", checkpoint->path.string(), state->step);
    log_info("dry run: it fits; nothing was trained");
    return exit_ok;
  }

  device.limit_memory(plan.limits);
  Trainer trainer({options, to_json(train_option_table().view(options)), runtime, *model, plan, data,
                   evaluation ? &*evaluation : nullptr, batches, length, output, review ? &*review : nullptr});
  if (checkpoint) {
    trainer.resume(checkpoint->path, *state);
    log_info("resumed from {} at step {}", checkpoint->path.string(), state->step);
    if (length.extended_from) log_info("{}", length.extension_text(options.lr_scheduler));
  } else {
    trainer.start();
  }
  const Trainer::Outcome outcome = trainer.run();
  const std::vector<PlannedFigure> figures = compare_with_plan(plan, device, memory, trainer.seconds());
  trainer.record_summary(figures);
  log_info("{}", figures_line(figures));
  if (outcome == Trainer::Outcome::finished)
    log_info("{}", trained_model_line(options.output_dir, export_bytes, compute));
  if (!trainer.how_to_resume().empty()) log_info("{}", trainer.how_to_resume());
  if (outcome == Trainer::Outcome::diverged) return exit_failure;
  if (outcome == Trainer::Outcome::interrupted) return exit_interrupted;
  return trainer.incomplete() ? exit_failure : exit_ok;
}

const RegisteredCommand registered([] {
  return make_command<TrainOptions>(
      {.name = "train",
       .position = 1,
       .summary = "fine-tune all parameters of a model",
       .details =
           R"(Fine-tunes all parameters of a Hugging Face model directory on records in Alpaca, plain-text or
tokenised form and writes a Hugging Face model directory. Optimizer state (fp32 weights and both Adam
moments) lives in host memory, where the CPU updates it, and, as far as that is faster and fits, in GPU
memory, updated by the GPU; run.log says the split and why. --offload_ratio or --offload_optimizer none
ask for another one.

--mode superoffload ("super_offload": true in a DeepSpeed file) runs AdamW on the CPU while the GPU
computes, zerooffload after backward. Results are the same.

--dry_run says what a run would do and need, or why it cannot run, and trains nothing.)",
       .examples = {"superoffload train --model Qwen3-0.6B --data alpaca.json --output_dir out",
                    "superoffload train --model Qwen3-0.6B --data alpaca.json --output_dir out --resume",
                    "superoffload train --model Qwen3-14B --data alpaca.json --output_dir out --deepspeed_config "
                    "ds_config.json \\",
                    "    --max_length 4096 --lr 1e-5 --activation_checkpointing",
                    "superoffload train --model Qwen3-14B --data alpaca.json --output_dir bench --warmup_steps 5 "
                    "--bench_steps 20"},
       .modes =
           {{"offload_optimizer",
             "none",
             "all optimizer state is the device's",
             {"streamed_layers", "mode", "cast_side"}},
            {"device",
             "cpu",
             "nothing is measured, and the CPU device has no memory of its own (--host_memory limits the run's)",
             {"profile", "device_memory"}},
            {"bench_steps", "", "nothing is saved or evaluated", {"save_steps", "save_total_limit", "eval_steps"}}}},
      train_option_table(), complete, run);
});

}  // namespace
}  // namespace so
