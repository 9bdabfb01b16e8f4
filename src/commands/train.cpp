#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <system_error>

#include "base/build_facts.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/quantities.h"
#include "base/result_line.h"
#include "base/run_log.h"
#include "base/standard_streams.h"
#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/directory_checks.h"
#include "checkpoint/directory_dtype.h"
#include "checkpoint/export.h"
#include "checkpoint/output_directory.h"
#include "checkpoint/output_space.h"
#include "checkpoint/parameter_options.h"
#include "checkpoint/resume_point.h"
#include "checkpoint/run_length.h"
#include "checkpoint/source_model.h"
#include "commands/command.h"
#include "commands/program/rank_work.h"
#include "data/chat/chat_template.h"
#include "data/data_files.h"
#include "data/dataset.h"
#include "data/document_mix.h"
#include "data/model_encoder.h"
#include "device/backend.h"
#include "io/atomic_directory.h"
#include "io/output_file.h"
#include "io/temporary_cache.h"
#include "io/trace_file.h"
#include "model/flops.h"
#include "model/parameters.h"
#include "options/deepspeed_config.h"
#include "options/run_request.h"
#include "plan/data_shape.h"
#include "plan/machine/rank_rates.h"
#include "plan/machine/rank_share.h"
#include "plan/measure_units.h"
#include "plan/memory/activation_memory.h"
#include "plan/plan_comparison.h"
#include "plan/refusal.h"
#include "plan/requested_engine.h"
#include "plan/row_step.h"
#include "ranks/together.h"
#include "train/run_report.h"
#include "train/sample_request.h"
#include "train/trainer.h"

namespace so {
namespace {

void complete(TrainOptions& options, OptionOrigins& origins, int launched) {
  complete_ranks(options, origins, launched);
  if (options.deepspeed_config) apply_deepspeed_config(*options.deepspeed_config, options.gpus, options, origins);
  resolve_warmup(options, origins);
  check_train_options(options, origins);
  if (!options.pin_memory)
    fail("{} is false: host memory that a GPU reads and writes is always page-locked; set it to true or remove it",
         origins.of("pin_memory").where);
}

// Only a length that was given asks for positions; our default shrinks to the model's limit.
RopeRequest rope_request(const TrainOptions& options, const OptionOrigins& origins) {
  return {options.rope_scaling, options.rope_factor, origins.given("max_length") ? options.max_length : 0};
}

// Sets what the model decides where it was not asked for.
TrainOptions resolve_by_model(TrainOptions options, const OptionOrigins& origins, const DecoderSpec& spec) {
  const std::int64_t given = options.max_length;
  options.max_length = resolve_max_length(given, origins.given("max_length"), spec, options.model);
  if (options.max_length != given) log_info("max_length is {}, the model's limit", options.max_length);
  const DType dtype = directory_dtype(asked_dtype(options.dtype), options.model);
  options.dtype = dtype == DType::bf16 ? Precision::bf16 : Precision::fp32;
  return options;
}

// The run that is asked for, as far as its options, config.json and the machine say. Nothing else has been opened.
struct AskedRun {
  AskedRun(const TrainOptions& resolved, const OptionOrigins& given, const DecoderSpec& model, Communicator& all)
      : ranks(all),
        options(resolved),
        origins(given),
        spec(model),
        request(run_request(options, origins, asked_dtype(options.dtype).value())),
        formats(number_formats(request)),
        seat(take_seat(ranks, options.device, options)),
        runtime(seat.device, rank_threads(ranks, seat, resolve_cpu_threads(options, seat.cpus)), seat.gpu,
                seat.own_cpus),
        layout(make_parameters(spec, parameter_rules(options))) {
    request.collectives = seat.collectives;
    groups =
        sequence_groups(ranks, runtime.device(), options.sequence_parallel_size, seat.collectives, spec, options.model);
    log_info("{}", model_line(options.model, spec, request.model_dtype, runtime.device()));
    for (const std::string& line : {frozen_line(layout), lr_multiplier_line(layout)})
      if (!line.empty()) log_info("{}", line);
    caps = memory_caps(backend_of(runtime.device()), options.device_memory, options.host_memory);
  }

