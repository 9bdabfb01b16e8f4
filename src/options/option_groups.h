// Options that several commands share: a group is a struct that a command's options have as a base, and one table,
// whose rows the command takes. An option that is added here is an option of all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "options/choices.h"

namespace so {

// How much a command says.
struct MessageOptions {
  bool verbose = false, quiet = false;
};

struct JsonOption {
  bool json = false;
};

// Whether a repository of the Hugging Face hub that an option names is fetched where the cache lacks it.
struct HubOptions {
  bool download = false;
};

struct DtypeOption {
  Precision dtype = Precision::automatic;
};

struct ThreadOption {
  std::optional<int> cpu_threads;
};

// The processes that share a run.
struct RankOptions {
  int gpus = 1;
  int sequence_parallel_size = 1;  // ranks that split the tokens of each micro-batch
  bool bind_cores_to_rank = true;
  std::string cpu_list;                                      // empty: whatever the process may run on
  CollectiveRoute collectives = CollectiveRoute::automatic;  // of GPUs
};

// Where a model runs, and how it computes.
struct ComputeOptions : DtypeOption, ThreadOption {
  DeviceChoice device = DeviceChoice::automatic;
};

// Bytes that the run may have of each memory.
struct MemoryOptions {
  std::optional<std::int64_t> device_memory, host_memory;
};

// How texts and records become tokens.
struct TextOptions {
  bool parse_special_tokens = true;
};
struct RecordOptions : TextOptions {
  bool train_on_prompt = false;
  bool mask_history = false;
  std::optional<std::string> cache_dir;
};

// These options say how many rows and tokens are worked on at a time.
struct RowOptions {
  std::int64_t batch_size = 4;  // rows a rank and micro-batch
  std::int64_t max_length = 2048;
};

// Who keeps and updates the optimizer state, and when.
struct PlacementOptions {
  OptimizerDevice offload_optimizer = OptimizerDevice::cpu;
  std::optional<double> offload_ratio;  // share of optimizer state on the CPU, at most; unset: chosen by the program
  std::optional<int> streamed_layers;   // at most, whose weights stream from host memory; unset: chosen by the program
  std::optional<int> gathered_layers;   // at most, of which each rank has slices alone; unset: chosen by the program
  OffloadMode mode = OffloadMode::superoffload;
  CastChoice cast_side = CastChoice::automatic;
  Toggle update_over_link = Toggle::automatic;
  Toggle move_gradients = Toggle::automatic;
  std::int64_t bucket_size = 16 << 20;  // bytes of fp32 gradient
};

// All that decides about the memory and the time of a step, but for the model and the machine.
struct StepOptions : RowOptions, PlacementOptions, MemoryOptions {
  std::int64_t gradient_accumulation_steps = 1;
  SumPrecision grad_accum_dtype = SumPrecision::fp32;
  StatePrecision optimizer_state_dtype = StatePrecision::fp32;
  bool fp8 = false;
  std::optional<std::string> fp8_keep_layers;  // as kept_layers() reads it
  Toggle activation_checkpointing = Toggle::automatic;
  bool deterministic = true;
};

// How many of the first and of the last layers have no products in FP8.
struct KeptLayers {
  std::int64_t first = 0, last = 0;
};
KeptLayers kept_layers(const StepOptions& options);

// Which part of the model is trained.
struct ParameterOptions {
  std::optional<std::string> freeze;  // patterns of names, with commas between
};

struct ClipOption {
  std::optional<double> max_grad_norm = 1.0;  // unset: no clipping
};
struct AdamOptions : ClipOption {
  double weight_decay = 0.01;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
};

// Options in a file (options/run_file.h).
struct RunFileOptions {
  std::optional<std::string> config;
  bool print_config = false;
};

// The rows, as `train` has them.
const OptionTable<RunFileOptions>& run_file_rows();
const OptionTable<MessageOptions>& message_rows();
const OptionTable<JsonOption>& json_rows();
const OptionTable<HubOptions>& hub_rows();
const OptionTable<ThreadOption>& thread_rows();
const OptionTable<DtypeOption>& dtype_rows();
const OptionTable<ComputeOptions>& compute_rows();
const OptionTable<RankOptions>& rank_rows();
const OptionTable<MemoryOptions>& memory_rows();
const OptionTable<TextOptions>& text_rows();
const OptionTable<RecordOptions>& record_rows();
const OptionTable<RowOptions>& row_rows();
const OptionTable<PlacementOptions>& placement_rows();
const OptionTable<StepOptions>& step_rows();
const OptionTable<ParameterOptions>& parameter_rows();
const OptionTable<ClipOption>& clip_rows();
const OptionTable<AdamOptions>& adam_rows();

// Sets the level of the log. Fails if both are given.
void apply_verbosity(const MessageOptions& options);

// Fails if more threads are given than the `usable` CPUs.
void check_cpu_threads(const ThreadOption& options, int usable);

// Refuses groups of ranks that the ranks cannot be cut into.
void check_ranks(const RankOptions& options);

// Refuses an --offload_ratio that --offload_optimizer none leaves nothing to split, and what that number of ranks
// cannot do.
void check_placement(const PlacementOptions& options, const OptionOrigins& origins, int ranks);

// Where defaults come from; docs/command-line.md says which programs these are.
namespace default_from {
constexpr const char* script = "published script";
constexpr const char* recipe = "published recipes";
constexpr const char* trainer = "TrainingArguments";
constexpr const char* ours = "this program";
constexpr const char* train = "as train";
}  // namespace default_from

}  // namespace so
