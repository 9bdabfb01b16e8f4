// The groups that decide about a step: its rows, where memory goes, what is trained, and AdamW.
#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <system_error>

#include "base/comma_list.h"
#include "base/error.h"
#include "base/file.h"
#include "options/option_groups.h"

namespace so {
namespace {

using namespace default_from;

// The least value of options that enter fp32 arithmetic: far enough from the least normal number that no product is
// lost.
constexpr double smallest = 1e-30;

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
  t.add(
       "fp8", &O::fp8,
       "Whether the products of attention's and dense MLPs' weights, and their gradients, are in FP8 (E4M3; 1 x 128 "
       "elements of activations and gradients have a scale, 128 x 128 of weights, and of activations where they make a "
       "weight's gradient). Attention itself, embeddings, norms and experts stay as they are, and so do master weights "
       "and what is saved. Needs a Hopper GPU, or the CPU")
      .bare("true")
      .default_from(ours)
      .affects_later_steps();
  t.add("fp8_keep_layers", &O::fp8_keep_layers,
        "How many of the first and of the last layers have no products in FP8: first=N, last=N, or both with a comma")
      .metavar("first=N,last=N")
      .when_unset("all layers have them")
      .default_from(ours)
      .affects_later_steps();
  t.add("optimizer_state_dtype", &O::optimizer_state_dtype,
        "Number format that AdamW's moments are kept in between steps. A parameter's state takes 12 bytes, master "
        "weights among them; in bf16, which needs adam_beta2 at most 0.996, 8; in fp8, where blocks of 256 share a "
        "scale, 6")
      .default_from(ours)
      .affects_later_steps();
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

const OptionTable<MemoryOptions>& memory_rows() {
  static const auto rows = make_memory();
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

KeptLayers kept_layers(const StepOptions& options) {
  KeptLayers kept;
  if (!options.fp8_keep_layers) return kept;
  if (!options.fp8)
    fail("--fp8_keep_layers says which layers have no products in FP8: add --fp8 true, or leave it out");
  const std::string& text = *options.fp8_keep_layers;
  for (const std::string_view part : between_commas(text)) {
    const auto equals = std::min(part.find('='), part.size());
    const std::string_view name = part.substr(0, equals), digits = part.substr(std::min(equals + 1, part.size()));
    std::int64_t count = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
    if ((name != "first" && name != "last") || error != std::errc() || end != digits.data() + digits.size() ||
        count < 0)
      fail("--fp8_keep_layers {}: '{}' is not first=N or last=N; for example first=1,last=1", printable(text),
           printable(std::string(part)));
    (name == "first" ? kept.first : kept.last) = count;
  }
  return kept;
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

DType moments_dtype(StatePrecision precision) {
  switch (precision) {
    case StatePrecision::fp32:
      return DType::f32;
    case StatePrecision::bf16:
      return DType::bf16;
    case StatePrecision::fp8:
      return DType::u8;
  }
  SO_BUG("state precision {}", static_cast<int>(precision));
}

std::string_view name_of_moments(DType moments) { return moments == DType::u8 ? "fp8" : name_of(moments); }

double largest_beta2(StatePrecision precision) { return precision == StatePrecision::bf16 ? 0.996 : 1; }

}  // namespace so
