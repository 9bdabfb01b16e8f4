#include "plan/memory/state_memory.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

#include "base/error.h"
#include "checkpoint/source_model.h"
#include "model/model_on_device.h"
#include "model/rope.h"
#include "model/text_generator.h"
#include "offload/engine.h"
#include "offload/exchange.h"
#include "offload/memory/master_copies.h"
#include "offload/schedule/placement.h"
#include "offload/schedule/unit_places.h"
#include "offload/sequence_group.h"
#include "plan/machine/planning_machine.h"
#include "plan/memory/training_shape.h"
#include "ranks/communicator.h"
#include "ranks/shard_map.h"

namespace so {
namespace {

// Adds the vectors and maps of the host's own work, a little above what was counted. Unless there is very much data,
// they are at most a hundredth of a model.
void add_host_work(MemoryPlan& plan, const DecoderSpec& spec, const ParameterLayout& layout, const TrainingShape& shape,
                   WeightOrigin origin) {
  const auto beside = [&](const char* name, std::int64_t bytes, Phases phases) {
    plan.add_beside(MemoryKind::pageable, name, static_cast<std::size_t>(bytes), phases);
  };
  beside("RoPE table", static_cast<std::int64_t>(rope_table_bytes(spec, model_shape(shape).positions)), while_starting);
  // Ids, targets and positions, in vectors that double; where each document begins.
  beside("batch", most_batch_tokens(shape) * 32, while_training);
  // An epoch's rows, and while it is made its order; batches of evaluation.
  beside("order of the data", 40 * shape.documents + 16 * shape.evaluation_documents, while_training);
  if (origin != WeightOrigin::files) return;
  // A tensor's name, shape and place stand in a header, in an index and in the lists of what is read and written.
  constexpr std::int64_t header = 1024, pieces = 96;
  const std::int64_t tensors = layout.count();
  beside("reading ahead",
         tensors * header + pieces * (layout.elements() * 4 /
                                      static_cast<std::int64_t>(LoadingRing::slot_bytes_for(layout.elements()))),
         while_loading);
  constexpr std::int64_t conversions = std::int64_t{1} << 20;  // what is narrowed or widened at a time
  beside("writing checkpoints", conversions + 4 * tensors * header, while_saving);
  beside("writing the model", conversions + tensors * header, while_exporting);
}

}  // namespace

RunState plan_state(const DecoderSpec& spec, const ParameterLayout& layout, const PlanningMachine& machine,
                    const TrainingShape& shape, const EngineSettings& settings, WeightOrigin origin) {
  const auto device = make_dry_device(*machine.backend);
  const auto ops = make_ops(*device);
  const auto ranks = make_dry_communicator(shape.ranks);
  OffloadEngine engine(*device, *machine.pool, *ranks, layout, settings);
  const SequenceGroup group(*ranks, shape.sequence, *device, settings.collectives);
  const auto stream = device->create_stream("compute");
  DecoderSettings decoder;
  decoder.formats = settings.formats;
  decoder.loss_chunk_rows = 1;  // as yet; like what layers keep, it is chosen with the activations
  ModelOnDevice model(*device, *ops, *stream, spec, layout, decoder, model_shape(shape));
  std::optional<TextGenerator> generator;
  if (shape.sample_tokens > 0)
    generator.emplace(*device, model, engine, *stream, shape.sample_tokens, sample_batch_tokens(shape));
  RunState state;
  state.memory.add(device->ledger());
  // Gone when the next phase begins, so not of the same books.
  const auto while_it_loads = make_dry_device(*machine.backend);
  if (origin == WeightOrigin::files) const LoadingRing ring = make_loading_ring(*while_it_loads, layout);
  state.memory.add(while_it_loads->ledger(), while_loading);
  add_host_work(state.memory, spec, layout, shape, origin);
  const bool nccl = shape.ranks > 1 && settings.collectives == CollectiveRoute::nccl;
  add_libraries(state.memory, *machine.backend, settings.formats.activations, machine.pool->size(),
                nccl ? (shape.sequence > 1 ? 2 : 1) : 0);
  state.memory.add_beside(MemoryKind::device, "page tables",
                          page_table_bytes(*machine.backend, state.memory.total(MemoryKind::pinned)));
  state.spare_buckets = std::count_if(engine.buckets().begin(), engine.buckets().end(), std::mem_fn(&Bucket::on_host));
  return state;
}

HeldMemory held_memory(const ParameterLayout& layout, const EngineSettings& settings) {
  const Placement& placement = settings.placement;
  const Turns turns = turns_of(placement);
  // Elements of units with places of their own, and of the places that the others take in turn.
  const auto held = [&](const std::vector<int>& slots, const auto& unit_size) {
    std::vector<std::int64_t> sizes;
    for (int unit = 0; unit < layout.units(); ++unit) sizes.push_back(unit_size(unit));
    return static_cast<std::size_t>(lay_out(sizes, slots).size);
  };
  const auto all = [&](int unit) { return layout.unit_range(unit).size(); };
  const auto with_gradients = [&](int unit) {
    std::int64_t size = 0;
    for (const Range& range : layout.gradient_ranges(unit)) size += range.size();
    return size;
  };
  const std::size_t weight = size_of(settings.formats.weights), gradient = size_of(settings.formats.gradients),
                    sum = size_of(settings.formats.rank_sums);
  HeldMemory memory{.device = held(turns.weights, all) * weight + held(turns.gradients, with_gradients) * gradient};
  std::int64_t most_masters = 0;  // that travel, of a unit
  for (int unit = 0; unit < layout.units(); ++unit) {
    const ResidencyKind kind = placement.unit(unit).weights;
    if (kind == ResidencyKind::streamed) memory.pinned += static_cast<std::size_t>(all(unit)) * weight;
    if (kind == ResidencyKind::streamed_from_masters) most_masters = std::max(most_masters, all(unit));
  }
  if (placement.ranks == 1) {
    if (most_masters > 0) memory.device += MasterCopies::device_bytes(most_masters);
    return memory;
  }
  // Elements of a unit's slices, of all that are gathered, and of the trained ones. Where the model writes gradients in
  // another format than sums have, all units have slices of them.
  std::int64_t weight_slices = 0;
  std::vector<std::int64_t> gradient_slices(placement.units.size()), masters(gradient_slices.size());
  const std::int64_t block = block_elements(settings.formats.moments);
  for (const Bucket& bucket : make_buckets(layout, placement.bucket_elements, placement.units, true, block)) {
    const auto unit = static_cast<std::size_t>(layout.unit_of(bucket.range().begin));
    const std::int64_t slice = slices_of(layout, bucket.range(), placement.ranks, block).longest();
    const UnitPlacement& row = placement.units[unit];
    if (row.weights == ResidencyKind::gathered) weight_slices += slice;
    if (bucket.on_host() && row.weights == ResidencyKind::gathered_from_masters) masters[unit] += slice;
    if (!bucket.frozen() && (gradient != sum || row.sliced)) gradient_slices[unit] += slice;
  }
  memory.device += MasterCopies::device_bytes(*std::max_element(masters.begin(), masters.end())) +
                   static_cast<std::size_t>(weight_slices) * weight +
                   sum * held(turns.slices, [&](int unit) { return gradient_slices[static_cast<std::size_t>(unit)]; });
  return memory;
}

void add_libraries(MemoryPlan& plan, const Backend& backend, DType activations, int host_threads, int nccl_users) {
  const auto add = [&](const Backend::Reserve& reserve, int times) {
    plan.add_beside(reserve.kind, reserve.name, reserve.bytes * static_cast<std::size_t>(times));
  };
  for (const Backend::Reserve& reserve : backend.libraries)
    if (activations == DType::bf16 || !reserve.of_bf16) add(reserve, reserve.each_thread ? host_threads : 1);
  for (const Backend::Reserve& reserve : backend.nccl)
    if (nccl_users > 0) add(reserve, nccl_users);
  // These come to a few megabytes whatever the model, as was measured.
  plan.add_beside(MemoryKind::pageable, "generated code, stacks, files", std::size_t{6} << 20);
}

namespace {

// Elements of weights that a rank holds, and of gradients, without the places that gathered units take in turn.
struct HeldByARank {
  std::size_t whole_weights = 0, weight_slices = 0, gradients = 0;
};
HeldByARank held_by_a_rank(const ParameterLayout& layout, int ranks, int gathered) {
  const std::vector<UnitPlacement> units = make_rows(trained_units(layout), ranks, {.gathered_units = gathered});
  HeldByARank held;
  for (int unit = 0; unit < layout.units(); ++unit) {
    const bool sliced = units[static_cast<std::size_t>(unit)].sliced;
    const auto holders = static_cast<std::size_t>(sliced ? ranks : 1);
    (sliced ? held.weight_slices : held.whole_weights) +=
        static_cast<std::size_t>(layout.unit_range(unit).size()) / holders;
    held.gradients += static_cast<std::size_t>(layout.trained_elements(unit)) / holders;
  }
  return held;
}

std::size_t elements_in(std::size_t memory, double bytes_of_an_element) {
  return static_cast<std::size_t>(static_cast<double>(memory) / bytes_of_an_element);
}

// Those of so many trained elements that the first units have, which are the device's.
std::size_t owned_by_device(const ParameterLayout& layout, int device_units, std::size_t trained) {
  return static_cast<std::size_t>((1 - host_share(layout, device_units)) * static_cast<double>(trained));
}

// The device has a memory of its own. Gradients of what the host owns may move to the host, and slices of weights in
// bf16 may be made of their masters, whoever owns these.
MemoryPlan least_memory_of_a_rank(const ParameterLayout& layout, std::size_t device_memory,
                                  const NumberFormats& formats, std::optional<int> device_units, int ranks,
                                  int gathered) {
  const double state = state_bytes(formats.moments);
  const std::size_t gradient = size_of(formats.rank_sums),
                    slice = static_cast<std::size_t>(layout.trained_elements()) / static_cast<std::size_t>(ranks);
  const HeldByARank held = held_by_a_rank(layout, ranks, gathered);
  const std::size_t made = formats.weights == DType::bf16 ? std::min(held.weight_slices, slice) : 0,
                    weights = (held.whole_weights + held.weight_slices - made) * size_of(formats.weights);
  const auto state_of = [&](std::size_t elements) {
    return static_cast<std::size_t>(static_cast<double>(elements) * state);
  };
  std::size_t owned =
      std::min(slice, elements_in(beyond(device_memory, weights), state + static_cast<double>(gradient)));
  if (device_units) owned = owned_by_device(layout, *device_units, slice);
  MemoryPlan plan;
  plan.add(MemoryKind::device, "weights", weights);
  plan.add(MemoryKind::device, "optimizer state", state_of(owned));
  plan.add(MemoryKind::device, "gradients", owned * gradient);
  const std::size_t others = (slice - owned) * gradient,
                    there = std::min(others, beyond(device_memory, plan.total(MemoryKind::device)));
  plan.add(MemoryKind::device, "gradients of what the host owns", there);
  plan.add(MemoryKind::pageable, "optimizer state", state_of(slice - owned));
  plan.add(MemoryKind::pageable, "gradients", others - there);
  return plan;
}

}  // namespace

MemoryPlan least_memory(const ParameterLayout& layout, const PlanningMachine& machine, const NumberFormats& formats,
                        std::optional<int> device_units, int ranks, int gathered) {
  if (machine.device_memory && ranks > 1)
    return least_memory_of_a_rank(layout, *machine.device_memory, formats, device_units, ranks, gathered);
  // All weights count, or those that are trained.
  const auto n = static_cast<std::size_t>(layout.elements()),
             trained = static_cast<std::size_t>(layout.trained_elements());
  const double state = state_bytes(formats.moments);
  const std::size_t weight = size_of(formats.weights), gradient = size_of(formats.gradients);
  const bool narrow = formats.weights == DType::bf16;
  const auto state_of = [&](std::size_t elements) {
    return static_cast<std::size_t>(static_cast<double>(elements) * state);
  };
  MemoryPlan plan;
  if (!machine.device_memory) {
    const HeldByARank held = held_by_a_rank(layout, ranks, gathered);
    const std::size_t slice = trained / static_cast<std::size_t>(ranks);
    // Weights that a GPU which shares the CPU's memory makes of masters: of what it owns, or of slices, whoever owns
    // these.
    std::size_t made = 0;
    if (narrow && machine.backend->own_processors)
      made = ranks > 1 ? std::min(held.weight_slices, slice)
                       : owned_by_device(layout, device_units.value_or(layout.units()), trained);
    plan.add(MemoryKind::device, "weights", (held.whole_weights + held.weight_slices - made) * weight);
    plan.add(MemoryKind::device, "gradients", held.gradients * gradient);
    plan.add(MemoryKind::pageable, "optimizer state", state_of(slice));
    return plan;
  }
  // Units that the device owns have gradients there. Units that the host owns only take turns on the device. Weights in
  // bf16 may be made of their masters for each use, whoever owns these.
  const std::size_t owned =
      device_units ? owned_by_device(layout, *device_units, trained)
                   : std::min(trained, elements_in(*machine.device_memory,
                                                   state + static_cast<double>(gradient + (narrow ? 0 : weight))));
  plan.add(MemoryKind::device, "optimizer state", state_of(owned));
  plan.add(MemoryKind::device, "gradients", owned * gradient);
  if (!narrow) plan.add(MemoryKind::device, "weights", owned * weight);
  plan.add(MemoryKind::pageable, "optimizer state", state_of(trained - owned));
  const std::size_t others = (n - (narrow ? trained : owned)) * weight + (trained - owned) * gradient,
                    there = std::min(others, beyond(*machine.device_memory, plan.total(MemoryKind::device)));
  plan.add(MemoryKind::device, "weights and gradients of what the host owns", there);
  plan.add(MemoryKind::pageable, "weights and gradients", others - there);
  return plan;
}

}  // namespace so
