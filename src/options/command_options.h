// The options of the commands beside `train`. Each struct has its one table in command_options.cpp.
#pragma once

#include <cstdint>
#include <string>

#include "base/options.h"
#include "options/plan_choice.h"
#include "options/train_options.h"

namespace so {

struct InitOptions {
  std::string config;     // a config.json, a directory that has one, or a preset's name
  std::string tokenizer;  // directory whose tokenizer files are copied; empty: none
  std::string output_dir;
  bool overwrite_output_dir = false;
  std::int64_t seed = 42;
  Precision dtype = Precision::automatic;
  bool verbose = false, quiet = false;
};

struct EvalOptions {
  std::string model;
  std::string data;
  int batch_size = 4;
  std::int64_t max_length = 2048;
  bool packing = false;
  bool train_on_prompt = false;
  bool parse_special_tokens = true;
  std::string cache_dir;
  DeviceChoice device = DeviceChoice::automatic;
  Precision dtype = Precision::automatic;
  int cpu_threads = 0;
  bool json = false;
  bool verbose = false, quiet = false;
};

struct GenerateOptions {
  std::string model;
  std::string prompt;       // exactly one of prompt and prompt_file is given
  std::string prompt_file;  // "-": standard input
  bool alpaca = false;
  bool parse_special_tokens = true;
  int max_new_tokens = 128;
  double temperature = 0;  // 0: greedy
  int top_k = 0;           // 0: all
  double top_p = 1;
  bool stop_at_eos = true;
  std::int64_t seed = 42;
  DeviceChoice device = DeviceChoice::automatic;
  Precision dtype = Precision::automatic;
  int cpu_threads = 0;
  bool json = false;
  bool verbose = false, quiet = false;
};

struct TokenizeOptions {
  std::string model;
  std::string text;  // exactly one of text, file, from_stdin and decode is given
  std::string file;
  bool from_stdin = false;
  std::string decode;  // token ids, decimal, separated by commas or spaces
  bool no_special_tokens = false;
  bool parse_special_tokens = true;
  bool json = false;
  bool verbose = false, quiet = false;
};

template <>
struct EnumNames<PlanChoice> {
  static constexpr std::pair<PlanChoice, std::string_view> list[] = {{PlanChoice::none, "none"},
                                                                     {PlanChoice::split, "split"},
                                                                     {PlanChoice::residency, "residency"},
                                                                     {PlanChoice::streaming, "streaming"},
                                                                     {PlanChoice::activations, "activations"},
                                                                     {PlanChoice::undo, "undo"},
                                                                     {PlanChoice::cast, "cast"}};
};

struct PlanOptions {
  std::string model;  // as InitOptions::config
  int batch_size = 4;
  std::int64_t max_length = 4096;
  int gradient_accumulation_steps = 1;
  OptimizerDevice offload_optimizer = OptimizerDevice::cpu;
  double offload_ratio = -1;  // as TrainOptions
  int streamed_layers = -1;   // as TrainOptions
  OffloadMode mode = OffloadMode::superoffload;
  CastChoice cast_side = CastChoice::automatic;
  std::int64_t bucket_size = 16 << 20;  // as TrainOptions
  StatePrecision optimizer_state_dtype = StatePrecision::fp32;
  Toggle activation_checkpointing = Toggle::automatic;
  Precision dtype = Precision::automatic;
  std::string hardware = "h200";                    // a file, or the key of a known machine
  std::int64_t device_memory = 0, host_memory = 0;  // as TrainOptions, in place of the hardware's; 0: that
  int gpus = 1;
  PlanChoice explain = PlanChoice::none;
  std::string trace;  // file; empty: none
  bool json = false;
  bool verbose = false, quiet = false;
};

struct ProfileOptions {
  std::string output = "hardware.json";
  bool overwrite = false;
  int cpu_threads = 0;
  bool verbose = false, quiet = false;
};

struct BenchStepOptions {
  std::string config;  // as InitOptions
  int batch_size = 4;
  std::int64_t max_length = 4096;
  int gradient_accumulation_steps = 1;
  std::int64_t steps = 5;
  std::int64_t warmup = 2;
  bool no_optimizer = false;  // forward and backward only
  OptimizerDevice offload_optimizer = OptimizerDevice::cpu;
  double offload_ratio = -1;  // as TrainOptions
  int streamed_layers = -1;   // as TrainOptions
  OffloadMode mode = OffloadMode::superoffload;
  CastChoice cast_side = CastChoice::automatic;
  double max_grad_norm = 1;
  StatePrecision optimizer_state_dtype = StatePrecision::fp32;
  std::int64_t bucket_size = 16 << 20;  // as TrainOptions
  Toggle activation_checkpointing = Toggle::automatic;
  bool breakdown = true;
  std::string trace;  // file; empty: none
  DeviceChoice device = DeviceChoice::automatic;
  Precision dtype = Precision::automatic;
  int cpu_threads = 0;
  std::int64_t device_memory = 0, host_memory = 0;  // as TrainOptions
  bool json = false;
  bool verbose = false, quiet = false;
};

struct BenchOpsOptions {
  std::string config = "qwen3-14b";
  std::int64_t tokens = 0;  // 0: as the device has it
  std::int64_t max_length = 4096;
  DeviceChoice device = DeviceChoice::automatic;
  Precision dtype = Precision::automatic;
  int cpu_threads = 0;
  bool json = false;
  bool verbose = false, quiet = false;
};

struct BenchLoadOptions {
  std::string model;
  std::int64_t rounds = 5;
  DeviceChoice device = DeviceChoice::automatic;
  Precision dtype = Precision::automatic;
  int cpu_threads = 0;
  bool json = false;
  bool verbose = false, quiet = false;
};

const OptionTable<InitOptions>& init_option_table();
const OptionTable<EvalOptions>& eval_option_table();
const OptionTable<GenerateOptions>& generate_option_table();
const OptionTable<TokenizeOptions>& tokenize_option_table();
const OptionTable<PlanOptions>& plan_option_table();
const OptionTable<ProfileOptions>& profile_option_table();
const OptionTable<BenchStepOptions>& bench_step_option_table();
const OptionTable<BenchOpsOptions>& bench_ops_option_table();
const OptionTable<BenchLoadOptions>& bench_load_option_table();

// Refuse what no single row can: required options missing, sources that exclude each other.
void check_options(const InitOptions& options, const OptionOrigins& origins);
void check_options(const EvalOptions& options, const OptionOrigins& origins);
void check_options(const GenerateOptions& options, const OptionOrigins& origins);
void check_options(const TokenizeOptions& options, const OptionOrigins& origins);
void check_options(const PlanOptions& options, const OptionOrigins& origins);
void check_options(const ProfileOptions& options, const OptionOrigins& origins);
void check_options(const BenchStepOptions& options, const OptionOrigins& origins);
void check_options(const BenchOpsOptions& options, const OptionOrigins& origins);
void check_options(const BenchLoadOptions& options, const OptionOrigins& origins);

}  // namespace so