  PlanningMachine machine_now() {
    PlanningMachine machine = planning_machine(runtime, formats, caps, ranks.place().local_size);
    share_machine(ranks, machine, seat.gpu_ranks);
    return machine;
  }
  PlanQuestion ask(const PlanningMachine& machine, std::function<TrainingShape(const PlanKnobs&)> shape) const {
    PlanQuestion question =
        make_question({spec, layout, machine, WeightOrigin::files, std::move(shape)}, request, train_option_table());
    question.results_fixed = options.resume.has_value();
    question.host_ranks = ranks.place().local_size;
    return question;
  }

  bool first_rank() const { return ranks.rank() == 0; }

  Communicator& ranks;
  const TrainOptions options;
  const OptionOrigins& origins;
  const DecoderSpec spec;
  RunRequest request;
  const NumberFormats formats;
  const RankSeat seat;
  Runtime runtime;
  const ParameterLayout layout;
  MemoryCaps caps;
  SequenceGroups groups;
};

// The tokenised records; of the evaluation too, if there is one.
struct RunData {
  const Documents* evaluation_data() const { return evaluation ? &*evaluation : nullptr; }

  JoinedDocuments training;
  std::optional<JoinedDocuments> evaluation;
};

DocumentMix document_mix(const TrainOptions& options, const std::vector<DataPart>& parts) {
  DocumentMix mix;
  for (const DataPart& part : parts) mix.files.push_back(part.size());
  if (options.data_weights) mix.weights = parse_weights(*options.data_weights, parts.size(), "--data_weights");
  mix.validation = options.validation_split;
  mix.seed = static_cast<std::uint64_t>(options.seed);
  return mix;
}

// One file that is taken as it is has had its line already.
void log_mix(const TrainOptions& options, const std::vector<DataPart>& parts, const RunData& data) {
  const std::size_t files = all_files(parts).size();
  if (files == 1 && !options.data_weights && !options.validation_split) return;
  const DatasetCounts& c = data.training.counts();
  log_info(
      "data of an epoch: {} records of {} file{}, {} tokens, {} of them trained on{}", c.documents, files,
      files == 1 ? "" : "s", c.tokens, c.trained_tokens,
      options.validation_split ? fmt::format("; {} records are held out for evaluation", data.evaluation->size()) : "");
}

// A new run's, of which no more is known before its data is open.
OutputSpace first_save(const LoopOptions& options, const SavedBytes& saved) {
  return output_space(options, saved, 0, 1, [](std::int64_t) { return std::int64_t{0}; });
}

RunData open_data(AskedRun& run, const ModelEncoder& encoder, const SavedBytes& saved) {
  const TrainOptions& options = run.options;
  // Where the caches are if they can be nowhere else: never in the output directory, which holds what people publish.
  TemporaryCache temporary;  // what was opened is mapped, so that nothing is left whatever ends the run
  const std::string cache_dir = options.cache_dir.value_or("");
  std::vector<DatasetSource> sources;
  const auto add = [&](const DataPart& files, const char* name) {
    for (const std::filesystem::path& file : files)
      sources.emplace_back(DatasetOptions{file,
                                          {options.max_length, options.train_on_prompt, options.mask_history},
                                          cache_dir,
                                          temporary.if_needed(cache_dir),
                                          name},
                           encoder, run.runtime.host_pool());
  };
  const std::vector<DataPart> parts = data_files(options.data, "--data", DataUse::training, Telling::log);
  DataPart files = all_files(parts);
  add(files, "data");
  const std::size_t for_training = files.size();
  if (options.eval_data) {
    const DataPart evaluation =
        all_files(data_files(*options.eval_data, "--eval_data", DataUse::evaluation, Telling::log));
    add(evaluation, "evaluation data");
    files.insert(files.end(), evaluation.begin(), evaluation.end());
  }

  // How many checkpoints there will be is known when the tokens are. A new run writes one at least.
  const bool saves = !options.resume;
  const std::vector<CacheNeed> needs = cache_needs(sources);
  if (!needs.empty()) log_info("{}", cache_line(needs));
  require_cache_space(needs, options.output_dir, saves ? first_save(options, saved).peak() : 0);
  std::vector<TokenDataset> opened = open_by_ranks(run.ranks, sources, files);
  const auto own_end = opened.begin() + static_cast<std::ptrdiff_t>(for_training);
  std::vector<TokenDataset> evaluation(std::make_move_iterator(own_end), std::make_move_iterator(opened.end()));
  opened.erase(own_end, opened.end());
  MixedDocuments mixed = mix_documents(JoinedDocuments(std::move(opened)), document_mix(options, parts));
  RunData data{std::move(mixed.training), std::move(mixed.validation)};
  if (!evaluation.empty()) data.evaluation.emplace(std::move(evaluation));
  log_mix(options, parts, data);
  return data;
}

void require_same_on_all(AskedRun& run, const RunData& data, const TrainingPlan& plan) {
  RankFacts facts = option_facts(train_option_table().view(run.options));
  const auto number = [](std::uint64_t value) { return fmt::format("{:016x}", value); };
  facts.emplace_back("the data and the tokenizer (a hash of both)", number(data.training.key()));
  if (data.evaluation) facts.emplace_back("the evaluation data (its hash)", number(data.evaluation->key()));
  facts.emplace_back("the parameters of the model", std::to_string(run.layout.elements()));
  facts.emplace_back("the layers' kept activations", describe(plan.decoder.keep, plan.decoder.tile_rows));
  facts.emplace_back("the buckets' elements", std::to_string(plan.engine.placement.bucket_elements));
  facts.emplace_back("the layers whose weights are gathered", std::to_string(plan.engine.placement.gathered()));
  facts.emplace_back("the tokens of the longest sample", std::to_string(plan.shape.sample_tokens));
  require_same_run(run.ranks, facts);
}

BatchOptions batch_options(const TrainOptions& options, const SequenceGroups& groups) {
  BatchOptions batches;
  batches.rank = groups.group;
  batches.ranks = groups.groups;
  batches.sequence = groups.place;
  batches.batch_size = options.batch_size;
  batches.gradient_accumulation_steps = options.gradient_accumulation_steps;
  batches.packing = options.packing;
  batches.max_length = options.max_length;
  batches.shuffle = options.shuffle;
  batches.seed = static_cast<std::uint64_t>(options.seed);
  return batches;
}

void require_steps_to_trace(const TrainOptions& options, std::int64_t steps) {
  if (options.trace && steps < Trainer::steps_before_trace + 1)
    fail("--trace begins with the third step, and this run has {}; raise --max_steps", steps);
}

// Where a run begins, and what it will write.
struct RunStart {
  ResumePoint from;
  RunLength length;
  OutputSpace disk;
  bool finished = false;  // nothing is left to do
};

// What rank 0 finds in the output directory the others find too, before it changes it.
RunStart find_start(const OutputDirectory& output, const AskedRun& run, const RunData& data,
                    const BatchIterator& batches, const SavedBytes& saved) {
  const TrainOptions& options = run.options;
  RunStart start;
  start.from = read_resume_point(output, options, data.training.key(), data.evaluation ? data.evaluation->key() : 0,
                                 run.first_rank());
  const std::int64_t step = start.from.step();
  start.length = run_length(options, batches, start.from.state_or_null(), start.from.state_file());
  start.finished = is_finished(options, start.from, start.length.steps);
  if (start.finished) return start;
  require_steps_to_trace(options, start.length.steps - step);
  const bool ended = start.from.state && stopped_early(options, *start.from.state);
  start.disk = output_space(options, saved, step, ended ? step : start.length.steps,
                            [&](std::int64_t steps) { return batches.epochs_in_steps(steps); });
  start.disk.require(options.output_dir);
  return start;
}

// A dry run's result is what a run begins with.
void say(const TrainOptions& options, const std::string& line) {
  if (options.dry_run)
    log_result(line);
  else
    log_info("{}", line);
}

// Says, a line a subject, how the run will go and how much memory and disk space it takes.
void log_plan(AskedRun& run, const TrainingPlan& plan, const PlanningMachine& machine, const OutputSpace& disk,
              std::int64_t total_steps) {
  const TrainOptions& options = run.options;
  if (options.dry_run) log_result(changed_settings_log(train_option_table().view(options), run.origins));
  say(options, plan_line(options, plan, machine, run.layout, total_steps));
  say(options, memory_line(plan, machine));
  say(options, output_line(options));
  say(options, disk.line(free_space(options.output_dir)));
  log_detail("{}", settings_log(train_option_table().view(options), run.origins));
  log_detail("memory plan:\n{}  in all {}", plan.memory.table(),
             format_bytes(plan.memory.host_total(backend_of(run.runtime.device()))));
}

int end_dry_run(const TrainOptions& options, const ResumePoint& from, const RunLength& length) {
  if (length.changed_from) log_result(length.change_text(options.lr_scheduler));
  if (from.checkpoint) print_result("would go on from {} at step {}", from.checkpoint->path.string(), from.step());
  log_result("dry run: it fits; nothing was trained");
  return exit_ok;
}

void begin(Trainer& trainer, const TrainOptions& options, const ResumePoint& from, const RunLength& length) {
  if (!from.checkpoint) return trainer.start();
  trainer.resume(from.checkpoint->path, *from.state);
  log_info("resumed from {} at step {}", from.checkpoint->path.string(), from.step());
  if (length.changed_from) log_info("{}", length.change_text(options.lr_scheduler));
}

// A plan that was wrong was made from rates that the machine does not have now. A few steps say little.
void measure_again_if_wrong(const std::vector<PlannedFigure>& figures, std::int64_t steps, AskedRun& asked) {
  constexpr std::int64_t enough_steps = 8;
  const std::optional<RateCache> cache = RateCache::of_user();
  if (!cache || steps < enough_steps || !asked.first_rank()) return;
  if (drop_wrong_rates(figures, *cache, rate_key(asked.runtime, asked.formats, asked.ranks.place().local_size)))
    log_info("steps were not as long as planned, so the next run measures this machine again");
}

// Whether the model that was written has a template for conversations.
bool can_chat(const std::string& directory) {
  try {
    return find_chat_template(directory).has_value();
  } catch (const Error&) {  // chat itself says why
    return false;
  }
}

// Says what came of the run, and returns the program's exit code.
int end(Trainer& trainer, Trainer::Outcome outcome, const std::vector<PlannedFigure>& figures,
        const std::vector<NamedMemory>& memory, const std::vector<std::string>& trained_model, bool first_rank) {
  trainer.record_summary(outcome, figures, memory);
  log_detail("{}", figures_line(figures));
  if (outcome == Trainer::Outcome::finished)
    for (const std::string& line : trained_model) log_result(line);
  if (!trainer.closing_sentence().empty() && first_rank)
    log_message(LogLevel::failure, "superoffload: " + trainer.closing_sentence());
  if (outcome == Trainer::Outcome::diverged) return exit_failure;
  if (outcome == Trainer::Outcome::interrupted) return exit_interrupted;
  if (!trainer.incomplete()) return exit_ok;
  log_message(LogLevel::failure,
              outcome == Trainer::Outcome::finished
                  ? "superoffload: the model is written, but something of the run could not be, as an error above says"
                  : "superoffload: something of the run could not be written, as an error above says");
  return exit_failure;
}

// A run begins with these, once it is known to be possible by its config.
struct Opened {
  std::optional<OutputDirectory> output;
  std::optional<ModelFiles> model;  // none for a dry run of a model without weights
  std::optional<ModelEncoder> encoder;
  std::optional<SampleRequest> samples;
};

// A collective.
void open_run(Opened& opened, AskedRun& asked, const DecoderSpec& spec, const RopeRequest& rope, Communicator& ranks) {
  const TrainOptions& options = asked.options;
  const PlanningMachine at_first = asked.machine_now();
  together(ranks, [&] {
    state_or_refuse(
        asked.ask(at_first, [&](const PlanKnobs& knobs) { return largest_shape(knobs, options.evaluates()); }));
    opened.output.emplace(options, options);
    if (!options.dry_run || has_weight_files(options.model))
      opened.model.emplace(options.model, parameter_rules(options), rope).hold_small_files();
    else
      log_info("{} has no weights: planning by its config.json", options.model);
    opened.encoder.emplace(options.model, spec.vocab, special_tokens(options.parse_special_tokens),
                           options.chat_template);
    if (opened.model) {
      opened.model->replace_small_files(opened.encoder->replaced_files());
      for (const std::string& line : opened.model->carried_lines()) log_info("{}", line);
    }
    opened.samples = read_samples(options, spec, *opened.encoder);
  });
}

int end_finished(const TrainOptions& options, const RunStart& start) {
  if (stopped_early(options, *start.from.state))
    print_result("{} holds the finished run, which stopped early: {} of {} steps", options.output_dir,
                 start.from.step(), start.length.steps);
  else
    print_result("{} holds the finished run: {} of {} steps; raise --max_steps or --num_train_epochs to train on",
                 options.output_dir, start.from.step(), start.length.steps);
  return exit_ok;
}

// Refusals come first, the cheap ones before the dear ones; nothing is written until the run is known to be possible.
int run_train(const TrainOptions& given, const OptionOrigins& origins, Communicator& ranks) {
  const bool writes = ranks.rank() == 0 && !given.dry_run;
  if (writes) begin_run_log();
  log_info("superoffload {}, {}", SO_VERSION, build_text());
  if (given.trace) require_output_file(*given.trace, "--trace", is_own_trace, false, given.output_dir);
  const DecoderSpec spec = requested_spec(read_spec(given.model, rope_request(given, origins)), given, given.model);
  AskedRun asked(resolve_by_model(given, origins, spec), origins, spec, ranks);
  const TrainOptions& options = asked.options;
  Opened opened;
  open_run(opened, asked, spec, rope_request(given, origins), ranks);
  OutputDirectory& output = *opened.output;
  const std::optional<ModelFiles>& model = opened.model;
  const std::optional<SampleRequest>& samples = opened.samples;
  const std::uint64_t export_bytes =
      model ? exported_bytes(*model, asked.formats.exported) : exported_bytes(asked.layout, asked.formats.exported);
  const SavedBytes saved = saved_bytes(export_bytes, asked.layout.trained_parameter_elements(), asked.formats,
                                       options.model, options.save_only_model);
  const RunData data = open_data(asked, *opened.encoder, saved);
  BatchIterator batches(data.training, batch_options(options, asked.groups));

  Device& device = asked.runtime.device();
  MemoryMeter memory(device);
  const DataShape of_data(data.training, data.evaluation_data(), batch_options(options, asked.groups),
                          options.max_steps, options.num_train_epochs);
  const std::function<TrainingShape(const PlanKnobs&)> shape = [&](const PlanKnobs& knobs) {
    TrainingShape all = of_data.of(knobs);
    if (samples) all.sample_tokens = samples->most_tokens();
    return all;
  };
  PlanningMachine machine = asked.machine_now();
  use_rates_of_ranks(machine, asked.runtime, asked.formats,
                     {.fresh = options.profile == ProfileUse::fresh, .keep = writes}, ranks, asked.seat.collectives);
  machine.unit_factors = measure_units(machine, asked.runtime, spec, asked.formats, shape({asked.request, asked.caps}),
                                       !asked.request.deterministic, ranks);
  TrainingPlan plan;
  together(ranks, [&] {
    plan = plan_or_refuse(asked.ask(machine, shape));
    if (samples) require_samples(plan);
  });
  memory.forget_peaks();
  require_same_on_all(asked, data, plan);
  require_record_each(ranks, asked.groups, data.training.size(), options.data);
  plan.log_reasons();

  RunStart start;
  together(ranks, [&] { start = find_start(output, asked, data, batches, saved); });
  if (start.finished) return end_finished(options, start);
  together(ranks, [&] {
    if (options.dry_run) output.require_usable(export_bytes);
    if (writes) output.prepare(export_bytes);
  });
  if (writes) open_run_log(std::filesystem::path(options.output_dir) / run_log_file);
  log_plan(asked, plan, machine, start.disk, start.length.steps);
  if (const std::string text = start.length.long_warmup_text(); !text.empty()) log_warning("{}", text);
  if (options.dry_run) return end_dry_run(options, start.from, start.length);

  device.limit_memory(plan.limits);
  const RunFacts facts =
      run_facts(options.model, plan, device, train_option_table().view(options), origins, start.length.steps);
  const DecoderSpec computed = requested_spec(model->spec(), options, options.model);
  Trainer trainer({options, to_json(train_option_table().view(options)), facts, asked.runtime, *model, computed, plan,
                   ranks, asked.groups.exchange.get(), data.training, data.evaluation_data(), batches, start.length,
                   output, samples ? &*samples : nullptr});
  begin(trainer, options, start.from, start.length);
  const Trainer::Outcome outcome = trainer.run();
  const std::vector<PlannedFigure> figures = compare_with_plan(plan, device, memory, trainer.step_figures());
  measure_again_if_wrong(figures, trainer.step_figures().steps, asked);
  const int code = end(trainer, outcome, figures, memory_by_name(plan.memory, &memory),
                       {trained_model_line(output.path().string(), export_bytes, asked.formats.exported),
                        next_lines(output.path().string(), can_chat(output.path().string()))},
                       asked.first_rank());
  excuse_standard_output();  // run.log has the same lines
  return code;
}

const RegisteredCommand train_command([] {
  return make_rank_command<TrainOptions>(
      {.name = "train",
       .position = 1,
       .summary = "fine-tune all parameters of a model",
       .details =
           R"(Fine-tunes all parameters of a Hugging Face model directory on conversations, Alpaca records, prompts
and completions, plain text or token ids, and writes a Hugging Face model directory. Optimizer state
(fp32 weights and both Adam moments) lives in host memory, where the CPU updates it, and, as far as that
is faster and fits, in GPU memory, updated by the GPU; run.log says the split and why. --offload_ratio
or --offload_optimizer none ask for another one.

--mode superoffload ("super_offload": true in a DeepSpeed file) runs AdamW on the CPU while the GPU
computes, zerooffload after backward. Results are the same.

--dry_run says what a run would do and need, or why it cannot run, and trains nothing.)",
       .examples = {"superoffload train --model Qwen3-0.6B --data alpaca.json --output_dir out",
                    "superoffload train --model Qwen3-0.6B --data alpaca.json --output_dir out --resume",
                    "superoffload train --config run.yaml --lr 2e-5",
                    "superoffload train --model Qwen3-14B --data alpaca.json --output_dir out --deepspeed_config "
                    "ds_config.json --max_length 4096 --lr 1e-5 --activation_checkpointing"},
       .modes = {all_state_on_device("offload_optimizer", "none"),
                 {"device",
                  "cpu",
                  "nothing is measured, and the CPU device has no memory of its own (--host_memory limits the run's)",
                  {"profile", "device_memory", "collectives"}},
                 one_rank(),
                 all_state_on_device("offload_ratio", "0"),
                 {"rope_scaling", "auto", "the model's rotation stays as it is", {"rope_factor"}},
                 {"rope_scaling", "none", "the model's rotation stays as it is", {"rope_factor"}},
                 {"train_on_prompt", "true", "all of each text is trained on", {"mask_history"}},
                 {"lr_scheduler", "constant", "the learning rate stays where it is", {"min_lr", "decay"}},
                 {"lr_scheduler", "linear", "the learning rate falls over the whole run", {"decay"}},
                 {"lr_scheduler", "cosine", "the learning rate falls over the whole run", {"decay"}},
                 {"save_strategy", "no", "a checkpoint is saved only at the end", {"save_steps"}},
                 {"save_strategy", "epoch", "checkpoints are saved after each epoch", {"save_steps"}},
                 {"eval_strategy", "no", "there is no evaluation between the first and the last", {"eval_steps"}},
                 {"eval_strategy", "epoch", "evaluations come after each epoch", {"eval_steps"}}}},
      train_option_table(), complete, run_train);
});

}  // namespace
}  // namespace so
