// What a training run will do and need, decided before anything large is allocated. Everything later reads the plan.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/decoder.h"
#include "offload/engine.h"
#include "plan/alternatives.h"
#include "plan/memory_plan.h"
#include "plan/offload_plan.h"
#include "train/activation_plan.h"
#include "train/runtime.h"

namespace so {

// What a plan may use, and how quick it is.
struct PlanningMachine {
  DeviceKind kind = DeviceKind::cpu;
  std::string name;                          // of the device
  std::optional<std::size_t> device_memory;  // bytes a plan may have of the device's own memory; none: it is the host's
  std::optional<std::size_t> whole_device_memory;  // what it could have if device_cap were not
  std::string device_limited_by = "free memory";   // device_memory, unless device_cap does
  HostMemory host;
  std::optional<std::size_t> device_cap, host_cap;  // what the user lets the run have; device_memory knows the former
  // What this process may lock, if that is limited; and whether the device pins more than that all the same.
  std::optional<std::size_t> lockable;
  std::function<bool(std::size_t bytes)> pins_beyond;
  ThreadPool* pool = nullptr;             // the host's; its size counts
  std::function<MachineRates()> rates;    // asked for if something depends on them: never on the CPU device
  std::string rates_origin = "measured";  // what reasons call them
};

// What the user lets a run have of each memory, in bytes, beside the program itself; none: all there is.
struct MemoryCaps {
  std::optional<std::size_t> device, host;
};
// Of the options --device_memory and --host_memory; 0 is none. Throws Error if such a device has no memory of its own.
MemoryCaps memory_caps(DeviceKind kind, std::int64_t device_memory, std::int64_t host_memory);
void apply(const MemoryCaps& caps, PlanningMachine& machine);
// What no plan may exceed of the host's memory, and what one is made for: with a reserve, where not the user said it.
HostMemory usable_host(const PlanningMachine& machine);
std::size_t usable_host_budget(const PlanningMachine& machine);

// The machine as it is now; rates are those of `compute` and of AdamW with `moments` so kept, measured.
PlanningMachine planning_machine(Runtime& runtime, DType compute, DType moments, const MemoryCaps& caps = {});

// Where optimizer state shall be.
struct OffloadRequest {
  OptimizerDevice device = OptimizerDevice::cpu;  // none: all of it with the weights
  double ratio = -1;                              // the host's share, at most; -1: chosen
  OffloadMode mode = OffloadMode::superoffload;
  int streamed_layers = -1;                 // at most; -1: chosen; none on the CPU device
  CastChoice cast = CastChoice::automatic;  // by what is measured; the host on the CPU device, which measures nothing
  std::vector<PlanChoice> explain;          // what TrainingPlan::alternatives shall say
};
// The units that the request leaves to the device; -1: to be chosen. On the CPU device, which has one kind of memory,
// nothing is to be chosen: the host has all.
int requested_device_units(const OffloadRequest& request, const ParameterLayout& layout, DeviceKind kind);

struct TrainingPlan {
  DecoderSettings decoder;
  EngineSettings engine;
  TrainingShape shape;
  std::size_t activation_bytes = 0;  // the arena of forward and backward
  MemoryPlan memory;                 // all that the run will allocate, and what the process holds already
  Device::Limits limits;             // what the device may allocate of it, where the user said what the run may have
  std::optional<StepEstimate> estimate;  // on a GPU, if the optimizer belongs to the plan
  std::optional<SimulatedRun> run;       // what was estimated
  std::vector<std::string> reasons;      // what was chosen and why, a line each
  std::vector<std::pair<PlanChoice, std::vector<Alternative>>> alternatives;  // where it was asked for, on a GPU

  void log_reasons() const;
};

// Where the weights come from, which decides about what their loading takes.
enum class WeightOrigin : std::uint8_t { files, random };

// `engine.compute`, moments, AdamW and clipping are taken from `engine`; bucket_elements is an upper bound, lowered for
// models so small that a bucket would be most of them when `adjust_buckets`. Activations: `on` keeps the layers' inputs
// only, `off` everything, `automatic` as much as is worth it. On a GPU that, the owners and the places for new state
// are chosen together (plan/offload_plan.h); on the CPU device, as much as fits of activations, then of places. Sizes
// are found by running the real decoder and engine on a dry device. Throws MemoryRefusal if it does not fit.
TrainingPlan plan_training(const DecoderSpec& spec, const ParameterLayout& layout, const PlanningMachine& machine,
                           const TrainingShape& shape, EngineSettings engine, const OffloadRequest& request,
                           bool adjust_buckets, Toggle activation_checkpointing, WeightOrigin origin);

// Whether plan_training() would return, sooner than by calling it.
bool training_fits(const DecoderSpec& spec, const ParameterLayout& layout, const PlanningMachine& machine,
                   const TrainingShape& shape, EngineSettings engine, const OffloadRequest& request,
                   bool adjust_buckets, Toggle activation_checkpointing, WeightOrigin origin);

// The part of it that comes last, for a plan whose shape, compute dtype and memory but for the activations are there:
// decides about the activations, adds them, and refuses what does not fit; `for_device` says what helps if that is the
// device's own memory.
void plan_activations(const DecoderSpec& spec, const ParameterLayout& layout, const PlanningMachine& machine,
                      Toggle activation_checkpointing, const std::string& for_device, TrainingPlan& plan);

// What gradients are kept in: the compute dtype where a step has one micro-batch, so that a bf16 gradient is rounded
// once, as in PyTorch; fp32 where micro-batches are added up. (The output projection's is added up over a few chunks of
// rows, and with a tied embedding over its two uses, and rounded as often.)
DType choose_gradient_dtype(DType compute, std::int64_t micro_batches);

// Refuses, from the config alone, a model whose weights, gradients and optimizer state exceed the memory of the host or
// of the device, before its files are opened.
void require_state_fits(const DecoderSpec& spec, const PlanningMachine& machine, const EngineSettings& engine,
                        const OffloadRequest& request);

// Refuses a plan that exceeds the memory of the host, or of a device that has its own. `device_advice` and
// `host_advice` say what helps.
void require_fits(const MemoryPlan& plan, Device& device, const std::string& device_advice,
                  const std::string& host_advice);

// Books what the libraries behind a device take beside what is allocated through it.
void add_libraries(MemoryPlan& plan, DeviceKind kind, int host_threads);

// Rows of logits that are worth having at a time.
std::int64_t choose_loss_chunk(DeviceKind kind, std::int64_t vocab);

}  // namespace so
