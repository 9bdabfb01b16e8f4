// The options of `superoffload train`: the struct and, in train_options.cpp, its one table.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/dtype.h"
#include "base/options.h"
#include "device/device.h"
#include "optim/lr_schedule.h"

namespace so {

using LrScheduler = LrScheduleKind;
enum class Precision : std::uint8_t { automatic, bf16, fp32 };
enum class StatePrecision : std::uint8_t { fp32, bf16 };  // of AdamW's moments
enum class Toggle : std::uint8_t { automatic, on, off };
// The published system's two modes, as schedules of what the host owns (offload/engine.h): overlapped, synchronous.
enum class OffloadMode : std::uint8_t { superoffload, zerooffload };
enum class CastChoice : std::uint8_t { automatic, host, device };  // as CastSide (offload/memory/staging_ring.h)
enum class ProfileUse : std::uint8_t { cached, fresh };   // the machine's rates: of an earlier run, or measured now
enum class OptimizerDevice : std::uint8_t { cpu, none };  // where optimizer state lives; none: with the weights

template <>
struct EnumNames<LrScheduler> {
  static constexpr std::pair<LrScheduler, std::string_view> list[] = {
      {LrScheduler::cosine, "cosine"}, {LrScheduler::linear, "linear"}, {LrScheduler::constant, "constant"}};
};
template <>
struct EnumNames<Precision> {
  static constexpr std::pair<Precision, std::string_view> list[] = {
      {Precision::automatic, "auto"}, {Precision::bf16, "bf16"}, {Precision::fp32, "fp32"}};
};
template <>
struct EnumNames<StatePrecision> {
  static constexpr std::pair<StatePrecision, std::string_view> list[] = {{StatePrecision::fp32, "fp32"},
                                                                         {StatePrecision::bf16, "bf16"}};
};
template <>
struct EnumNames<DeviceChoice> {
  static constexpr std::pair<DeviceChoice, std::string_view> list[] = {
      {DeviceChoice::automatic, "auto"}, {DeviceChoice::cpu, "cpu"}, {DeviceChoice::cuda, "cuda"}};
};
template <>
struct EnumNames<Toggle> {
  static constexpr std::pair<Toggle, std::string_view> list[] = {
      {Toggle::automatic, "auto"}, {Toggle::on, "true"}, {Toggle::off, "false"}};
};
template <>
struct EnumNames<OffloadMode> {
  static constexpr std::pair<OffloadMode, std::string_view> list[] = {{OffloadMode::superoffload, "superoffload"},
                                                                      {OffloadMode::zerooffload, "zerooffload"}};
};
template <>
struct EnumNames<CastChoice> {
  static constexpr std::pair<CastChoice, std::string_view> list[] = {
      {CastChoice::automatic, "auto"}, {CastChoice::host, "host"}, {CastChoice::device, "device"}};
};
template <>
struct EnumNames<ProfileUse> {
  static constexpr std::pair<ProfileUse, std::string_view> list[] = {{ProfileUse::cached, "cached"},
                                                                     {ProfileUse::fresh, "fresh"}};
};
template <>
struct EnumNames<OptimizerDevice> {
  static constexpr std::pair<OptimizerDevice, std::string_view> list[] = {{OptimizerDevice::cpu, "cpu"},
                                                                          {OptimizerDevice::none, "none"}};
};

// An empty path means "not given". Meanings, ranges and units are in the table.
struct TrainOptions {
  // Model and data
  std::string model;
  std::string data;
  std::string eval_data;
  std::string output_dir;
  bool overwrite_output_dir = false;
  bool dry_run = false;
  std::string cache_dir;
  std::int64_t max_length = 2048;
  bool packing = false;
  bool shuffle = true;
  bool train_on_prompt = false;
  bool parse_special_tokens = true;
  // Length of the run
  int batch_size = 4;  // rows a rank and micro-batch
  int gradient_accumulation_steps = 1;
  std::int64_t num_train_epochs = 1;
  std::int64_t max_steps = -1;          // > 0 beats num_train_epochs
  std::int64_t max_skipped_steps = 10;  // in a row; 0: never stop
  std::int64_t seed = 42;
  // Optimizer
  double lr = 1e-5;
  LrScheduler lr_scheduler = LrScheduler::linear;
  double warmup = 0.01;                // share of all optimizer steps
  std::int64_t warmup_num_steps = -1;  // >= 0 beats `warmup`; DeepSpeed file only
  double weight_decay = 0.01;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double max_grad_norm = 1.0;  // 0: no clipping
  StatePrecision optimizer_state_dtype = StatePrecision::fp32;
  // Saving and resuming
  std::int64_t save_steps = 500;
  int save_total_limit = 0;
  std::string resume;  // empty: no; "latest": newest checkpoint in output_dir; else a checkpoint directory
  // Logging and evaluation
  std::int64_t log_interval = 1;
  std::int64_t eval_steps = 0;
  bool wall_clock_breakdown = false;  // DeepSpeed file only
  std::string trace;                  // file; empty: none
  std::int64_t trace_steps = 1;
  // Benchmark
  std::int64_t bench_steps = 0;
  std::int64_t warmup_steps = 15;
  // Machine
  DeviceChoice device = DeviceChoice::automatic;
  Precision dtype = Precision::automatic;
  Toggle activation_checkpointing = Toggle::automatic;
  std::int64_t bucket_size = 16 << 20;  // bytes of fp32 gradient
  int cpu_threads = 0;
  std::int64_t device_memory = 0;  // bytes that the run may have; 0: all there is
  std::int64_t host_memory = 0;
  // Offload
  std::string deepspeed_config;
  OffloadMode mode = OffloadMode::superoffload;
  OptimizerDevice offload_optimizer = OptimizerDevice::cpu;
  double offload_ratio = -1;  // share of optimizer state on the CPU, at most; -1: chosen by the program
  int streamed_layers = -1;   // at most, whose weights stream from host memory; -1: chosen by the program
  CastChoice cast_side = CastChoice::automatic;
  ProfileUse profile = ProfileUse::cached;
  bool pin_memory = true;         // DeepSpeed file only
  double cpuadam_cores_perc = 1;  // DeepSpeed file only
  // Messages
  bool verbose = false;
  bool quiet = false;
};

const OptionTable<TrainOptions>& train_option_table();

// Rows of every command that plans a step.
template <class S>
void add_memory_caps(OptionTable<S>& t) {
  constexpr const char* all = "all there is";
  t.add("device_memory", &S::device_memory,
        "Most of the GPU's memory that the run may take, as 20GB or 20GiB; the CUDA context comes on top")
      .unit("bytes")
      .at_least(1)
      .or_else(std::int64_t{0}, all)
      .default_from("this program");
  t.add("host_memory", &S::host_memory,
        "Most of the host's memory that the run may take, as 100GB; the program itself comes on top")
      .unit("bytes")
      .at_least(1)
      .or_else(std::int64_t{0}, all)
      .default_from("this program");
}

// Adds the option to a command that encodes text.
template <class S>
OptionSpec& add_parse_special_tokens(OptionTable<S>& t) {
  return t
      .add("parse_special_tokens", &S::parse_special_tokens,
           "Take the spelling of a special token inside a text for that token; false: as text like any other")
      .default_from("this program");
}

// Refuses combinations that no single row can: required options missing, eval_steps without eval_data, ...
void check_train_options(const TrainOptions& options, const OptionOrigins& origins);

DType moments_dtype(StatePrecision precision);
// The largest adam_beta2 with which second moments, kept in that format, follow the gradients: in bf16 a step's decay
// is rounded away, all or in part, unless 1 - beta2 is above 2^-8 (optim/adamw.h).
double largest_beta2(StatePrecision precision);

// Threads for the optimizer and host work: cpu_threads if given, else cpuadam_cores_perc of the `usable` CPUs, rounded
// down but at least one; of all of them, 0, which leaves the choice to Runtime. Fails if cpu_threads exceeds `usable`.
int resolve_cpu_threads(const TrainOptions& options, int usable);

// Fails if `threads`, an option cpu_threads as given, are more than the `usable` CPUs.
void check_cpu_threads(int threads, int usable);

// Optimizer steps of linear warm-up in a run of `total_steps`: warmup_num_steps if given, else the ratio rounded up, as
// Hugging Face's TrainingArguments does.
std::int64_t resolve_warmup_steps(const TrainOptions& options, std::int64_t total_steps);

}  // namespace so
