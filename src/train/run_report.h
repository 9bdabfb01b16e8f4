// The lines that a training run logs at its start and at its end, one a subject. The rest is in run.log.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/option_table.h"
#include "device/device.h"
#include "io/metrics.h"
#include "model/spec.h"
#include "offload/schedule/overlap.h"
#include "offload/schedule/parameter_layout.h"
#include "options/train_options.h"
#include "plan/machine/planning_machine.h"
#include "plan/step_figures.h"
#include "plan/training_plan.h"

namespace so {

inline constexpr const char* run_log_file = "run.log";  // in the output directory

// "model: m: Qwen3ForCausalLM, 14.16 M parameters, float32 on CPU, 2 threads"
std::string model_line(const std::string& directory, const DecoderSpec& spec, DType dtype, const Device& device);

// Where the optimizer state is: "100% in host memory".
std::string state_text(double host_share);

// "plan: 12 steps of 1 x 4 rows; activations kept: all"; with where the optimizer state is where a device has memory of
// its own, and the expected time of a step where there is an estimate.
std::string plan_line(const StepOptions& options, const TrainingPlan& plan, const PlanningMachine& machine,
                      const ParameterLayout& layout, std::int64_t total_steps);

// "memory: host 592.1 MB of 22.4 GB": what the plan takes of what the machine has.
std::string memory_line(const TrainingPlan& plan, const PlanningMachine& machine);

// "output: out; checkpoints every 5 steps and at the end; details in run.log"
std::string output_line(const LoopOptions& options);

// "measured: step 2.7240 s, planned 2.7280 s (-0.1%); host memory ..."
std::string figures_line(std::span<const PlannedFigure> figures);

// The start of a run of `total_steps` steps, now.
RunFacts run_facts(const std::string& model, const TrainingPlan& plan, const Device& device, OptionsView options,
                   const OptionOrigins& origins, std::int64_t total_steps);

// Seconds of one of `steps` steps, for metrics.jsonl.
OverlapRecord record_of(const StepOverlap& overlap, double steps = 1);
// "overlap efficiency: 0.931; a step's device: work 1.9551 s, idle 0.1449: waiting for ...; host: AdamW ..."
std::string overlap_line(const StepOverlap& overlap, double steps);

// "figures of 98 of 100 steps: 2 took more than half as long again for their work, as steps that load kernels do"
std::string left_out_line(const StepFigures& figures);

// "model: out (a Hugging Face directory, 56.7 MB of weights in float32)"
std::string trained_model_line(const std::string& directory, std::uint64_t weight_bytes, DType dtype);

// What to run with the model and the run's records: "next: superoffload chat --model out", and a line of report.
std::string next_lines(const std::string& directory, bool has_chat_template);

}  // namespace so
