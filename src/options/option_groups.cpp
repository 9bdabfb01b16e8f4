#include "options/option_groups.h"

#include "base/error.h"
#include "base/log.h"

namespace so {
namespace {

using namespace default_from;

// The least value of options that enter fp32 arithmetic: far enough from the least normal number that no product is
// lost.
constexpr double smallest = 1e-30;

OptionTable<RunFileOptions> make_run_file() {
  using O = RunFileOptions;
  OptionTable<O> t;
  t.add(
       "config", &O::config,
       "YAML file of options, a line an option (lr: 2e-5); it wins over a DeepSpeed file, and the command line over it")
      .metavar("FILE")
      .default_from(ours);
  t.add("print_config", &O::print_config,
        "Print such a file, with every option, the values given and all defaults, and do nothing else")
      .default_from(ours);
  return t;
}

OptionTable<MessageOptions> make_messages() {
  using O = MessageOptions;
  OptionTable<O> t;
  t.add("verbose", &O::verbose, "Say everything: settings, memory by use, reasons for each choice").default_from(ours);
  t.add(
       "quiet", &O::quiet,
       "Say nothing but warnings and errors; results still go to standard output, but for the lines that train ends with")
      .default_from(ours)
      .elsewhere("silent");
  return t;
}

OptionTable<JsonOption> make_json() {
  OptionTable<JsonOption> t;
  t.add("json", &JsonOption::json, "Print the result as one JSON object on standard output").default_from(ours);
  return t;
}

OptionTable<HubOptions> make_hub() {
  OptionTable<HubOptions> t;
  t.add(
       "download", &HubOptions::download,
       "Fetch what the Hugging Face cache lacks of a model or data set that is named as ORG/NAME, by huggingface_hub's "
       "hf download. Without it nothing is fetched")
      .default_from(ours);
  return t;
}

OptionTable<ThreadOption> make_threads() {
  OptionTable<ThreadOption> t;
  t.add("cpu_threads", &ThreadOption::cpu_threads, "Threads for host work")
      .at_least(1)
      .or_else(std::int64_t{0}, "all usable CPUs, but for one core beside a GPU")
      .default_from(ours);
  return t;
}

OptionTable<DtypeOption> make_dtype() {
  OptionTable<DtypeOption> t;
  t.add(
       "dtype", &DtypeOption::dtype,
       "Number format of the computation; auto: what the model's config.json says, else what its weights are stored in")
      .default_from(ours)
      .deepspeed("bf16.enabled")
      .deepspeed("bfloat16.enabled")
      .affects_results()
      .elsewhere("torch_dtype")
      .value_elsewhere("bfloat16", "bf16")
      .value_elsewhere("float32", "fp32")
      .value_elsewhere("float", "fp32");
  return t;
}

OptionTable<ComputeOptions> make_compute() {
  using O = ComputeOptions;
  OptionTable<O> t;
  t.add("device", &O::device, "Where the model runs; auto: cuda if there is a usable GPU, else cpu")
      .default_from(ours)
      .value_elsewhere("gpu", "cuda")
      .value_elsewhere("cuda:0", "cuda")
      .value_elsewhere("nvidia", "cuda")
      .elsewhere("use_cpu")
      .elsewhere("no_cuda");
  t.take(dtype_rows());
  t.take(thread_rows());
  return t;
}

OptionTable<RankOptions> make_ranks() {
  OptionTable<RankOptions> t;
  t.add("gpus", &RankOptions::gpus,
        "Ranks that share the run, a process each, with a GPU each and a share of the host's CPUs and memory, or with "
        "that share alone (--device cpu). The rows of a micro-batch and the micro-batches of a step are a rank's. "
        "Started through mpirun; who starts the ranks with mpirun or srun leaves this out")
      .unit("ranks")
      .at_least(1)
      .at_most(100'000)
      .default_from(ours)
      .elsewhere("num_gpus")
      .elsewhere("nproc_per_node")
      .elsewhere("num_processes");
  t.add(
       "sequence_parallel_size", &RankOptions::sequence_parallel_size,
       "Ranks that split the tokens of each micro-batch among them, for sequences that are too long for one: each has a "
       "slice of the tokens, and around attention some of the heads of all tokens (Ulysses). Divides the ranks and the "
       "model's heads. Rows and micro-batches are then a group's")
      .unit("ranks")
      .at_least(1)
      .at_most(100'000)
      .default_from(ours)
      .deepspeed("sequence_parallel_size")
      .elsewhere("sp_size");
  t.add(
       "bind_cores_to_rank", &RankOptions::bind_cores_to_rank,
       "Several ranks of a host each get cores of their own, of one NUMA node where they can. Ranks that a launcher has "
       "bound to CPUs keep them")
      .default_from(ours);
  t.add(
       "cpu_list", &RankOptions::cpu_list,
       "CPUs of this host that the run may use, as 0-31,64-95, whatever a launcher has bound its ranks to. Several ranks "
       "of a host share them as --bind_cores_to_rank says")
      .metavar("CPUS")
      .default_from(ours)
      .when_unset("those that the process may run on")
      .elsewhere("bind_core_list");
  t.add(
       "collectives", &RankOptions::collectives,
       "How ranks on GPUs exchange gradients and weights: p2p, by copies between linked GPUs of one host; nccl, by NCCL's "
       "kernels, on any number of hosts; host, by way of host memory, which is slower; or auto, p2p where it can be and "
       "else nccl. All but nccl let ranks share a GPU, to try a run. Results are the same")
      .default_from(ours);
  return t;
}

OptionTable<MemoryOptions> make_memory() {
  using O = MemoryOptions;
  constexpr const char* all = "all there is";
  OptionTable<O> t;
  t.add("device_memory", &O::device_memory,
        "Most of the GPU's memory that the run may take, as 20GB or 20GiB; the CUDA context comes on top")
      .unit("bytes")
      .at_least(1)
      .or_else(std::int64_t{0}, all)
      .default_from(ours);
  t.add("host_memory", &O::host_memory,
        "Most of the host's memory that the run may take, as 100GB; the program itself comes on top")
      .unit("bytes")
      .at_least(1)
      .or_else(std::int64_t{0}, all)
      .default_from(ours);
  return t;
}

OptionTable<TextOptions> make_text() {
  using O = TextOptions;
  OptionTable<O> t;
  t.add("parse_special_tokens", &O::parse_special_tokens,
        "Take the spelling of a special token inside a text for that token; false: as text like any other")
      .default_from(ours)
      .affects_results();
  return t;
}

OptionTable<RecordOptions> make_records() {
  using O = RecordOptions;
  OptionTable<O> t;
  t.add("train_on_prompt", &O::train_on_prompt, "Count the prompt's tokens in the loss, not only the response's")
      .default_from(ours)
      .affects_results()
      .elsewhere("train_on_inputs")
      .elsewhere("train_on_input");
  t.add("mask_history", &O::mask_history,
        "Count only the assistant's last turn of a conversation in the loss, not each of its turns")
      .default_from(ours)
      .affects_results()
      .elsewhere("train_on_last_turn");
  t.take(text_rows());
  t.add("cache_dir", &O::cache_dir, "Where tokenised data is kept")
      .metavar("DIR")
      .default_from(ours)
      .when_unset("$XDG_CACHE_HOME/superoffload, else ~/.cache/superoffload");
  return t;
}

OptionTable<RowOptions> make_rows() {
  using O = RowOptions;
  OptionTable<O> t;
  t.add("batch_size", &O::batch_size, "Micro-batch of one rank")
      .unit("rows")
      .at_least(1)
      .at_most(1e6)
      .default_from(recipe)
      .deepspeed("train_micro_batch_size_per_gpu")
      .affects_later_steps()
      .also("per_device_train_batch_size")
      .elsewhere("micro_batch_size");
  t.add(
       "max_length", &O::max_length,
       "Longest sequence; longer records are cut. The default shrinks to the model's limit; a given value beyond it is "
       "an error, unless train's rope_scaling extends it")
      .unit("tokens")
      .at_least(2)
      .default_from(script)
      .affects_results()
      .also("max_seq_length")
      .elsewhere("model_max_length")
      .elsewhere("sequence_len")
      .elsewhere("cutoff_len")
      .elsewhere("block_size");
  return t;
}

OptionTable<PlacementOptions> make_placement() {
  using O = PlacementOptions;
  OptionTable<O> t;
  t.add("mode", &O::mode,
        "When AdamW runs on the CPU: superoffload overlapped with the device's work, zerooffload after backward, while "
        "the device waits. Results are the same")
      .default_from(ours)
      .deepspeed("zero_optimization.offload_optimizer.super_offload");
  t.add("offload_optimizer", &O::offload_optimizer,
        "Where optimizer state (fp32 weights, moments) is kept and updated: cpu for host memory, but for the share "
        "that offload_ratio leaves to the training device, none for all in the device's memory. Results are the same")
      .default_from(ours)
      .deepspeed("zero_optimization.offload_optimizer.device")
      .deepspeed("zero_optimization.cpu_offload");
  t.add("offload_ratio", &O::offload_ratio,
        "Share of the optimizer state that is kept on the CPU, at most: the state of the first layers is on the "
        "device, the fewest that meet it. Results are the same")
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
  t.add("gathered_layers", &O::gathered_layers,
        "With several ranks: layers of whose weights and gradients each rank keeps a slice alone, at most, evenly "
        "spread; the weights are gathered from all ranks before each use. The others are whole on each rank. Results "
        "are the same, but for the order in which the gradients of several micro-batches are added up")
      .at_least(0)
      .at_most(100000)
      .or_else(-1, "the fastest that fits; on the CPU device 0, or all if they do not fit whole")
      .default_from(ours);
  t.add("cast_side", &O::cast_side,
        "Where bf16 and fp32 are cast for what the CPU updates: host, inside its optimizer, so that bf16 crosses the "
        "link; device, so that fp32 does; auto: the faster one, by rates measured at start. Results are the same")
      .default_from(ours);
  t.add("update_over_link", &O::update_over_link,
        "Whether the device also updates optimizer state that is kept on the CPU, which then travels over the link and "
        "back, beside the CPU's own updates: auto where that makes the simulated step shorter. Results are the same")
      .bare("true")
      .default_from(ours);
  t.add(
       "move_gradients", &O::move_gradients,
       "Whether gradients of layers whose optimizer state is on the CPU move to host memory as soon as they are "
       "complete, which saves device memory. With several micro-batches a step their sums are kept there, and come back "
       "to the device before each further one adds to them. auto: where the simulated step is shorter; on the CPU "
       "device false. Results are the same, but with several ranks for the order in which the gradients of several "
       "micro-batches are added up")
      .bare("true")
      .default_from(ours);
  t.add("bucket_size", &O::bucket_size, "Gradients transferred and updated at a time, counted in fp32")
      .unit("bytes")
      .at_least(4096)
      .default_from(ours)
      .deepspeed("zero_optimization.reduce_bucket_size");
  return t;
}

OptionTable<StepOptions> make_step() {
  using O = StepOptions;
  OptionTable<O> t;
  t.take(row_rows());
  t.add("gradient_accumulation_steps", &O::gradient_accumulation_steps, "Micro-batches an optimizer step")
      .at_least(1)
      .at_most(1e6)
      .default_from(trainer)
      .deepspeed("gradient_accumulation_steps")
      .affects_later_steps();
  t.add("activation_checkpointing", &O::activation_checkpointing,
        "Recompute activations in backward instead of keeping them: true keeps each layer's input at most, false keeps "
        "all, auto as much as fits. Results are the same")
      .bare("true")
      .default_from(ours)
      .also("gradient_checkpointing");
  t.add("grad_accum_dtype", &O::grad_accum_dtype,
        "Number format that the gradients of a step's micro-batches, and of several ranks, are added up in; bf16 takes "
        "2 bytes a parameter instead of 4, needs a bf16 model, and rounds the sum after each micro-batch. Ranks' are "
        "added in fp32, and then rounded")
      .default_from(ours)
      .deepspeed("data_types.grad_accum_dtype")
      .affects_later_steps();
  t.add("optimizer_state_dtype", &O::optimizer_state_dtype,
        "Number format that AdamW's moments are kept in between steps; bf16 takes 8 bytes a parameter instead of 12, "
        "master weights among them, and needs adam_beta2 at most 0.996")
      .default_from(ours)
      .affects_results();
  t.add("deterministic", &O::deterministic,
        "Whether a run repeats to the bit. false lets a GPU add up attention's gradient in whatever order is quickest, "
        "which shortens steps with documents of tens of thousands of tokens")
      .bare("true")
      .default_from(ours)
      .affects_later_steps()
      .elsewhere("full_determinism");
  t.take(placement_rows());
  t.take(memory_rows());
  return t;
}

OptionTable<ParameterOptions> make_parameter_rules() {
  OptionTable<ParameterOptions> t;
  t.add(
       "freeze", &ParameterOptions::freeze,
       "Parameters that are not trained: patterns of their names, with commas between, each of which must match a whole "
       "name, as a shell's do (\"model.embed_tokens.*,*norm.weight\"; * is any text, ? one character, [ab] one of "
       "these). They take no optimizer state and no gradient, and are written as they were read. Either name of tied "
       "embeddings freezes both")
      .metavar("PATTERN,...")
      .list()
      .when_unset("all are trained")
      .default_from(ours)
      .affects_results()
      .elsewhere("freeze_modules")
      .elsewhere("frozen_parameters");
  return t;
}

OptionTable<ClipOption> make_clip() {
  OptionTable<ClipOption> t;
  t.add("max_grad_norm", &ClipOption::max_grad_norm, "Clip the global gradient norm to this")
      .at_least(smallest)
      .at_most(1e30)
      .or_else(0.0, "no clipping")
      .default_from(trainer)
      .deepspeed("gradient_clipping")
      .affects_later_steps();
  return t;
}

OptionTable<AdamOptions> make_adam() {
  using O = AdamOptions;
  OptionTable<O> t;
  t.add("weight_decay", &O::weight_decay, "Decoupled weight decay; norms and biases are exempt")
      .at_least(0)
      .at_most(1000)
      .default_from(script)
      .deepspeed("optimizer.params.weight_decay")
      .affects_later_steps();
  t.add("adam_beta1", &O::adam_beta1, "Decay rate of the first moment")
      .at_least(0)
      .at_most(0.9999999)
      .default_from(trainer)
      .deepspeed("optimizer.params.betas[0]")
      .affects_later_steps();
  t.add("adam_beta2", &O::adam_beta2, "Decay rate of the second moment")
      .at_least(0)
      .at_most(0.9999999)
      .default_from(trainer)
      .deepspeed("optimizer.params.betas[1]")
      .affects_later_steps();
  t.add("adam_epsilon", &O::adam_epsilon, "Term added to the denominator")
      .at_least(smallest)
      .at_most(1)
      .default_from(trainer)
      .deepspeed("optimizer.params.eps")
      .affects_later_steps();
  t.take(clip_rows());
  return t;
}

}  // namespace

const OptionTable<RunFileOptions>& run_file_rows() {
  static const auto rows = make_run_file();
  return rows;
}
const OptionTable<MessageOptions>& message_rows() {
  static const auto rows = make_messages();
  return rows;
}
const OptionTable<JsonOption>& json_rows() {
  static const auto rows = make_json();
  return rows;
}
const OptionTable<HubOptions>& hub_rows() {
  static const auto rows = make_hub();
  return rows;
}
const OptionTable<ThreadOption>& thread_rows() {
  static const auto rows = make_threads();
  return rows;
}
const OptionTable<DtypeOption>& dtype_rows() {
  static const auto rows = make_dtype();
  return rows;
}
const OptionTable<ComputeOptions>& compute_rows() {
  static const auto rows = make_compute();
  return rows;
}

const OptionTable<RankOptions>& rank_rows() {
  static const auto rows = make_ranks();
  return rows;
}
const OptionTable<MemoryOptions>& memory_rows() {
  static const auto rows = make_memory();
  return rows;
}
const OptionTable<TextOptions>& text_rows() {
  static const auto rows = make_text();
  return rows;
}
const OptionTable<RecordOptions>& record_rows() {
  static const auto rows = make_records();
  return rows;
}
const OptionTable<RowOptions>& row_rows() {
  static const auto rows = make_rows();
  return rows;
}
const OptionTable<PlacementOptions>& placement_rows() {
  static const auto rows = make_placement();
  return rows;
}
const OptionTable<StepOptions>& step_rows() {
  static const auto rows = make_step();
  return rows;
}
const OptionTable<ParameterOptions>& parameter_rows() {
  static const auto rows = make_parameter_rules();
  return rows;
}
const OptionTable<ClipOption>& clip_rows() {
  static const auto rows = make_clip();
  return rows;
}
const OptionTable<AdamOptions>& adam_rows() {
  static const auto rows = make_adam();
  return rows;
}

void apply_verbosity(const MessageOptions& options) {
  if (options.verbose && options.quiet) fail("--verbose and --quiet exclude each other: give one of them");
  set_log_level(options.quiet ? LogLevel::warning : options.verbose ? LogLevel::detail : LogLevel::info);
}

void check_cpu_threads(const ThreadOption& options, int usable) {
  if (options.cpu_threads > usable)
    fail("--cpu_threads {}: this process may use only {} CPUs; give {} or fewer, or none for all", *options.cpu_threads,
         usable, usable);
}

void check_ranks(const RankOptions& options) {
  if (options.gpus % options.sequence_parallel_size == 0) return;
  if (options.gpus == 1)
    fail("--sequence_parallel_size {}: there is one rank; start as many, or a multiple (--gpus {}), or leave it out",
         options.sequence_parallel_size, options.sequence_parallel_size);
  fail("--sequence_parallel_size {} does not divide the {} ranks (--gpus): give a size that does, or other ranks",
       options.sequence_parallel_size, options.gpus);
}

void check_placement(const PlacementOptions& options, const OptionOrigins& origins, int ranks) {
  if (ranks == 1 && options.gathered_layers > 0)
    fail("--gathered_layers {}: there is one rank, which has all weights; start several (--gpus), or leave it out",
         *options.gathered_layers);
  // A ratio in a file gives way to none on the command line.
  if (options.offload_optimizer == OptimizerDevice::none && options.offload_ratio > 0 &&
      origins.of("offload_optimizer").origin <= origins.of("offload_ratio").origin)
    fail(
        "--offload_optimizer none leaves nothing for --offload_ratio {} to split: remove one of them, or use "
        "--offload_optimizer cpu",
        *options.offload_ratio);
  if (ranks > 1 && options.streamed_layers > 0)
    fail(
        "--streamed_layers {}: weights do not stream from host memory with several ranks yet, and there are {}; "
        "leave it out",
        *options.streamed_layers, ranks);
}

std::optional<DType> asked_dtype(Precision precision) {
  if (precision == Precision::automatic) return std::nullopt;
  return precision == Precision::bf16 ? DType::bf16 : DType::f32;
}

DType moments_dtype(StatePrecision precision) { return precision == StatePrecision::bf16 ? DType::bf16 : DType::f32; }

double largest_beta2(StatePrecision precision) { return precision == StatePrecision::bf16 ? 0.996 : 1; }

}  // namespace so
