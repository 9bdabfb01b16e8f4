#include "plan/training_plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/quantities.h"
#include "offload/memory/host_link.h"
#include "offload/memory/optimizer_state.h"
#include "offload/schedule/placement.h"
#include "options/run_request.h"
#include "plan/memory/activation_memory.h"
#include "plan/memory/memory_room.h"
#include "plan/requested_engine.h"
#include "plan/training_placement.h"

namespace so {
namespace {

// Decides what layers keep, in what the rest of the plan leaves.
void choose_kept(const DecoderSpec& spec, const ParameterLayout& layout, const PlanningMachine& machine,
                 Toggle activation_checkpointing, TrainingPlan& plan) {
  plan.decoder.loss_chunk_rows = choose_loss_chunk(*machine.backend, spec.vocab);
  ActivationSizer sizer(spec, layout, *machine.backend, plan.shape);
  ActivationBudget budget{0, beyond(usable_host_budget(machine), plan.memory.host_total(*machine.backend))};
  budget.device = machine.device_memory
                      ? beyond(*machine.device_memory, plan.memory.total(MemoryKind::device, once_loaded))
                      : beyond(usable_host_budget(machine), plan.memory.host_total(*machine.backend, once_loaded));
  const std::vector<ActivationChoice> choices =
      activation_choices(spec.layers, *machine.backend, activation_checkpointing, slice_tokens(plan.shape));
  const ActivationPlan chosen = choose_activations(sizer, plan.decoder, budget, choices);
  plan.decoder.keep = chosen.keep;
  plan.decoder.tile_rows = chosen.tile_rows;
  plan.activation_bytes = chosen.bytes;
  const std::vector<Input> inputs = unit_inputs(kept_by_layer(chosen.keep, spec.layers, layout.first_trained_unit()));
  for (std::size_t unit = 0; unit < plan.engine.placement.units.size(); ++unit)
    plan.engine.placement.units[unit].input = inputs[unit];
  if (chosen.tile_rows > 0 || chosen.keep != choices[0].keep)
    plan.reasons.push_back(
        fmt::format("activations kept: {}; the rest is recomputed in backward, "
                    "because keeping {} does not fit in the {} that are left",
                    describe(chosen.keep, chosen.tile_rows),
                    choices[0].keep == keep_choice(spec.layers, 0) ? "all" : "all inputs on the device",
                    format_bytes(budget.device)));
  // Memory that is left then goes to attention's gradient, which is quicker with more scratch.
  DecoderSettings roomy = plan.decoder;
  roomy.roomy_attention = true;
  if (const std::size_t bytes = sizer.bytes(roomy); bytes + sizer.page_tables(roomy) <= budget.device) {
    plan.decoder = roomy;
    plan.activation_bytes = bytes;
  }
}

// The plan's memory and its activations.
MemoryPlan with_activations(const DecoderSpec& spec, const Backend& backend, const TrainingPlan& plan) {
  MemoryPlan memory = plan.memory;
  memory.add(MemoryKind::device, "activations", plan.activation_bytes, once_loaded);
  const std::size_t inputs = kept_host_bytes(spec, plan.decoder.formats.activations, plan.shape, plan.decoder.keep);
  memory.add(MemoryKind::pinned, "layer inputs", inputs);
  memory.add_beside(MemoryKind::device, "page tables, layer inputs", page_table_bytes(backend, inputs));
  return memory;
}

void add_activations(const DecoderSpec& spec, const PlanningMachine& machine, const std::string& for_device,
                     TrainingPlan& plan) {
  plan.memory = with_activations(spec, *machine.backend, plan);
  if (const auto refusal = room_of(machine).misfit(plan.memory, {for_device, training_advice.for_host})) throw *refusal;
  if (machine.device_cap) plan.limits.device = plan.memory.allocatable(*machine.device_cap, *machine.backend, true);
  if (machine.host_cap) plan.limits.host = plan.memory.allocatable(*machine.host_cap, *machine.backend, false);
  plan.memory.add_beside(MemoryKind::pageable, "program and data so far", machine.held.value_or(resident_bytes()));
  // Measuring may have held more memory than the run will. Then measuring is the peak.
  const std::size_t peak = machine.held ? 0 : peak_resident_bytes(), total = plan.memory.host_total(*machine.backend);
  if (machine.backend->own_processors && peak > total)
    plan.memory.add_beside(MemoryKind::pageable, "measuring, before the run", peak - total);
}

}  // namespace

void TrainingPlan::log_reasons() const {
  for (const std::string& reason : reasons) log_detail("{}", reason);
}

namespace {

// Says which settings needed no search, and why they are as they are.
void say_what_is_given(const ParameterLayout& layout, const PlanningMachine& machine, std::int64_t asked_bucket,
                       TrainingPlan& plan) {
  const std::int64_t micro_batches = plan.shape.micro_batches, bucket = plan.engine.placement.bucket_elements;
  plan.reasons.push_back(fmt::format("gradient accumulation: {} micro-batch{} a step, gradients in {}{}", micro_batches,
                                     micro_batches == 1 ? "" : "es", name_of(plan.engine.formats.gradients),
                                     micro_batches == 1 && plan.shape.ranks == 1   ? ""
                                     : plan.engine.formats.gradients == DType::f32 ? " because they are summed"
                                     : plan.engine.formats.rank_sums == DType::f32 && plan.shape.ranks > 1
                                         ? ", which ranks add up in fp32"
                                         : ", as asked"));
  const int device_units = plan.engine.placement.count(Owner::device);
  if (host_share(layout, device_units) > 0)
    if (device_units == 0 || machine.backend->own_processors)
      plan.reasons.push_back(fmt::format(
          "buckets of {} in fp32{}; {} transfer buffers in each direction; AdamW on {} host thread{}",
          format_bytes(static_cast<std::size_t>(bucket) * sizeof(float)),
          bucket < asked_bucket / ParameterLayout::alignment * ParameterLayout::alignment ? " (an eighth of the model)"
          : bucket > asked_bucket ? " (up to --bucket_size for each rank's slice)"
                                  : " (--bucket_size)",
          HostLink::ahead + 1, machine.pool->size(), machine.pool->size() == 1 ? "" : "s"));
}

}  // namespace

TrainingPlan plan_training(const DecoderSpec& spec, const ParameterLayout& layout, const PlanningMachine& machine,
                           const TrainingShape& shape, const RunRequest& request, WeightOrigin origin) {
  TrainingPlan plan = begin_plan(layout, *machine.backend, shape, request);
  Placement& placement = plan.engine.placement;
  const auto state = [&] { return plan_state(spec, layout, machine, shape, plan.engine, origin); };

  if (machine.backend->own_processors) {
    TrainingPlacement({spec, layout, machine, request, origin, training_advice}, plan).choose();
    plan.memory = state().memory;
    // Places were counted by what one takes of the host; what they share depends on owners and residency, and where
    // they are pinned they have page tables.
    const std::size_t place = static_cast<std::size_t>(static_cast<double>(placement.bucket_elements) *
                                                       state_bytes(plan.engine.formats.moments)),
                      tables = std::max<std::size_t>(1, page_table_bytes(*machine.backend, place));
    const std::size_t inputs = kept_host_bytes(spec, plan.decoder.formats.activations, shape, plan.decoder.keep);
    while (placement.spare_buckets > 0) {
      const std::size_t on_host = inputs + (machine.backend->own_memory ? 0 : plan.activation_bytes),
                        host = beyond(plan.memory.host_total(*machine.backend) + on_host, usable_host_budget(machine)),
                        device =
                            !machine.device_memory
                                ? 0
                                : beyond(plan.memory.total(MemoryKind::device, once_loaded) + plan.activation_bytes,
                                         *machine.device_memory);
      if (host == 0 && device == 0) break;
      const std::size_t places = std::max(host / place, device / tables) + 1;
      placement.spare_buckets = std::max<std::int64_t>(0, placement.spare_buckets - static_cast<std::int64_t>(places));
      plan.memory = state().memory;
    }
    choose_kept(spec, layout, machine, request.activation_checkpointing, plan);
  } else {
    Counts counts{.device_units = requested_device_units(request, layout, *machine.backend).value_or(0),
                  .move_gradients = request.move_gradients == Toggle::on};
    counts.streamed_units =
        std::min(request.streamed_layers.value_or(0), most_streamed_units(layout.units(), counts.device_units));
    RunState without;
    const auto with_gathered = [&](int gathered) {
      counts.gathered_units = gathered;
      placement.units = make_rows(trained_units(layout), placement.ranks, counts);
      without = state();
      plan.memory = std::move(without.memory);
      choose_kept(spec, layout, machine, request.activation_checkpointing, plan);
    };
    const int most_gathered = most_gathered_units(request, layout, shape.ranks);
    const TrainingPlan as_yet = plan;
    with_gathered(request.gathered_layers ? most_gathered : 0);
    if (counts.gathered_units < most_gathered &&
        room_of(machine).misfit(with_activations(spec, *machine.backend, plan))) {
      plan = as_yet;
      with_gathered(most_gathered);
    }
    if (placement.schedule == Schedule::overlapped && without.spare_buckets > 0) {
      const std::size_t taken = plan.memory.host_total(*machine.backend);
      placement.spare_buckets = 1;
      const std::size_t place = state().memory.host_total(*machine.backend) - taken;
      MemoryPlan all = plan.memory;
      all.add(MemoryKind::device, "activations", plan.activation_bytes, once_loaded);
      const std::size_t room = beyond(spare_budget(machine), all.host_total(*machine.backend));
      placement.spare_buckets = without.spare_buckets;
      if (place > 0) placement.spare_buckets = std::min(without.spare_buckets, static_cast<std::int64_t>(room / place));
      plan.memory = state().memory;
    }
    if (counts.streamed_units > 0)
      plan.reasons.push_back(
          fmt::format("weights of {} layers are streamed from host memory, as asked", counts.streamed_units));
    if (counts.move_gradients)
      plan.reasons.push_back("gradients move to host memory as soon as they are complete, as asked");
    if (counts.gathered_units > 0)
      plan.reasons.push_back(fmt::format(
          "of the weights and gradients of {} layers each of {} ranks keeps a slice, and the weights are gathered before "
          "each use, {}",
          counts.gathered_units, shape.ranks, request.gathered_layers ? "as asked" : "since whole ones do not fit"));
    plan.reasons.push_back(fmt::format(
        "optimizer state: {:.1f}% in host memory; AdamW starts before the gradient norm is known for {} buckets",
        100 * host_share(layout, counts.device_units), placement.spare_buckets));
  }
  add_activations(spec, machine, training_advice.for_device, plan);
  say_what_is_given(layout, machine, engine_settings(request).placement.bucket_elements, plan);
  return plan;
}

void plan_activations(const DecoderSpec& spec, const ParameterLayout& layout, const PlanningMachine& machine,
                      Toggle activation_checkpointing, const std::string& for_device, TrainingPlan& plan) {
  choose_kept(spec, layout, machine, activation_checkpointing, plan);
  add_activations(spec, machine, for_device, plan);
}

}  // namespace so
