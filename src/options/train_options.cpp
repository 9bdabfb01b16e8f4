#include "options/train_options.h"

#include <algorithm>

#include "options/verbosity.h"

namespace so {
namespace {

// Where defaults come from; docs/command-line.md says which programs these are.
constexpr const char* script = "published script";
constexpr const char* recipe = "published recipes";
constexpr const char* trainer = "TrainingArguments";
constexpr const char* ours = "this program";

// The least value of options that enter fp32 arithmetic: far enough from the least normal number that no product is
// lost.
constexpr double smallest = 1e-30;

OptionTable<TrainOptions> make_table() {
  using O = TrainOptions;
  OptionTable<O> t;

  t.group("Model and data");
  t.add("model", &O::model, "Hugging Face model directory to start from: config.json, tokenizer, safetensors")
      .metavar("DIR")
      .required()
      .elsewhere("model_name")
      .elsewhere("model_name_or_path");
  t.add("data", &O::data, "Training records")
      .metavar("FILE")
      .required()
      .elsewhere("train_file")
      .elsewhere("dataset")
      .elsewhere("dataset_name");
  t.add("eval_data", &O::eval_data, "Held-out records whose loss is reported")
      .metavar("FILE")
      .default_from(ours)
      .elsewhere("validation_file")
      .elsewhere("eval_file");
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
  t.add("cache_dir", &O::cache_dir, "Where tokenised data is kept")
      .metavar("DIR")
      .default_from(ours)
      .when_unset("$XDG_CACHE_HOME/superoffload, else ~/.cache/superoffload");
  t.add("max_length", &O::max_length,
        "Longest sequence; longer records are cut. The default shrinks "
        "to the model's limit; a given value beyond it is an error")
      .unit("tokens")
      .at_least(2)
      .default_from(script)
      .affects_results()
      .elsewhere("max_seq_length")
      .elsewhere("model_max_length")
      .elsewhere("block_size");
  t.add("packing", &O::packing, "Fill each row with several records up to max_length; attention stays within a record")
      .default_from(ours)
      .affects_results();
  t.add("shuffle", &O::shuffle, "New random order of the records every epoch").default_from(script).affects_results();
  t.add("train_on_prompt", &O::train_on_prompt, "Count the prompt's tokens in the loss, not only the response's")
      .default_from(ours)
      .affects_results();
  add_parse_special_tokens(t).affects_results();

  t.group("Length of the run");
  t.add("batch_size", &O::batch_size, "Micro-batch of one rank")
      .unit("rows")
      .at_least(1)
      .at_most(1e6)
      .default_from(recipe)
      .deepspeed("train_micro_batch_size_per_gpu")
      .affects_results()
      .elsewhere("per_device_train_batch_size")
      .elsewhere("micro_batch_size");
  t.add("gradient_accumulation_steps", &O::gradient_accumulation_steps, "Micro-batches an optimizer step")
      .at_least(1)
      .at_most(1e6)
      .default_from(trainer)
      .deepspeed("gradient_accumulation_steps")
      .affects_results();
  t.add("num_train_epochs", &O::num_train_epochs, "Passes over the data")
      .at_least(1)
      .at_most(1e6)
      .default_from(script)
      .affects_results()
      .elsewhere("epochs");
  t.add("max_steps", &O::max_steps, "Optimizer steps of the whole run, instead of num_train_epochs")
      .at_least(1)
      .or_else(std::int64_t{-1}, "num_train_epochs decides")
      .default_from(trainer)
      .affects_results();
  t.add("max_skipped_steps", &O::max_skipped_steps,
        "Stop the run, with exit code 1, when so many optimizer steps in a row were skipped because gradients were not "
        "finite; nothing is saved then")
      .unit("steps")
      .at_least(1)
      .or_else(std::int64_t{0}, "never stop")
      .default_from(ours);
  t.add("seed", &O::seed, "Seed of the data order").at_least(0).default_from(script).affects_results();

  t.group("Optimizer (AdamW)");
  t.add("lr", &O::lr, "Peak learning rate")
      .at_least(smallest)
      .at_most(1000)
      .default_from(recipe)
      .deepspeed("optimizer.params.lr")
      .deepspeed("scheduler.params.warmup_max_lr")
      .affects_results()
      .elsewhere("learning_rate");
  t.add("lr_scheduler", &O::lr_scheduler, "Course of the learning rate after warm-up; cosine and linear end at 0")
      .default_from(trainer)
      .deepspeed("scheduler.type")
      .affects_results()
      .elsewhere("lr_scheduler_type");
  t.add("warmup", &O::warmup, "Share of the run's steps over which the learning rate rises linearly from 0")
      .at_least(0)
      .at_most(1)
      .default_from(script)
      .affects_results()
      .elsewhere("warmup_ratio");
  t.add("warmup_num_steps", &O::warmup_num_steps, "The same in optimizer steps, instead of warmup")
      .at_least(1)
      .or_else(std::int64_t{-1}, "warmup decides")
      .file_only()
      .default_from(ours)
      .deepspeed("scheduler.params.warmup_num_steps")
      .affects_results();
  t.add("weight_decay", &O::weight_decay, "Decoupled weight decay; norms and biases are exempt")
      .at_least(0)
      .at_most(1000)
      .default_from(script)
      .deepspeed("optimizer.params.weight_decay")
      .affects_results();
  t.add("adam_beta1", &O::adam_beta1, "Decay rate of the first moment")
      .at_least(0)
      .at_most(0.9999999)
      .default_from(trainer)
      .deepspeed("optimizer.params.betas[0]")
      .affects_results();
  t.add("adam_beta2", &O::adam_beta2, "Decay rate of the second moment")
      .at_least(0)
      .at_most(0.9999999)
      .default_from(trainer)
      .deepspeed("optimizer.params.betas[1]")
      .affects_results();
  t.add("adam_epsilon", &O::adam_epsilon, "Term added to the denominator")
      .at_least(smallest)
      .at_most(1)
      .default_from(trainer)
      .deepspeed("optimizer.params.eps")
      .affects_results();
  t.add("max_grad_norm", &O::max_grad_norm, "Clip the global gradient norm to this")
      .at_least(smallest)
      .at_most(1e30)
      .or_else(0.0, "no clipping")
      .default_from(trainer)
      .deepspeed("gradient_clipping")
      .affects_results();
  t.add(
       "optimizer_state_dtype", &O::optimizer_state_dtype,
       "Number format that the moments are kept in between steps; bf16 takes 8 bytes a parameter instead of 12, master "
       "weights among them, and needs adam_beta2 at most 0.996")
      .default_from(ours)
      .affects_results();

  t.group("Saving and resuming");
  t.add("save_steps", &O::save_steps, "Checkpoint every so many optimizer steps, and at the end")
      .unit("steps")
      .at_least(1)
      .or_else(std::int64_t{0}, "only at the end")
      .default_from(trainer);
  t.add("save_total_limit", &O::save_total_limit, "Keep only so many newest checkpoints")
      .at_least(1)
      .or_else(std::int64_t{0}, "all")
      .default_from(trainer);
  t.add("resume", &O::resume,
        "Continue from this checkpoint, or with \"latest\" from the newest in output_dir. Options that affect results "
        "must be those of the checkpoint, but a larger max_steps or num_train_epochs extends the run")
      .metavar("DIR|latest")
      .bare("latest")
      .when_unset("start from --model")
      .default_from(ours)
      .elsewhere("resume_from_checkpoint");

  t.group("Logging and evaluation");
  t.add("log_interval", &O::log_interval, "Log every so many optimizer steps")
      .unit("steps")
      .at_least(1)
      .default_from(script)
      .deepspeed("steps_per_print")
      .elsewhere("logging_steps");
  t.add("eval_steps", &O::eval_steps, "Evaluate on eval_data every so many optimizer steps, and at the end")
      .unit("steps")
      .at_least(1)
      .or_else(std::int64_t{0}, "only at the end")
      .default_from(ours);
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

  t.group("Benchmark");
  t.add("bench_steps", &O::bench_steps, "Stop after so many measured optimizer steps and print a summary")
      .unit("steps")
      .at_least(1)
      .or_else(std::int64_t{0}, "no benchmark")
      .default_from(ours);
  t.add("warmup_steps", &O::warmup_steps, "Optimizer steps before the measured ones; only with bench_steps")
      .unit("steps")
      .at_least(0)
      .default_from(script);

  t.group("Machine");
  t.add("device", &O::device, "Where forward and backward run; auto: cuda if there is a usable GPU, else cpu")
      .default_from(ours);
  t.add("dtype", &O::dtype,
        "Number format of forward and backward; master weights "
        "are always fp32; auto: what the model's config.json says")
      .default_from(ours)
      .deepspeed("bf16.enabled")
      .deepspeed("bfloat16.enabled")
      .affects_results();
  t.add("activation_checkpointing", &O::activation_checkpointing,
        "Recompute activations in backward instead of keeping them: true keeps each layer's input only, false keeps "
        "all, auto as much as fits. Results are the same")
      .bare("true")
      .default_from(ours)
      .elsewhere("gradient_checkpointing");
  t.add("bucket_size", &O::bucket_size, "Gradients transferred and updated at a time, counted in fp32")
      .unit("bytes")
      .at_least(4096)
      .default_from(ours)
      .deepspeed("zero_optimization.reduce_bucket_size");
  t.add("cpu_threads", &O::cpu_threads, "Threads for the optimizer and other host work")
      .at_least(1)
      .or_else(std::int64_t{0}, "cpuadam_cores_perc of the usable CPUs")
      .default_from(ours);
  add_memory_caps(t);

  t.group("Offload");
  t.add("deepspeed_config", &O::deepspeed_config,
        "DeepSpeed JSON; its values replace defaults, the command line replaces both. See docs/deepspeed-config.md")
      .metavar("FILE")
      .default_from(ours)
      .elsewhere("deepspeed");
  t.add("mode", &O::mode,
        "When AdamW runs on the CPU: superoffload overlapped with the device's work, "
        "zerooffload after backward, while the device waits. Results are the same")
      .default_from(ours)
      .deepspeed("zero_optimization.offload_optimizer.super_offload");
  t.add("offload_optimizer", &O::offload_optimizer,
        "Where optimizer state (fp32 weights, moments) is kept and updated: cpu for host memory, but for the share "
        "that offload_ratio leaves to the training device, none for all in the device's memory. Results are the same")
      .default_from(ours)
      .deepspeed("zero_optimization.offload_optimizer.device")
      .deepspeed("zero_optimization.cpu_offload");
  t.add("offload_ratio", &O::offload_ratio,
        "Share of the optimizer state that is kept on the CPU, at most: the state of the "
        "first layers is on the device, the fewest that meet it. Results are the same")
      .at_least(0)
      .at_most(1)
      .or_else(-1.0, "the fastest that fits; on the CPU device 1")
      .default_from(ours)
      .deepspeed("zero_optimization.offload_optimizer.ratio");
  t.add("streamed_layers", &O::streamed_layers,
        "Layers whose weights are kept in host memory and streamed to the device before each use, at most: of those "
        "whose optimizer state is on the CPU, evenly spread. Results are the same")
      .at_least(0)
      .at_most(100000)
      .or_else(-1, "the fastest that fits; on the CPU device 0")
      .default_from(ours);
  t.add("cast_side", &O::cast_side,
        "Where bf16 and fp32 are cast for what the CPU updates: host, inside its optimizer, so that bf16 crosses "
        "the link; device, so that fp32 does; auto: the faster one, by rates measured at start. Results are the same")
      .default_from(ours);
  t.add("profile", &O::profile,
        "Rates of this machine that a plan for a GPU is made from: cached, those that an earlier run or superoffload "
        "profile measured in the last 30 days, if there are any; fresh, measured now, in a few seconds")
      .default_from(ours);
  t.add("pin_memory", &O::pin_memory, "Page-lock the host memory that the GPU reads and writes")
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
  add_verbosity(t);
  return t;
}

}  // namespace

const OptionTable<TrainOptions>& train_option_table() {
  static const OptionTable<TrainOptions> table = make_table();
  return table;
}

void check_train_options(const TrainOptions& options, const OptionOrigins& origins) {
  check_required(train_option_table().view(options));
  if (options.eval_data.empty() && options.eval_steps > 0)
    fail("--eval_steps {} needs records to evaluate on: add --eval_data FILE", options.eval_steps);
  if (!options.resume.empty() && options.overwrite_output_dir)
    fail("--resume continues a run and --overwrite_output_dir discards it: give one of them");
  if (const double most = largest_beta2(options.optimizer_state_dtype); options.adam_beta2 > most)
    fail(
        "--optimizer_state_dtype bf16 needs --adam_beta2 of at most {}, not {}: above it rounding to bf16 swallows "
        "the second moments' decay, all or in part; use --adam_beta2 0.99, or --optimizer_state_dtype fp32",
        most, options.adam_beta2);
  // A ratio in the file gives way to none on the command line.
  if (options.offload_optimizer == OptimizerDevice::none && options.offload_ratio > 0 &&
      !(origins.of("offload_optimizer").origin == Origin::command_line &&
        origins.of("offload_ratio").origin == Origin::file))
    fail(
        "--offload_optimizer none leaves nothing for --offload_ratio {} to split: remove one of them, or use "
        "--offload_optimizer cpu",
        options.offload_ratio);
  if (options.trace.empty() && origins.given("trace_steps"))
    fail("--trace_steps counts the steps of a trace: add --trace FILE");
  if (options.bench_steps == 0 && origins.given("warmup_steps"))
    fail(
        "--warmup_steps counts the steps before a benchmark's measured ones: add --bench_steps N (for the learning "
        "rate's warm-up use --warmup RATIO)");
}

DType moments_dtype(StatePrecision precision) { return precision == StatePrecision::bf16 ? DType::bf16 : DType::f32; }

double largest_beta2(StatePrecision precision) { return precision == StatePrecision::bf16 ? 0.996 : 1; }

int resolve_cpu_threads(const TrainOptions& options, int usable) {
  SO_CHECK(usable >= 1, "{} usable CPUs", usable);
  if (options.cpu_threads > usable)
    fail("--cpu_threads {}: this process may use only {} CPUs", options.cpu_threads, usable);
  if (options.cpu_threads > 0) return options.cpu_threads;
  if (options.cpuadam_cores_perc == 1) return 0;
  return std::max(1, static_cast<int>(options.cpuadam_cores_perc * usable));
}

void check_cpu_threads(int threads, int usable) {
  if (threads > usable)
    fail("--cpu_threads {}: this process may use only {} CPUs; give {} or fewer, or none for all", threads, usable,
         usable);
}

std::int64_t resolve_warmup_steps(const TrainOptions& options, std::int64_t total_steps) {
  if (options.warmup_num_steps >= 0) return options.warmup_num_steps;
  return warmup_steps_of(options.warmup, total_steps);
}

}  // namespace so
