#include "train/training_plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "model/flops.h"
#include "parallel/communicator.h"
#include "train/batch_upload.h"

namespace so {
namespace {

constexpr const char* advice =
    "use a smaller --batch_size or --max_length, --activation_checkpointing true, or a machine with more memory";

// Runs one optimizer step and one evaluation of the real code without memory.
void dry_run(const DecoderSpec& spec, const ParameterLayout& layout, DeviceKind kind, ThreadPool& pool,
             TrainingPlan& plan) {
  const auto device = make_dry_device(kind);
  const auto ops = make_ops(*device);
  const auto ranks = make_single_communicator();
  const auto stream = device->create_stream("compute");
  OffloadEngine engine(*device, *ops, pool, *ranks, layout, plan.engine);
  const std::int64_t half = spec.rope.rotary_dim / 2;
  const Buffer rope = device->allocate(MemoryKind::device,
                                       static_cast<std::size_t>(plan.shape.longest_document * 2 * half) * sizeof(float),
                                       "rotation table");
  const Decoder decoder(spec, layout, *ops, Tensor(rope.data(), DType::f32, {plan.shape.longest_document, 2, half}),
                        plan.decoder);
  BatchUpload upload(*device, std::max(plan.shape.micro_batch_tokens, plan.shape.evaluation_tokens));
  Arena arena(*device, MemoryKind::device, "activations", 0);

  const auto batch_of = [&](std::int64_t tokens) {
    MicroBatch batch;
    const auto n = static_cast<std::size_t>(tokens);
    batch.ids.resize(n), batch.targets.resize(n), batch.positions.resize(n);
    batch.cu_seqlens = {0, static_cast<std::int32_t>(tokens)};
    batch.tokens = tokens;
    return batch;
  };
  // Views only: no element of a dry batch is read or written, so the upload's host side is left out.
  const auto views_of = [&](const MicroBatch& batch) {
    DeviceBatch views;
    const Tensor row(rope.data(), DType::i32, {batch.tokens});
    views.ids = views.targets = views.positions = row;
    views.spans.cu_q = views.spans.cu_k = row.rows(0, std::min<std::int64_t>(2, batch.tokens));
    views.spans.documents = 1;
    views.spans.max_q = views.spans.max_k = batch.tokens;
    return views;
  };
  const MicroBatch micro = batch_of(plan.shape.micro_batch_tokens);
  engine.begin_last_micro_batch();
  decoder.forward_backward(*stream, views_of(micro), engine, engine, arena, upload.losses().rows(0, micro.tokens),
                           1.0f);
  engine.finish_step(*stream, 0, 1);
  if (plan.shape.evaluation_tokens > 0) {
    const MicroBatch evaluation = batch_of(plan.shape.evaluation_tokens);
    decoder.forward_loss(*stream, views_of(evaluation), engine, arena, upload.losses().rows(0, evaluation.tokens));
  }
  plan.activation_bytes = arena.high_water();
  plan.memory = MemoryPlan();
  plan.memory.add(device->ledger());
  plan.memory.add(MemoryKind::device, "activations", plan.activation_bytes);
}

}  // namespace

std::int64_t choose_loss_chunk(std::int64_t vocab) {
  // Large enough that reading the projection's weights again for every chunk does not show, small enough to stay out of
  // the way: 32 MB of logits.
  return std::clamp<std::int64_t>((std::int64_t{32} << 20) / (4 * vocab), 64, 512);
}

DType choose_gradient_dtype(const DecoderSpec& spec, DType compute, std::int64_t micro_batches) {
  return micro_batches == 1 && !spec.tied_embeddings ? compute : DType::f32;
}

void require_state_fits(const DecoderSpec& spec, DType compute, DType gradients) {
  const auto n = static_cast<std::size_t>(parameter_count(spec));
  MemoryPlan plan;
  plan.add(MemoryKind::device, "weights", n * size_of(compute));
  plan.add(MemoryKind::device, "gradients", n * size_of(gradients));
  plan.add(MemoryKind::pageable, "optimizer state", n * 12);
  require_fits(
      plan, DeviceKind::cpu, available_host_memory(),
      fmt::format("the model has {:.3g} billion parameters; train a smaller one or use a machine with more memory",
                  static_cast<double>(n) / 1e9));
}

TrainingPlan plan_training(const DecoderSpec& spec, const ParameterLayout& layout, Runtime& runtime,
                           const TrainingShape& shape, EngineSettings engine, bool adjust_buckets,
                           Toggle activation_checkpointing) {
  TrainingPlan plan;
  plan.shape = shape;
  plan.engine = engine;
  plan.engine.gradients = choose_gradient_dtype(spec, engine.compute, shape.micro_batches);
  constexpr std::int64_t unit = ParameterLayout::alignment;
  if (adjust_buckets) {
    // An eighth of the model: the staging ring holds two, and the pipeline needs a few to be one.
    constexpr std::int64_t smallest = 1 << 16;
    plan.engine.bucket_elements = std::min(plan.engine.bucket_elements, std::max(smallest, layout.elements() / 8));
  }
  plan.engine.bucket_elements = std::max(unit, plan.engine.bucket_elements / unit * unit);
  plan.decoder.compute = engine.compute;
  plan.decoder.loss_chunk_rows = choose_loss_chunk(spec.vocab);
  plan.decoder.recompute = activation_checkpointing == Toggle::on;

  const DeviceKind kind = runtime.device().kind();
  const HostMemory memory = available_host_memory();
  const auto run = [&] {
    dry_run(spec, layout, kind, runtime.host_pool(), plan);
    // Matrix products pack their operands in buffers of the library's own, per thread; generated code, stacks and the
    // buffers of files come to a few megabytes whatever the model. Both were measured.
    plan.memory.add(MemoryKind::pageable, "matrix product scratch",
                    static_cast<std::size_t>(runtime.host_pool().size()) * (std::size_t{4} << 20));
    plan.memory.add(MemoryKind::pageable, "generated code, stacks, files", std::size_t{6} << 20);
  };
  run();
  // Some slack: what the rest of the system takes while we run is not ours to plan.
  const auto budget = static_cast<std::size_t>(static_cast<double>(memory.available) * 0.95);
  if (activation_checkpointing == Toggle::automatic && plan.memory.host_total(kind) > budget) {
    plan.decoder.recompute = true;
    run();
    log_info("activations are recomputed in backward, since keeping them all would not fit ({} available)",
             format_bytes(memory.available));
  }
  require_fits(plan.memory, kind, memory, advice);
  plan.memory.add(MemoryKind::pageable, "program and data so far", resident_bytes());
  return plan;
}

}  // namespace so
