#include "options/command_options.h"

#include "io/presets.h"
#include "options/verbosity.h"

namespace so {
namespace {

constexpr const char* ours = "this program";
constexpr const char* generation = "GenerationConfig";

// Rows that several commands have in common, so that they cannot come to mean different things.
template <class S>
void add_model(OptionTable<S>& t) {
  t.add("model", &S::model, "Hugging Face model directory: config.json, tokenizer, safetensors")
      .metavar("DIR")
      .required()
      .elsewhere("model_name")
      .elsewhere("model_name_or_path");
}

template <class S>
OptionSpec& add_config(OptionTable<S>& t) {
  return t
      .add("config", &S::config,
           "config.json of the model, a directory that has one, or a preset: " + names_of(model_presets()))
      .metavar("FILE|DIR|PRESET")
      .elsewhere("model");
}

template <class S>
void add_machine(OptionTable<S>& t) {
  t.group("Machine");
  t.add("device", &S::device, "Where the model runs; auto: cuda if there is a usable GPU, else cpu").default_from(ours);
  t.add("dtype", &S::dtype, "Number format of the computation; auto: what the model's config.json says")
      .default_from(ours);
  t.add("cpu_threads", &S::cpu_threads, "Threads for host work")
      .at_least(1)
      .or_else(std::int64_t{0}, "all usable CPUs, but for one core beside a GPU")
      .default_from(ours);
}

template <class S>
void add_json(OptionTable<S>& t) {
  t.add("json", &S::json, "Print the result as one JSON object on standard output").default_from(ours);
}

// A step, and where it has its state.
template <class S>
void add_rows(OptionTable<S>& t, const char* rows) {
  t.add("batch_size", &S::batch_size, rows).unit("rows").at_least(1).at_most(1e6).default_from("as train");
  t.add("max_length", &S::max_length, "Tokens a row").unit("tokens").at_least(2).at_most(1e9).default_from(ours);
}

template <class S>
void add_accumulation(OptionTable<S>& t) {
  t.add("gradient_accumulation_steps", &S::gradient_accumulation_steps, "Micro-batches a step")
      .at_least(1)
      .at_most(1e6)
      .default_from("as train");
}

template <class S>
void add_placement(OptionTable<S>& t) {
  t.add("offload_optimizer", &S::offload_optimizer,
        "Where optimizer state is kept: cpu, or none for the training device")
      .default_from("as train");
  t.add("offload_ratio", &S::offload_ratio, "Share of the optimizer state that is kept on the CPU, at most")
      .at_least(0)
      .at_most(1)
      .or_else(-1.0, "the fastest that fits; on the CPU device 1")
      .default_from("as train");
  t.add("streamed_layers", &S::streamed_layers,
        "Layers whose weights are streamed from host memory before each use, at most")
      .at_least(0)
      .at_most(100000)
      .or_else(-1, "the fastest that fits; on the CPU device 0")
      .default_from("as train");
  t.add("mode", &S::mode,
        "When AdamW runs on the CPU: superoffload overlapped with the device's work, zerooffload after it")
      .default_from("as train");
  t.add("cast_side", &S::cast_side, "Where bf16 and fp32 are cast for what the CPU updates").default_from("as train");
  t.add("bucket_size", &S::bucket_size, "Gradients transferred and updated at a time, counted in fp32")
      .unit("bytes")
      .at_least(4096)
      .default_from("as train");
}

template <class S>
void add_formats(OptionTable<S>& t) {
  t.add("optimizer_state_dtype", &S::optimizer_state_dtype, "Number format that AdamW's moments are kept in")
      .default_from("as train");
  t.add("activation_checkpointing", &S::activation_checkpointing,
        "Recompute activations in backward instead of keeping them; auto: if they would not fit")
      .bare("true")
      .default_from("as train")
      .elsewhere("gradient_checkpointing");
}

OptionTable<InitOptions> make_init() {
  using O = InitOptions;
  OptionTable<O> t;
  t.group("Model");
  add_config(t).required();
  t.add("tokenizer", &O::tokenizer, "Directory whose tokenizer files are copied along")
      .metavar("DIR")
      .default_from(ours);
  t.add("output_dir", &O::output_dir, "Model directory to write").metavar("DIR").required();
  t.add(
       "overwrite_output_dir", &O::overwrite_output_dir,
       "Replace the model or run in an output directory that is not empty: the files that this program wrote there, by "
       "its record of them, and nothing else")
      .default_from(ours);
  t.add("seed", &O::seed, "Seed of the random weights").at_least(0).default_from("TrainingArguments");
  t.add("dtype", &O::dtype, "Number format of the stored weights; auto: what config.json says").default_from(ours);
  add_verbosity(t);
  return t;
}

OptionTable<EvalOptions> make_eval() {
  using O = EvalOptions;
  OptionTable<O> t;
  t.group("Model and data");
  add_model(t);
  t.add("data", &O::data, "Records whose loss is measured").metavar("FILE").required().elsewhere("eval_data");
  t.add("batch_size", &O::batch_size, "Rows at a time").unit("rows").at_least(1).at_most(1e6).default_from("as train");
  t.add("max_length", &O::max_length,
        "Longest sequence; longer records are cut. The default shrinks "
        "to the model's limit; a given value beyond it is an error")
      .unit("tokens")
      .at_least(2)
      .default_from("as train");
  t.add("packing", &O::packing, "Fill each row with several records up to max_length; attention stays within a record")
      .default_from("as train");
  t.add("train_on_prompt", &O::train_on_prompt, "Count the prompt's tokens in the loss, not only the response's")
      .default_from("as train");
  add_parse_special_tokens(t);
  t.add("cache_dir", &O::cache_dir, "Where tokenised data is kept")
      .metavar("DIR")
      .default_from("as train")
      .when_unset("$XDG_CACHE_HOME/superoffload, else ~/.cache/superoffload");
  add_json(t);
  add_machine(t);
  add_verbosity(t);
  return t;
}

OptionTable<GenerateOptions> make_generate() {
  using O = GenerateOptions;
  OptionTable<O> t;
  t.group("Model and prompt");
  add_model(t);
  t.add("prompt", &O::prompt, "Text to continue").default_from(ours);
  t.add("prompt_file", &O::prompt_file, "File with the text to continue; - is standard input")
      .metavar("FILE")
      .default_from(ours);
  t.add("alpaca", &O::alpaca, "Wrap the prompt in the Alpaca template: ### Instruction, ### Response")
      .default_from(ours);
  add_parse_special_tokens(t);
  t.group("Sampling");
  t.add("max_new_tokens", &O::max_new_tokens, "Most tokens to generate").unit("tokens").at_least(1).default_from(ours);
  t.add("temperature", &O::temperature, "Softmax temperature")
      .at_least(1e-6)
      .at_most(1e6)
      .or_else(0.0, "greedy")
      .default_from(ours);
  t.add("top_k", &O::top_k, "Sample from so many most probable tokens")
      .at_least(1)
      .or_else(std::int64_t{0}, "all")
      .default_from(ours);
  t.add("top_p", &O::top_p, "Sample from the fewest tokens that reach this probability")
      .above(0)
      .at_most(1)
      .default_from(generation);
  t.add("stop_at_eos", &O::stop_at_eos, "Stop at the model's end-of-text token").default_from(ours);
  t.add("seed", &O::seed, "Seed of the sampling").at_least(0).default_from("TrainingArguments");
  t.group("Result");
  add_json(t);
  add_machine(t);
  add_verbosity(t);
  return t;
}

OptionTable<TokenizeOptions> make_tokenize() {
  using O = TokenizeOptions;
  OptionTable<O> t;
  t.group("Tokenizer and input");
  t.add("model", &O::model, "Directory with the tokenizer's files").metavar("DIR").required().elsewhere("tokenizer");
  t.add("text", &O::text, "Text to encode").default_from(ours);
  t.add("file", &O::file, "File whose content is encoded").metavar("FILE").default_from(ours);
  t.add("stdin", &O::from_stdin, "Encode standard input").default_from(ours);
  t.add("decode", &O::decode, "Token ids to decode, separated by commas or spaces").metavar("IDS").default_from(ours);
  t.add("no_special_tokens", &O::no_special_tokens, "Add no special tokens when encoding, drop them when decoding")
      .default_from(ours)
      .elsewhere("skip_special_tokens");
  add_parse_special_tokens(t);
  t.group("Result");
  add_json(t);
  add_verbosity(t);
  return t;
}

OptionTable<BenchStepOptions> make_bench_step() {
  using O = BenchStepOptions;
  OptionTable<O> t;
  t.group("Model and step");
  add_config(t).required();
  add_rows(t, "Rows of random tokens a micro-batch");
  add_accumulation(t);
  t.add("no_optimizer", &O::no_optimizer, "Forward and backward only: no optimizer state, no update")
      .default_from(ours);
  add_placement(t);
  t.add("max_grad_norm", &O::max_grad_norm,
        "Clip the global gradient norm to this; a large one clips rarely, a small one always")
      .at_least(1e-30)
      .at_most(1e30)
      .default_from("as train");
  add_formats(t);
  t.group("Measurement");
  t.add("steps", &O::steps, "Measured steps").unit("steps").at_least(1).at_most(1e6).default_from(ours);
  t.add("warmup", &O::warmup, "Steps before them").unit("steps").at_least(0).at_most(1e6).default_from(ours);
  t.add("breakdown", &O::breakdown, "Trace two more steps and say where their time went").default_from(ours);
  t.add("trace", &O::trace, "Write a timeline of two more steps for ui.perfetto.dev")
      .metavar("FILE")
      .default_from(ours);
  add_json(t);
  add_machine(t);
  add_memory_caps(t);
  add_verbosity(t);
  return t;
}

OptionTable<PlanOptions> make_plan() {
  using O = PlanOptions;
  OptionTable<O> t;
  t.group("Model and step");
  t.add("model", &O::model, "Hugging Face model directory, a config.json, or a preset: " + names_of(model_presets()))
      .metavar("DIR|FILE|PRESET")
      .required()
      .elsewhere("config");
  add_rows(t, "Rows of a micro-batch");
  add_accumulation(t);
  add_placement(t);
  add_formats(t);
  t.add("dtype", &O::dtype, "Number format of the computation; auto: what the model's config.json says")
      .default_from(ours);
  t.group("Machine");
  t.add("hardware", &O::hardware,
        "Hardware file, as superoffload profile writes it, or a known machine: " + names_of(hardware_presets()))
      .metavar("FILE|NAME")
      .default_from(ours);
  t.add("gpus", &O::gpus, "GPUs").at_least(1).at_most(1e6).default_from(ours);
  add_memory_caps(t);
  t.group("Result");
  t.add("explain", &O::explain,
        "One choice of the plan: what else there was, how long a step would take with it, and why it lost")
      .default_from(ours);
  t.add("trace", &O::trace, "Write a step as it is expected to be as a timeline for ui.perfetto.dev")
      .metavar("FILE")
      .default_from(ours);
  add_json(t);
  add_verbosity(t);
  return t;
}

OptionTable<ProfileOptions> make_profile() {
  using O = ProfileOptions;
  OptionTable<O> t;
  t.group("Result");
  t.add("output", &O::output, "Hardware file to write").metavar("FILE").default_from(ours);
  t.add("overwrite", &O::overwrite, "Replace a file that is there").default_from(ours);
  t.group("Machine");
  t.add("cpu_threads", &O::cpu_threads, "Threads for host work")
      .at_least(1)
      .or_else(std::int64_t{0}, "all usable CPUs, but for one core beside a GPU")
      .default_from(ours);
  add_verbosity(t);
  return t;
}

OptionTable<BenchOpsOptions> make_bench_ops() {
  using O = BenchOpsOptions;
  OptionTable<O> t;
  t.group("Shapes");
  add_config(t).default_from(ours);
  t.add("tokens", &O::tokens, "Tokens of a micro-batch")
      .unit("tokens")
      .at_least(1)
      .at_most(1e9)
      .or_else(std::int64_t{0}, "16384 on a GPU, 256 on the CPU")
      .default_from(ours);
  t.add("max_length", &O::max_length, "Longest document, for attention").unit("tokens").at_least(1).default_from(ours);
  t.group("Result");
  add_json(t);
  add_machine(t);
  add_verbosity(t);
  return t;
}

OptionTable<BenchLoadOptions> make_bench_load() {
  using O = BenchLoadOptions;
  OptionTable<O> t;
  t.group("Model");
  t.add("model", &O::model, "Hugging Face model directory: config.json, safetensors").metavar("DIR").required();
  t.group("Measurement");
  t.add("rounds", &O::rounds, "Measured rounds, of which the median counts")
      .unit("rounds")
      .at_least(1)
      .at_most(1e6)
      .default_from(ours);
  add_json(t);
  add_machine(t);
  add_verbosity(t);
  return t;
}

// `names` are options of which exactly one must be given, even if its value is empty.
void check_exactly_one(OptionsView options, const OptionOrigins& origins, std::initializer_list<const char*> names) {
  std::vector<std::string> given, all;
  for (const char* name : names) {
    all.push_back(std::string("--") + name);
    if (origins.given(name) && to_string(options.get(name)) != "false") given.push_back(all.back());
  }
  if (given.size() == 1) return;
  if (given.empty()) fail("missing {}", join(all, " or "));
  fail("{} exclude each other: give one of them", join(given, " and "));
}

void check_placement(OptimizerDevice optimizer, double ratio) {
  if (optimizer == OptimizerDevice::none && ratio > 0)
    fail(
        "--offload_optimizer none leaves nothing for --offload_ratio {} to split: remove one of them, or use "
        "--offload_optimizer cpu",
        ratio);
}

}  // namespace

const OptionTable<InitOptions>& init_option_table() {
  static const OptionTable<InitOptions> table = make_init();
  return table;
}
const OptionTable<EvalOptions>& eval_option_table() {
  static const OptionTable<EvalOptions> table = make_eval();
  return table;
}
const OptionTable<GenerateOptions>& generate_option_table() {
  static const OptionTable<GenerateOptions> table = make_generate();
  return table;
}
const OptionTable<TokenizeOptions>& tokenize_option_table() {
  static const OptionTable<TokenizeOptions> table = make_tokenize();
  return table;
}
const OptionTable<PlanOptions>& plan_option_table() {
  static const OptionTable<PlanOptions> table = make_plan();
  return table;
}
const OptionTable<ProfileOptions>& profile_option_table() {
  static const OptionTable<ProfileOptions> table = make_profile();
  return table;
}
const OptionTable<BenchStepOptions>& bench_step_option_table() {
  static const OptionTable<BenchStepOptions> table = make_bench_step();
  return table;
}
const OptionTable<BenchOpsOptions>& bench_ops_option_table() {
  static const OptionTable<BenchOpsOptions> table = make_bench_ops();
  return table;
}
const OptionTable<BenchLoadOptions>& bench_load_option_table() {
  static const OptionTable<BenchLoadOptions> table = make_bench_load();
  return table;
}

void check_options(const InitOptions& options, const OptionOrigins&) {
  check_required(init_option_table().view(options));
}

void check_options(const EvalOptions& options, const OptionOrigins&) {
  check_required(eval_option_table().view(options));
}

void check_options(const GenerateOptions& options, const OptionOrigins& origins) {
  const OptionsView view = generate_option_table().view(options);
  check_required(view);
  check_exactly_one(view, origins, {"prompt", "prompt_file"});
  for (const char* name : {"top_k", "top_p"})
    if (options.temperature == 0 && origins.given(name))
      fail("--{} has no effect on greedy generation: add --temperature T, or remove it", name);
}

void check_options(const TokenizeOptions& options, const OptionOrigins& origins) {
  const OptionsView view = tokenize_option_table().view(options);
  check_required(view);
  check_exactly_one(view, origins, {"text", "file", "stdin", "decode"});
  if (origins.given("decode") && origins.given("parse_special_tokens"))
    fail("--parse_special_tokens is about text that is encoded: remove it beside --decode");
}

void check_options(const BenchStepOptions& options, const OptionOrigins& origins) {
  check_required(bench_step_option_table().view(options));
  for (const char* name : {"offload_optimizer", "offload_ratio", "mode", "optimizer_state_dtype"})
    if (options.no_optimizer && origins.given(name))
      fail("--no_optimizer and --{} exclude each other: give one of them", name);
  check_placement(options.offload_optimizer, options.offload_ratio);
  if (!options.breakdown && !options.trace.empty())
    fail("--trace writes the steps that --breakdown false leaves out: remove one of them");
}

void check_options(const PlanOptions& options, const OptionOrigins&) {
  check_required(plan_option_table().view(options));
  check_placement(options.offload_optimizer, options.offload_ratio);
}

void check_options(const ProfileOptions& options, const OptionOrigins&) {
  check_required(profile_option_table().view(options));
}

void check_options(const BenchOpsOptions& options, const OptionOrigins&) {
  check_required(bench_ops_option_table().view(options));
}

void check_options(const BenchLoadOptions& options, const OptionOrigins&) {
  check_required(bench_load_option_table().view(options));
}

}  // namespace so
