#include "train/training_plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "model/flops.h"
#include "parallel/communicator.h"
#include "train/batch_upload.h"
#include "train/model_files.h"

namespace so {
namespace {

constexpr const char* host_advice =
    "use a smaller --batch_size or --max_length, --activation_checkpointing true, or a machine with more memory";
constexpr const char* device_advice =
    "use a smaller --batch_size or --max_length, --activation_checkpointing auto, --offload_optimizer cpu, or a GPU "
    "with more memory";

// Device memory that the CUDA libraries take once they work: kernels loaded, cuBLAS and cuDNN handles. Less than a tenth
// of this was seen on an H200; the rest is for other GPUs and fragmentation.
constexpr std::size_t cuda_libraries = std::size_t{256} << 20;
// Host memory of the driver and the libraries, kernels compiled at run time among them: 297 to 304 MB were seen.
constexpr std::size_t cuda_libraries_host = 300'000'000;

// Of what is free: what the rest of the system takes while we run is not ours to plan.
constexpr double host_share = 0.95;

// All that the run allocates but the activations.
MemoryPlan plan_state(const DecoderSpec& spec, const ParameterLayout& layout, Runtime& runtime,
                      const TrainingShape& shape, const EngineSettings& settings, WeightOrigin origin) {
  const auto device = make_dry_device(runtime.device().kind());
  const auto ops = make_ops(*device);
  const auto ranks = make_single_communicator();
  const OffloadEngine engine(*device, *ops, runtime.host_pool(), *ranks, layout, settings);
  const Buffer rope = device->allocate(
      MemoryKind::device, static_cast<std::size_t>(shape.longest_document * spec.rope.rotary_dim) * sizeof(float),
      "rotation table");
  const BatchUpload upload(*device, std::max(shape.micro_batch_tokens, shape.evaluation_tokens));
  if (origin == WeightOrigin::files) const LoadingRing ring = make_loading_ring(*device, layout);
  MemoryPlan plan;
  plan.add(device->ledger());
  add_libraries(plan, runtime.device(), runtime.host_pool().size());
  return plan;
}

// Bytes of memory of kind `device` that a plan may have in all, if the device has memory of its own.
std::optional<std::size_t> device_budget(Device& device) {
  const auto own = device.own_memory();
  if (!own) return std::nullopt;
  // What we hold by now is in the plan too.
  return own->free + device.ledger().held(MemoryKind::device);
}

}  // namespace

void add_libraries(MemoryPlan& plan, Device& device, int host_threads) {
  if (device.kind() == DeviceKind::cuda) {
    plan.add(MemoryKind::device, "CUDA libraries (reserve)", cuda_libraries);
    plan.add(MemoryKind::pageable, "CUDA libraries", cuda_libraries_host);
  }
  // Matrix products pack their operands in buffers of the library's own, per thread; generated code, stacks and the
  // buffers of files come to a few megabytes whatever the model. Both were measured.
  if (device.kind() == DeviceKind::cpu)
    plan.add(MemoryKind::pageable, "matrix product scratch",
             static_cast<std::size_t>(host_threads) * (std::size_t{4} << 20));
  plan.add(MemoryKind::pageable, "generated code, stacks, files", std::size_t{6} << 20);
}

void require_fits(const MemoryPlan& plan, Device& device, const std::string& for_device, const std::string& for_host) {
  if (const auto budget = device_budget(device)) require_device_fits(plan, device.name(), *budget, for_device);
  require_fits(plan, device.kind(), available_host_memory(), for_host);
}

std::int64_t choose_loss_chunk(DeviceKind kind, std::int64_t vocab) {
  if (kind == DeviceKind::cuda) {
    // The gradient of the projection is read and written once a chunk, so few and large ones: up to 4096 rows, and
    // 1.25 GB of logits in bf16.
    constexpr std::int64_t rows = 4096, bytes = 1'250'000'000, tile = 128;
    return std::clamp(bytes / (2 * vocab) / tile * tile, tile, rows);
  }
  // Large enough that reading the projection's weights again for every chunk does not show, small enough to stay out of
  // the way: 32 MB of logits.
  return std::clamp<std::int64_t>((std::int64_t{32} << 20) / (4 * vocab), 64, 512);
}

DType choose_gradient_dtype(DType compute, std::int64_t micro_batches) {
  return micro_batches == 1 ? compute : DType::f32;
}

void require_state_fits(const DecoderSpec& spec, Runtime& runtime, const EngineSettings& engine) {
  const auto n = static_cast<std::size_t>(parameter_count(spec));
  MemoryPlan plan;
  plan.add(MemoryKind::device, "weights", n * size_of(engine.compute));
  plan.add(MemoryKind::device, "gradients", n * size_of(engine.gradients));
  plan.add(engine.device_units == 0 ? MemoryKind::pageable : MemoryKind::device, "optimizer state", n * 12);
  const std::string size = fmt::format("the model has {:.3g} billion parameters; ", static_cast<double>(n) / 1e9);
  require_fits(
      plan, runtime.device(),
      size + (engine.device_units > 0 ? "use --offload_optimizer cpu, a smaller model or a GPU with more memory"
                                            : "train a smaller one or use a GPU with more memory"),
      size + "train a smaller one or use a machine with more memory");
}

TrainingPlan plan_training(const DecoderSpec& spec, const ParameterLayout& layout, Runtime& runtime,
                           const TrainingShape& shape, EngineSettings engine, bool adjust_buckets,
                           Toggle activation_checkpointing, WeightOrigin origin) {
  TrainingPlan plan;
  plan.shape = shape;
  plan.engine = engine;
  plan.engine.gradients = choose_gradient_dtype(engine.compute, shape.micro_batches);
  constexpr std::int64_t unit = ParameterLayout::alignment;
  if (adjust_buckets) {
    // An eighth of the model: the staging ring holds two, and the pipeline needs a few to be one.
    constexpr std::int64_t smallest = 1 << 16;
    plan.engine.bucket_elements = std::min(plan.engine.bucket_elements, std::max(smallest, layout.elements() / 8));
  }
  plan.engine.bucket_elements = std::max(unit, plan.engine.bucket_elements / unit * unit);
  plan.decoder.compute = engine.compute;
  plan.memory = plan_state(spec, layout, runtime, shape, plan.engine, origin);
  plan_activations(spec, layout, runtime, activation_checkpointing, device_advice, plan);
  return plan;
}

void plan_activations(const DecoderSpec& spec, const ParameterLayout& layout, Runtime& runtime,
                      Toggle activation_checkpointing, const std::string& for_device, TrainingPlan& plan) {
  Device& device = runtime.device();
  plan.decoder.loss_chunk_rows = choose_loss_chunk(device.kind(), spec.vocab);
  ActivationSizer sizer(spec, layout, device.kind(), plan.shape);
  const auto left = [](std::size_t all, std::size_t taken) { return all > taken ? all - taken : 0; };
  const auto own = device_budget(device);
  const std::size_t budget =
      own ? left(*own, plan.memory.total(MemoryKind::device))
          : left(static_cast<std::size_t>(static_cast<double>(available_host_memory().available) * host_share),
                 plan.memory.host_total(device.kind()));
  if (activation_checkpointing == Toggle::automatic) {
    const ActivationPlan chosen = choose_activations(sizer, spec, plan.decoder, budget);
    plan.decoder.keep = chosen.keep;
    plan.activation_bytes = chosen.bytes;
    if (chosen.keep != keep_choice(spec.layers, 0))
      log_info(
          "activations: {}; the rest is recomputed in backward, since keeping all would not fit ({} left for them)",
          describe(chosen.keep), format_bytes(budget));
  } else {
    const bool on = activation_checkpointing == Toggle::on;
    plan.decoder.keep = keep_choice(spec.layers, on ? keep_choices(spec.layers) - 1 : 0);
    plan.activation_bytes = sizer.bytes(plan.decoder);
  }
  // What is left then: attention's gradient is quicker with more scratch.
  DecoderSettings roomy = plan.decoder;
  roomy.roomy_attention = true;
  if (const std::size_t bytes = sizer.bytes(roomy); bytes <= budget) {
    plan.decoder = roomy;
    plan.activation_bytes = bytes;
  }
  plan.memory.add(MemoryKind::device, "activations", plan.activation_bytes);
  require_fits(plan.memory, device, for_device, host_advice);
  plan.memory.add(MemoryKind::pageable, "program and data so far", resident_bytes());
}

}  // namespace so
