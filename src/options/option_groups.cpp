#include "options/option_groups.h"

#include "base/error.h"
#include "base/log.h"

namespace so {
namespace {

using namespace default_from;

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
const OptionTable<TextOptions>& text_rows() {
  static const auto rows = make_text();
  return rows;
}
const OptionTable<RecordOptions>& record_rows() {
  static const auto rows = make_records();
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

std::optional<DType> asked_dtype(Precision precision) {
  if (precision == Precision::automatic) return std::nullopt;
  return precision == Precision::bf16 ? DType::bf16 : DType::f32;
}

}  // namespace so
