#include "options/train_options.h"

#include <algorithm>
#include <cmath>

#include "base/comma_list.h"
#include "base/error.h"
#include "base/file.h"
#include "options/absent_options.h"

namespace so {
namespace {

using namespace default_from;

using O = TrainOptions;

void add_model_and_data(OptionTable<O>& t) {
  t.group("Model and data");
  t.add("model", &O::model, "Hugging Face model directory to start from: config.json, tokenizer, safetensors")
      .metavar("DIR")
      .required()
      .hub(HubUse::weights)
      .also("model_name_or_path")
      .elsewhere("model_name")
      .elsewhere("base_model");
  t.add(
       "data", &O::data,
       "Training records: a file (JSON, JSONL, Parquet, Arrow), a directory of such files or that datasets has saved, a "
       "pattern (\"data/*.jsonl\"), or several of these with commas between")
      .metavar("FILE")
      .list()
      .required()
      .hub(HubUse::data)
      .also("train_file")
      .elsewhere("dataset")
      .elsewhere("datasets")
      .elsewhere("dataset_name")
      .elsewhere("train_dataset");
  t.add("data_weights", &O::data_weights,
        "How often an epoch has the records of each part of data: \"2,0.5\" has those of the first twice, and half of "
        "the second's, the same half in every epoch")
      .metavar("X,...")
      .list()
      .when_unset("each once")
      .default_from(ours)
      .affects_results()
      .elsewhere("interleave_probs")
      .elsewhere("dataset_mixer");
  t.add("eval_data", &O::eval_data, "Held-out records whose loss is reported; as data")
      .metavar("FILE")
      .list()
      .hub(HubUse::data)
      .default_from(ours)
      .also("validation_file")
      .elsewhere("eval_dataset")
      .elsewhere("test_datasets")
      .elsewhere("eval_file");
  t.take(hub_rows());
  t.add("validation_split", &O::validation_split,
        "Hold out records of data, drawn by seed, and report their loss, in place of eval_data: below 1 a share of "
        "them, else a number")
      .above(0)
      .at_most(1e12)
      .or_else(0.0, "none")
      .default_from(ours)
      .affects_results()
      .elsewhere("val_size")
      .elsewhere("val_set_size")
      .elsewhere("test_size")
      .elsewhere("test_split_size");
  t.add("output_dir", &O::output_dir, "Where checkpoints and the trained model are written").metavar("DIR").required();
  t.add("overwrite_output_dir", &O::overwrite_output_dir,
        "Replace the run that the output directory holds: the files that this program wrote there, by its record of "
        "them, and nothing else")
      .default_from(trainer);
  t.add("dry_run", &O::dry_run,
        "Only say what a run would do: choices, memory and expected step time, or why it cannot run. Reads model and "
        "data; of the model, config.json and tokenizer are enough. Nothing is trained, and nothing written but "
        "tokenised data in cache_dir")
      .default_from(ours);
  t.add("packing", &O::packing, "Fill each row with several records up to max_length; attention stays within a record")
      .default_from(ours)
      .affects_results()
      .elsewhere("sample_packing")
      .elsewhere("neat_packing");
  t.add("shuffle", &O::shuffle, "New random order of the records every epoch")
      .default_from(script)
      .affects_results()
      .elsewhere("shuffle_dataset");
  t.take(chat_template_rows());
  t.take(record_rows());
}

void add_rope(OptionTable<O>& t) {
  t.add("rope_scaling", &O::rope_scaling,
        "Train on more positions than the model's config.json has: with yarn or linear, the rotation scaled by "
        "rope_factor; with none, the model's own rotation as it is. dynamic is for those who use the model, and trains "
        "within the positions that it has. config.json of the trained model says the same, for transformers; auto: the "
        "model's limit stands")
      .default_from(ours)
      .affects_results();
  t.add("rope_factor", &O::rope_factor, "How many times as many positions; with yarn, linear and dynamic")
      .above(1)
      .at_most(1e6)
      .or_else(0.0, "the least whole number that reaches max_length")
      .default_from(ours)
      .affects_results();
}

void add_length(OptionTable<O>& t) {
  t.group("Length of the run");
  t.add("num_train_epochs", &O::num_train_epochs,
        "Passes over the data; of the last one, if it is a part, that part of its steps, rounded up")
      .above(0)
      .at_most(1e6)
      .default_from(script)
      .affects_later_steps()
      .elsewhere("epochs")
      .elsewhere("num_epochs");
  t.add("max_steps", &O::max_steps, "Optimizer steps of the whole run, instead of num_train_epochs")
      .at_least(1)
      .or_else(std::int64_t{-1}, "num_train_epochs decides")
      .default_from(trainer)
      .affects_later_steps();
  t.add("max_skipped_steps", &O::max_skipped_steps,
        "Stop the run, with exit code 1, after N skipped optimizer steps in a row, whose gradients were not finite; "
        "nothing is saved then")
      .unit("steps")
      .at_least(1)
      .or_else(std::int64_t{0}, "never stop")
      .default_from(ours);
  t.add("seed", &O::seed, "Seed of the data order")
      .at_least(0)
      .default_from(script)
      .affects_results()
      .elsewhere("data_seed");
}

void add_optimizer(OptionTable<O>& t) {
  t.group("Optimizer (AdamW)");
  t.add("lr", &O::lr, "Peak learning rate")
      .at_least(1e-30)
      .at_most(1000)
      .default_from(recipe)
      .deepspeed("optimizer.params.lr")
      .deepspeed("scheduler.params.warmup_max_lr")
      .affects_later_steps()
      .also("learning_rate");
  t.add("lr_scheduler", &O::lr_scheduler,
        "Course of the learning rate after warm-up; cosine and linear fall to min_lr over the run, wsd only at its end")
      .default_from(trainer)
      .deepspeed("scheduler.type")
      .affects_later_steps()
      .elsewhere("lr_scheduler_type")
      .value_elsewhere("constant_with_warmup", "constant")
      .value_elsewhere("cosine_with_min_lr", "cosine, with --min_lr")
      .value_elsewhere("warmup_stable_decay", "wsd");
  t.add("min_lr", &O::min_lr, "Learning rate at the end of the run, at most lr; not with constant")
      .at_least(0)
      .at_most(1000)
      .default_from(trainer)
      .affects_later_steps()
      .elsewhere("cosine_min_lr_ratio")
      .elsewhere("lr_scheduler_kwargs");
  t.add("decay", &O::decay, "With wsd: share of the run's steps, its last ones, over which the learning rate falls")
      .at_least(0)
      .at_most(1)
      .default_from(ours)
      .affects_later_steps();
  t.add("warmup", &O::warmup, "Share of the run's steps over which the learning rate rises linearly from 0")
      .at_least(0)
      .at_most(1)
      .default_from(script)
      .affects_later_steps()
      .also("warmup_ratio");
  t.add("warmup_num_steps", &O::warmup_num_steps, "The same in optimizer steps, instead of warmup")
      .at_least(1)
      .or_else(std::int64_t{-1}, "warmup decides")
      .default_from(ours)
      .deepspeed("scheduler.params.warmup_num_steps")
      .affects_later_steps();
  t.take(adam_rows());
  t.take(parameter_rows());
  t.add("lr_multiplier", &O::lr_multiplier,
        "Parameters whose learning rate is FACTOR times that of the others, in each step and in weight decay, which "
        "goes by the learning rate; patterns of their names as freeze takes them "
        "(\"model.embed_tokens.*=0.1,*norm.weight=2\"). If several match a parameter, the first counts")
      .metavar("PATTERN=FACTOR,...")
      .list()
      .when_unset("all have lr")
      .default_from(ours)
      .affects_later_steps()
      .elsewhere("lr_groups")
      .elsewhere("embedding_lr_scale");
  t.add("label_smoothing_factor", &O::label_smoothing_factor,
        "Share of each token's loss that is the mean over the vocabulary in place of the token itself; in evaluations "
        "too")
      .at_least(0)
      .at_most(1)
      .default_from(trainer)
      .affects_later_steps();
}

void add_saving(OptionTable<O>& t) {
  t.group("Saving and resuming");
  t.add("save_strategy", &O::save_strategy,
        "When checkpoints are saved, beside the one at the end: every save_steps, after each epoch, or never")
      .default_from(trainer)
      .elsewhere("saves_per_epoch");
  t.add("save_steps", &O::save_steps, "Checkpoint every N optimizer steps, and at the end")
      .unit("steps")
      .at_least(1)
      .or_else(std::int64_t{0}, "only at the end")
      .default_from(trainer);
  t.add("save_total_limit", &O::save_total_limit, "Keep only the N newest checkpoints")
      .at_least(1)
      .or_else(std::int64_t{0}, "all")
      .default_from(trainer);
  t.add("save_only_model", &O::save_only_model,
        "Checkpoints hold the model alone, without optimizer state: less disk space, and no run can resume from them")
      .default_from(trainer);
  t.add(
       "resume", &O::resume,
       "Continue from this checkpoint, or with \"latest\" from the newest in output_dir. Options that affect results "
       "must be those of the checkpoint, but a larger max_steps or num_train_epochs extends the run, and allow_changed "
       "names others")
      .metavar("DIR|latest")
      .bare("latest")
      .when_unset("start from --model")
      .default_from(ours)
      .also("resume_from_checkpoint");
  t.add(
       "allow_changed", &O::allow_changed,
       "Options that a resumed run may have other values of than its checkpoint, from the next step on: "
       "\"lr,lr_scheduler\". They are those of the learning rate and AdamW, clipping, label smoothing, early stopping, "
       "the length, and batch_size, where a step keeps its rows and gradient_accumulation_steps makes up for it")
      .metavar("OPTION,...")
      .list()
      .when_unset("none")
      .default_from(ours);
}

void add_logging(OptionTable<O>& t) {
  t.group("Logging and evaluation");
  t.add("log_interval", &O::log_interval, "Log every N optimizer steps")
      .unit("steps")
      .at_least(1)
      .default_from(script)
      .deepspeed("steps_per_print")
      .also("logging_steps");
  t.add("eval_strategy", &O::eval_strategy,
        "When eval_data is evaluated, beside before the first step and at the end: every eval_steps, after each epoch, "
        "or never")
      .default_from(ours)
      .also("evaluation_strategy")
      .elsewhere("evals_per_epoch");
  t.add("eval_steps", &O::eval_steps, "Evaluate on eval_data every N optimizer steps, and at the end")
      .unit("steps")
      .at_least(1)
      .or_else(std::int64_t{0}, "only at the end")
      .default_from(ours);
  t.add("load_best_model_at_end", &O::load_best_model_at_end,
        "Write the model with the least evaluation loss, not the last one. An evaluation that is the best so far is "
        "saved as a checkpoint, which save_total_limit counts and does not remove")
      .default_from(trainer)
      .affects_results();
  t.add("metric_for_best_model", &O::metric_for_best_model,
        "What the best model is the best by; with load_best_model_at_end or early_stopping_patience")
      .default_from(trainer)
      .elsewhere("greater_is_better");
  t.add("early_stopping_patience", &O::early_stopping_patience,
        "Stop after N evaluations in a row without a better loss than the best before them")
      .unit("evaluations")
      .at_least(1)
      .or_else(std::int64_t{0}, "never")
      .default_from("EarlyStoppingCallback")
      .affects_later_steps();
  t.add("early_stopping_threshold", &O::early_stopping_threshold,
        "Only a loss that is better by more than this counts for early_stopping_patience")
      .at_least(0)
      .at_most(1e6)
      .default_from("EarlyStoppingCallback")
      .affects_later_steps();
  t.add("sample_prompts", &O::sample_prompts,
        "Generate a text from each of these prompts while the run goes on, greedily: a prompt a line; or, if the file "
        "begins with { or [, records of messages or prompt, which the model's chat template renders, of instruction, "
        "for the Alpaca template, or of text, as it is. Texts are in samples.jsonl; results do not depend on them")
      .metavar("FILE")
      .default_from(ours);
  t.add("sample_steps", &O::sample_steps,
        "Generate every N optimizer steps; and at the end, and before the first step, to compare with what the "
        "model said before")
      .unit("steps")
      .at_least(1)
      .or_else(std::int64_t{0}, "with each evaluation; in a run without any, with each checkpoint")
      .default_from(ours);
  t.add("sample_max_new_tokens", &O::sample_max_new_tokens, "Most tokens to generate from a prompt")
      .unit("tokens")
      .at_least(1)
      .at_most(1e9)
      .default_from(ours)
      .elsewhere("eval_max_new_tokens");
  t.add("wall_clock_breakdown", &O::wall_clock_breakdown, "Log the time of each part of a step")
      .file_only()
      .default_from("DeepSpeed")
      .deepspeed("wall_clock_breakdown");

  t.add(
       "trace", &O::trace,
       "Write a timeline of a step for ui.perfetto.dev: kernels and copies by stream, host work, waits. It begins with "
       "the third step, when first-time costs are over")
      .metavar("FILE")
      .default_from(ours);
  t.add("trace_steps", &O::trace_steps, "Steps in the trace").unit("steps").at_least(1).at_most(1e6).default_from(ours);
}

void add_machine(OptionTable<O>& t) {
  t.group("Machine");
  t.take(compute_rows());
  t.row("dtype").help =
      "Number format of forward and backward; master weights are always fp32; auto: what the model's config.json says, else what its weights are stored in";
  t.row("cpu_threads").special_meaning = "cpuadam_cores_perc of the usable CPUs";
  t.take(rank_rows());
  t.add("deepspeed_config", &O::deepspeed_config,
        "DeepSpeed JSON; its values replace defaults, the command line replaces both. See docs/deepspeed-config.md")
      .metavar("FILE")
      .default_from(ours)
      .also("deepspeed");
  t.add(
       "profile", &O::profile,
       "Rates of this machine that a plan for a GPU is made from: cached, those that an earlier run or superoffload "
       "profile measured in the last 30 days, if there are any and no run has found them wrong; fresh, measured now, in "
       "a few seconds")
      .default_from(ours);
  t.add("pin_memory", &O::pin_memory,
        "Page-lock the host memory that the GPU reads and writes, which is always done: false is refused")
      .file_only()
      .default_from(recipe)
      .deepspeed("zero_optimization.offload_optimizer.pin_memory")
      .deepspeed("zero_optimization.cpu_offload_use_pin_memory");
  t.add("cpuadam_cores_perc", &O::cpuadam_cores_perc,
        "Share of the usable CPUs for the CPU optimizer; all of them: but for one core beside a GPU")
      .above(0)
      .at_most(1)
      .file_only()
      .default_from(ours)
      .deepspeed("zero_optimization.offload_optimizer.cpuadam_cores_perc");
}

OptionTable<O> make_table() {
  OptionTable<O> t;
  add_model_and_data(t);
  add_length(t);
  t.group("Positions");
  add_rope(t);
  t.group("Step, memory and offload");
  t.take(step_rows());
  add_optimizer(t);
  add_saving(t);
  add_logging(t);
  add_machine(t);
  t.group("Options in a file");
  t.take(run_file_rows());
  t.group("Messages");
  t.take(message_rows());
  return t;
}

void check_samples(const TrainOptions& options, const OptionOrigins& origins) {
  if (options.sample_prompts) return;
  for (const char* name : {"sample_steps", "sample_max_new_tokens"})
    if (origins.given(name)) fail("--{} is about texts that are generated: add --sample_prompts FILE", name);
}

void check_allowed_changes(const TrainOptions& options) {
  if (!options.allow_changed) return;
  if (!options.resume) fail("--allow_changed is about the settings of a run that is resumed: add --resume");
  for (const std::string_view name : between_commas(*options.allow_changed)) {
    const OptionSpec* spec = train_option_table().find(name);
    if (spec == nullptr) fail("--allow_changed {}: there is no such option", printable(name));
    if (!spec->changes_results) fail("--allow_changed {}: it may always change; leave it out", name);
    if (!spec->may_change)
      fail(
          "--allow_changed {}: a run cannot go on with another; begin anew from a checkpoint's weights, with --model "
          "CHECKPOINT and another --output_dir",
          name);
  }
}

// What asks for the best of the evaluations needs some.
void check_best_model(const TrainOptions& options, const OptionOrigins& origins) {
  const char* const asked = options.load_best_model_at_end ? "load_best_model_at_end" : "early_stopping_patience";
  if (options.looks_for_best()) {
    if (!options.evaluates())
      fail("--{} needs records to evaluate on: add --eval_data FILE or --validation_split X", asked);
    const bool evaluates =
        options.eval_strategy == Cadence::epoch || (options.eval_strategy == Cadence::steps && options.eval_steps);
    if (!evaluates)
      fail("--{} needs evaluations while the run goes on: add --eval_strategy epoch, or --eval_steps N", asked);
  } else if (origins.given("metric_for_best_model")) {
    fail(
        "--metric_for_best_model says what the best model is the best by: add --load_best_model_at_end or "
        "--early_stopping_patience N");
  }
  if (!options.early_stopping_patience && origins.given("early_stopping_threshold"))
    fail("--early_stopping_threshold says which losses count as better: add --early_stopping_patience N");
}

}  // namespace

bool is_due(Cadence cadence, const std::optional<std::int64_t>& every, std::int64_t step, bool ends_epoch) {
  return cadence == Cadence::epoch ? ends_epoch : cadence == Cadence::steps && every && step % *every == 0;
}

const OptionTable<TrainOptions>& train_option_table() {
  static const OptionTable<TrainOptions> table = [] {
    OptionTable<TrainOptions> all = make_table();
    add_absent_options(all);
    return all;
  }();
  return table;
}

void check_train_options(const TrainOptions& options, const OptionOrigins& origins) {
  check_required(train_option_table().view(options));
  if (!options.evaluates() && options.eval_steps)
    fail("--eval_steps {} needs records to evaluate on: add --eval_data FILE or --validation_split X",
         *options.eval_steps);
  if (!options.evaluates() && options.eval_strategy == Cadence::epoch)
    fail("--eval_strategy epoch needs records to evaluate on: add --eval_data FILE or --validation_split X");
  if (options.eval_data && options.validation_split)
    fail("--eval_data and --validation_split each say which records are evaluated: give one of them");
  if (const double split = options.validation_split.value_or(0); split > 1 && split != std::floor(split))
    fail("--validation_split {} is neither a share of the records, below 1, nor a number of them", split);
  check_best_model(options, origins);
  check_samples(options, origins);
  if (options.min_lr > options.lr)
    fail("--min_lr {} is above --lr {}, the peak that the learning rate falls from: give a smaller one", options.min_lr,
         options.lr);
  check_allowed_changes(options);
  if (options.resume && options.overwrite_output_dir)
    fail("--resume continues a run and --overwrite_output_dir discards it: give one of them");
  if (const double most = largest_beta2(options.optimizer_state_dtype); options.adam_beta2 > most)
    fail(
        "--optimizer_state_dtype bf16 needs --adam_beta2 of at most {}, not {}: above it rounding to bf16 swallows "
        "the second moments' decay, all or in part; use --adam_beta2 0.99, or --optimizer_state_dtype fp32",
        most, options.adam_beta2);
  check_ranks(options);
  check_placement(options, origins, options.gpus);
  if (!options.trace && origins.given("trace_steps"))
    fail("--trace_steps counts the steps of a trace: add --trace FILE");
}

int resolve_cpu_threads(const TrainOptions& options, int usable) {
  SO_CHECK(usable >= 1, "{} usable CPUs", usable);
  if (options.cpu_threads > usable)
    fail("--cpu_threads {}: this process may use only {} CPUs", *options.cpu_threads, usable);
  if (options.cpu_threads) return *options.cpu_threads;
  if (options.cpuadam_cores_perc == 1) return 0;
  return std::max(1, static_cast<int>(options.cpuadam_cores_perc * usable));
}

bool may_change(const OutputOptions& options, std::string_view name) {
  if (!options.allow_changed) return false;
  const std::vector<std::string_view> names = between_commas(*options.allow_changed);
  return std::find(names.begin(), names.end(), name) != names.end();
}

void resolve_warmup(TrainOptions& options, OptionOrigins& origins) {
  const OptionOrigin steps = origins.of("warmup_num_steps");
  if (!options.warmup_num_steps || origins.of("warmup").origin <= steps.origin) return;
  origins["warmup"].overridden =
      fmt::format("{} says {} steps", steps.where.empty() ? std::string(name_of(steps.origin)) : steps.where,
                  *options.warmup_num_steps);
  options.warmup_num_steps.reset();
  origins["warmup_num_steps"] = {};
}

std::int64_t resolve_warmup_steps(const ScheduleOptions& options, std::int64_t total_steps) {
  return options.warmup_num_steps.value_or(share_of_steps(options.warmup, total_steps));
}

}  // namespace so
