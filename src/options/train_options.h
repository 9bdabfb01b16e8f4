// The options of `superoffload train`: the struct and, in train_options.cpp, its one table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "options/chat_template_option.h"
#include "options/option_groups.h"

namespace so {

// The course of the learning rate.
struct ScheduleOptions {
  double lr = 1e-5;
  LrScheduler lr_scheduler = LrScheduler::linear;
  double min_lr = 0;                             // where all but constant end
  double decay = 0.1;                            // of wsd: share of all optimizer steps
  double warmup = 0.01;                          // the same of the warm-up
  std::optional<std::int64_t> warmup_num_steps;  // beats `warmup`
  std::optional<std::string> lr_multiplier;      // PATTERN=FACTOR of parameters' names, with commas between
};

// The files that a run reads.
struct InputOptions {
  std::string model;
  std::string data;
  std::optional<std::string> data_weights;
  std::optional<std::string> eval_data;
  std::optional<double> validation_split;  // below 1 a share of the records, else their number
  std::optional<std::string> sample_prompts;
  bool evaluates() const { return eval_data || validation_split; }
};

// Positions beyond those that the model's config.json has.
struct RopeOptions {
  RopeExtension rope_scaling = RopeExtension::automatic;
  std::optional<double> rope_factor;  // unset: the least whole one that reaches max_length
};

// The directory that a run writes: what becomes of what it holds, and what is saved there.
struct OutputOptions {
  std::string output_dir;
  bool overwrite_output_dir = false;
  std::optional<std::string> resume;         // "latest": newest checkpoint in output_dir; else a checkpoint directory
  std::optional<std::string> allow_changed;  // names of options, with commas between
  Cadence save_strategy = Cadence::steps;
  std::optional<std::int64_t> save_steps = 500;  // of that cadence; unset: only at the end
  std::optional<int> save_total_limit;           // unset: all are kept
  bool save_only_model = false;                  // checkpoints without optimizer state
};

struct LengthOptions {
  double num_train_epochs = 1;
  std::optional<std::int64_t> max_steps;  // beats num_train_epochs
};

// A run may end with the model of its best evaluation, and early, when none has been better for a while.
struct BestModelOptions {
  bool load_best_model_at_end = false;
  EvaluationMetric metric_for_best_model = EvaluationMetric::eval_loss;
  std::optional<std::int64_t> early_stopping_patience;  // evaluations; unset: the run goes to its end
  double early_stopping_threshold = 0;
  bool looks_for_best() const { return load_best_model_at_end || early_stopping_patience; }
};

// These options say what the training loop does beside its steps.
struct LoopOptions : ScheduleOptions, LengthOptions, OutputOptions, BestModelOptions {
  std::optional<std::int64_t> max_skipped_steps = 10;  // in a row; unset: never stop
  double label_smoothing_factor = 0;
  std::int64_t log_interval = 1;
  Cadence eval_strategy = Cadence::steps;
  std::optional<std::int64_t> eval_steps;    // of that cadence; unset: only at the end
  std::optional<std::int64_t> sample_steps;  // unset: with evaluations, or without these with checkpoints
  std::int64_t sample_max_new_tokens = 64;
  bool wall_clock_breakdown = false;  // DeepSpeed file only
  std::optional<std::string> trace;   // file
  std::int64_t trace_steps = 1;
};

// Meanings, ranges and units are in the table.
struct TrainOptions : RunFileOptions,
                      InputOptions,
                      HubOptions,
                      RopeOptions,
                      RecordOptions,
                      ChatTemplateOption,
                      StepOptions,
                      AdamOptions,
                      ParameterOptions,
                      LoopOptions,
                      ComputeOptions,
                      RankOptions,
                      MessageOptions {
  bool dry_run = false;
  bool packing = false;
  bool shuffle = true;
  std::int64_t seed = 42;
  std::optional<std::string> deepspeed_config;
  ProfileUse profile = ProfileUse::cached;
  bool pin_memory = true;         // DeepSpeed file only
  double cpuadam_cores_perc = 1;  // DeepSpeed file only
};

const OptionTable<TrainOptions>& train_option_table();

// Whether an action with this cadence, where it counts every `every` steps, is due after `step`.
bool is_due(Cadence cadence, const std::optional<std::int64_t>& every, std::int64_t step, bool ends_epoch);

// Refuses combinations that no single row can: required options missing, eval_steps without eval_data, ...
void check_train_options(const TrainOptions& options, const OptionOrigins& origins);

// Whether a resumed run may have another value of this option (--allow_changed).
bool may_change(const OutputOptions& options, std::string_view name);

// Threads for the optimizer and host work: cpu_threads if given, else cpuadam_cores_perc of the `usable` CPUs, rounded
// down but at least one; of all of them, 0, which leaves the choice to Runtime. Fails if cpu_threads exceeds `usable`.
int resolve_cpu_threads(const TrainOptions& options, int usable);

// warmup_num_steps beats warmup, as in transformers, unless the ratio stands where more counts: on the command line
// rather than in a file, in a run file rather than in DeepSpeed's. Then the steps are forgotten. Once all have been
// read.
void resolve_warmup(TrainOptions& options, OptionOrigins& origins);
// Optimizer steps of linear warm-up in a run of `total_steps`: warmup_num_steps if given, else the ratio rounded up, as
// Hugging Face's TrainingArguments does.
std::int64_t resolve_warmup_steps(const ScheduleOptions& options, std::int64_t total_steps);

}  // namespace so
