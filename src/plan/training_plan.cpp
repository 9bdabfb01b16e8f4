#include "plan/training_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "model/parameters.h"
#include "offload/memory/staging_ring.h"
#include "offload/schedule/streamed_units.h"
#include "plan/fits.h"
#include "plan/unit_work.h"

namespace so {
namespace {

constexpr const char* host_advice =
    "use a smaller --batch_size or --max_length, --activation_checkpointing true, or a machine with more memory";
constexpr const char* device_advice =
    "use a smaller --batch_size or --max_length, --activation_checkpointing auto, more of the optimizer state in host "
    "memory (--offload_optimizer cpu without --offload_ratio), or a GPU with more memory";

// What may be kept, as numbers of choices, cheapest first.
std::vector<std::int64_t> allowed_choices(std::int64_t layers, const Backend& backend,
                                          Toggle activation_checkpointing) {
  if (activation_checkpointing == Toggle::off) return {0};
  const std::int64_t on_device = keep_choices_on_device(layers);
  // Where the device's memory is the host's, inputs need not go there.
  const std::int64_t end = backend.own_memory ? keep_choices(layers) : on_device,
                     first = activation_checkpointing == Toggle::on ? on_device - 1 : 0;
  std::vector<std::int64_t> choices(static_cast<std::size_t>(end - first));
  std::iota(choices.begin(), choices.end(), first);
  return choices;
}

std::size_t kept_host_bytes(const DecoderSpec& spec, DType compute, const TrainingShape& shape,
                            const std::vector<Keep>& keep) {
  return ActivationStore::host_bytes(kept_on_host(keep), layer_input_bytes(spec, compute, shape.micro_batch_tokens));
}

// Decides what layers keep, in what the rest of the plan leaves.
void choose_kept(const DecoderSpec& spec, const ParameterLayout& layout, const PlanningMachine& machine,
                 Toggle activation_checkpointing, TrainingPlan& plan) {
  plan.decoder.loss_chunk_rows = choose_loss_chunk(*machine.backend, spec.vocab);
  ActivationSizer sizer(spec, layout, *machine.backend, plan.shape);
  const std::size_t budget =
      machine.device_memory
          ? beyond(*machine.device_memory, plan.memory.total(MemoryKind::device, once_loaded))
          : beyond(usable_host_budget(machine), plan.memory.host_total(*machine.backend, once_loaded));
  const std::vector<std::int64_t> choices = allowed_choices(spec.layers, *machine.backend, activation_checkpointing);
  const ActivationPlan chosen = choose_activations(sizer, spec, plan.decoder, budget, choices);
  plan.decoder.keep = chosen.keep;
  plan.activation_bytes = chosen.bytes;
  if (chosen.keep != keep_choice(spec.layers, choices[0]))
    plan.reasons.push_back(
        fmt::format("activations kept: {}; the rest is recomputed in backward, "
                    "because keeping {} does not fit in the {} that are left",
                    describe(chosen.keep), choices[0] == 0 ? "all" : "all inputs on the device", format_bytes(budget)));
  // What is left then: attention's gradient is quicker with more scratch.
  DecoderSettings roomy = plan.decoder;
  roomy.roomy_attention = true;
  if (const std::size_t bytes = sizer.bytes(roomy); bytes <= budget) {
    plan.decoder = roomy;
    plan.activation_bytes = bytes;
  }
}

void add_activations(const DecoderSpec& spec, const PlanningMachine& machine, const std::string& for_device,
                     TrainingPlan& plan) {
  const std::size_t inputs_on_host = kept_host_bytes(spec, plan.decoder.compute, plan.shape, plan.decoder.keep);
  plan.memory.add(MemoryKind::device, "activations", plan.activation_bytes, once_loaded);
  if (inputs_on_host > 0) plan.memory.add(MemoryKind::pinned, "layer inputs", inputs_on_host);
  if (const auto refusal = room_of(machine).misfit(plan.memory, {for_device, host_advice})) throw *refusal;
  if (machine.device_cap) plan.limits.device = plan.memory.allocatable(*machine.device_cap, *machine.backend, true);
  if (machine.host_cap) plan.limits.host = plan.memory.allocatable(*machine.host_cap, *machine.backend, false);
  plan.memory.add_beside(MemoryKind::pageable, "program and data so far", machine.held.value_or(resident_bytes()));
  // What was given back may have been more than all that comes: then it is the peak.
  const std::size_t peak = machine.held ? 0 : peak_resident_bytes(), total = plan.memory.host_total(*machine.backend);
  if (machine.backend->own_memory && peak > total)
    plan.memory.add_beside(MemoryKind::pageable, "measuring, before the run", peak - total);
}

// On a GPU: owners and places for new state, chosen together with what layers keep. With `fits`: only
// whether any do.
void choose_owners(const DecoderSpec& spec, const ParameterLayout& layout, const PlanningMachine& machine,
                   int forced_device_units, const OffloadRequest& request, Toggle activation_checkpointing,
                   WeightOrigin origin, TrainingPlan& plan, bool* fits = nullptr) {
  const CastChoice cast = request.cast;
  const std::vector<std::int32_t> documents = usual_documents(plan.shape);
  OffloadInputs in;
  const MachineRates measured = machine.rates();
  in.rates = measured;
  in.units = unit_work(spec, documents, plan.engine.compute, measured.efficiencies);
  for (int unit = 0; unit < layout.units(); ++unit) {
    UnitWork& work = in.units[static_cast<std::size_t>(unit)];
    work.elements = layout.unit_range(unit).size();
    // For the norm.
    const auto [first, last] = layout.unit_parameters(unit);
    work.backward_bytes += static_cast<double>(work.elements) * static_cast<double>(size_of(plan.engine.gradients));
    work.backward_kernels += 2.0 * (last - first);
  }
  in.state_bytes = static_cast<double>(state_bytes(plan.engine.moments));
  if (plan.engine.compute == DType::bf16 && cast == CastChoice::automatic)
    plan.engine.cast = choose_cast(measured, in.state_bytes);
  const bool casts = plan.engine.cast == CastSide::device;
  in.schedule = plan.engine.schedule;
  in.micro_batches = plan.shape.micro_batches;
  in.bucket_elements = plan.engine.bucket_elements;
  const auto set_cast = [&](OffloadInputs& inputs, bool on_device) {
    inputs.cast = on_device ? CastSide::device : CastSide::host;
    inputs.gradient_bytes = static_cast<double>(size_of(on_device ? DType::f32 : plan.engine.gradients));
    inputs.weight_bytes = static_cast<double>(size_of(on_device ? DType::f32 : plan.engine.compute));
    inputs.rates.host_adamw =
        (on_device ? measured.host_adamw_wide : measured.host_adamw) * measured.efficiencies.host_adamw;
    inputs.rates.host_memory = measured.host_memory;
  };
  set_cast(in, casts);
  in.stream_bytes = static_cast<double>(size_of(plan.engine.compute));
  const std::vector<std::int64_t> choices = allowed_choices(spec.layers, *machine.backend, activation_checkpointing);
  for (const std::int64_t choice : choices)
    in.keeps.push_back(
        recomputation(spec, keep_choice(spec.layers, choice), documents, plan.engine.compute, measured.efficiencies));

  ActivationSizer sizer(spec, layout, *machine.backend, plan.shape);
  DecoderSettings decoder = plan.decoder;
  decoder.loss_chunk_rows = choose_loss_chunk(*machine.backend, spec.vocab);
  std::vector<std::optional<std::size_t>> sizes(choices.size());
  std::size_t loading_floor = 0;
  in.activation_bytes = [&](std::int64_t keep) {
    std::optional<std::size_t>& size = sizes[static_cast<std::size_t>(keep)];
    if (!size) {
      decoder.keep = keep_choice(spec.layers, choices[static_cast<std::size_t>(keep)]);
      size = sizer.bytes(decoder);
    }
    return std::max(*size, loading_floor);
  };
  in.activation_host_bytes = [&](std::int64_t keep) {
    return kept_host_bytes(spec, plan.engine.compute, plan.shape,
                           keep_choice(spec.layers, choices[static_cast<std::size_t>(keep)]));
  };
  const auto state = [&](int device_units, std::int64_t undo_buckets, Residency residency = {}) {
    EngineSettings settings = plan.engine;
    settings.device_units = device_units;
    settings.device_weights = residency.transient_weights ? ResidencyKind::from_masters : ResidencyKind::resident;
    settings.transient_gradients = residency.transient_gradients;
    settings.streamed_units = residency.streamed_units;
    settings.undo_buckets = undo_buckets;
    return plan_state(spec, layout, machine, plan.shape, settings, origin).memory;
  };
  // How many units stream, if any, changes nothing but where their weights are: arithmetic beside one dry run.
  std::map<std::tuple<int, bool, bool, bool>, StateMemory> states;
  in.memory = [&](int device_units, Residency residency) {
    const bool streams = residency.streamed_units > 0;
    const auto key = std::tuple(device_units, residency.transient_weights, residency.transient_gradients, streams);
    auto found = states.find(key);
    if (found == states.end()) {
      Residency one = residency;
      one.streamed_units = streams ? 1 : 0;
      const MemoryPlan memory = state(device_units, 0, one);
      found = states
                  .emplace(key, StateMemory{memory.total(MemoryKind::device, once_loaded),
                                            memory.host_total(*machine.backend)})
                  .first;
    }
    if (!streams) return found->second;
    const StreamedWeights all = streamed_weights(layout, device_units, residency.streamed_units, plan.engine.compute),
                          one = streamed_weights(layout, device_units, 1, plan.engine.compute);
    return StateMemory{found->second.device_bytes + all.device_bytes - one.device_bytes,
                       found->second.host_bytes + all.host_bytes - one.host_bytes};
  };
  // Activations come when loading has given back what it took, and may have that.
  {
    const MemoryPlan memory = state(0, 0);
    loading_floor = beyond(memory.total(MemoryKind::device), memory.total(MemoryKind::device, once_loaded));
  }
  in.device_budget = *machine.device_memory;
  in.host_budget = usable_host_budget(machine);
  in.undo_budget = undo_budget(machine);
  if (in.schedule == Schedule::overlapped) {
    // The first place brings what all share.
    const std::size_t none = in.memory(0, {}).host_bytes, one = state(0, 1).host_total(*machine.backend),
                      two = state(0, 2).host_total(*machine.backend);
    in.undo_place_bytes = two - one;
    in.undo_budget = beyond(in.undo_budget, beyond(one - none, in.undo_place_bytes));
  }
  in.forced_device_units = forced_device_units;
  // A second gradient of a step is added to the first, which must still be there; and a cast of fp32 saves nothing.
  const bool move = plan.shape.micro_batches == 1, narrow = plan.engine.compute == DType::bf16;
  in.residencies.clear();
  for (const Residency r : {Residency{false, false}, {false, true}, {true, false}, {true, true}})
    if ((move || !r.transient_gradients) && (narrow || !r.transient_weights)) in.residencies.push_back(r);
  in.most_streamed = request.streamed_layers < 0 ? layout.units() : request.streamed_layers;
  in.forced_stream = request.streamed_layers >= 0;
  in.device_name = machine.name;
  in.device_advice = device_advice;
  in.host_advice = host_advice;

  if (fits) {
    *fits = any_fits(in);
    return;
  }
  const OffloadPlan chosen = [&] {
    try {
      return choose_offload(in);
    } catch (const NothingFits& nothing) {
      MemoryPlan memory = state(nothing.device_units, 0, nothing.residency);
      std::size_t least = in.activation_bytes(0);
      for (std::int64_t keep = 1; keep < std::ssize(in.keeps); ++keep)
        least = std::min(least, in.activation_bytes(keep));
      memory.add(MemoryKind::device, "activations", least, once_loaded);
      MemoryRoom room = room_of(machine);
      room.host.available = std::min(room.host.available, in.host_budget);
      std::string lines = room.short_of(memory);
      throw MemoryRefusal(nothing.brief, nothing.advice, std::move(memory), std::move(lines));
    }
  }();
  plan.engine.device_units = chosen.device_units;
  plan.engine.undo_buckets = chosen.undo_buckets;
  plan.engine.device_weights =
      chosen.residency.transient_weights ? ResidencyKind::from_masters : ResidencyKind::resident;
  plan.engine.transient_gradients = chosen.residency.transient_gradients;
  plan.engine.streamed_units = chosen.residency.streamed_units;
  plan.estimate = chosen.estimate;
  plan.rates = measured;
  plan.run = chosen.run;
  OffloadInputs other = in;
  set_cast(other, !casts);
  for (const PlanChoice choice : request.explain)
    plan.alternatives.emplace_back(
        choice, alternatives(
                    in, chosen, choice,
                    [&](std::int64_t keep) {
                      return describe(keep_choice(spec.layers, choices[static_cast<std::size_t>(keep)]));
                    },
                    plan.engine.compute == DType::bf16 ? &other : nullptr));
  const auto say = [&](std::string reason) { plan.reasons.push_back(std::move(reason)); };
  say(fmt::format("{}: {}", machine.rates_origin, describe_rates(measured)));
  say("optimizer state: " + chosen.why_split);
  if (chosen.device_units < layout.units() && plan.engine.compute == DType::bf16)
    say(fmt::format("bf16 and fp32 are cast into each other on the {}{}", casts ? "device" : "host",
                    cast == CastChoice::automatic ? ", which is faster here" : ", as asked"));
  say(chosen.why_undo);
  if (!chosen.why_residency.empty()) say(chosen.why_residency);
  const auto waits = [&](WaitReason reason) { return chosen.estimate.waits[static_cast<std::size_t>(reason)]; };
  say(fmt::format(
      "expected: {:.3f} s a step; the GPU waits {:.3f} s of it: for AdamW on the host {:.3f}, transfers {:.3f}, "
      "streamed weights {:.3f}, a gradient buffer {:.3f}",
      chosen.estimate.seconds(), chosen.estimate.exposed, waits(WaitReason::host), waits(WaitReason::link),
      waits(WaitReason::stream), waits(WaitReason::gradient)));
}

}  // namespace

void TrainingPlan::log_reasons() const {
  for (const std::string& reason : reasons) log_detail("{}", reason);
}

std::int64_t choose_loss_chunk(const Backend& backend, std::int64_t vocab) {
  const Backend::LossChunk& chunk = backend.loss_chunk;
  const std::int64_t rows = chunk.bytes / (chunk.element_bytes * vocab);
  return std::clamp(rows / chunk.tile * chunk.tile, chunk.least_rows, chunk.most_rows);
}

DType choose_gradient_dtype(DType compute, std::int64_t micro_batches) {
  return micro_batches == 1 ? compute : DType::f32;
}

namespace {

// What needs no search.
TrainingPlan begin_plan(const ParameterLayout& layout, const TrainingShape& shape, const EngineSettings& engine,
                        const OffloadRequest& request, bool adjust_buckets) {
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
  plan.engine.schedule = request.mode == OffloadMode::superoffload ? Schedule::overlapped : Schedule::synchronous;
  // What is asked for; without that, and where nothing is measured, the host.
  if (engine.compute == DType::bf16 && request.cast == CastChoice::device) plan.engine.cast = CastSide::device;
  plan.decoder.compute = engine.compute;
  return plan;
}

// What needed no search, and why it is as it is.
void say_what_is_given(const ParameterLayout& layout, const PlanningMachine& machine, std::int64_t asked_bucket,
                       TrainingPlan& plan) {
  const std::int64_t micro_batches = plan.shape.micro_batches, bucket = plan.engine.bucket_elements;
  plan.reasons.push_back(fmt::format("gradient accumulation: {} micro-batches a step, gradients in {}{}", micro_batches,
                                     name_of(plan.engine.gradients),
                                     micro_batches > 1 ? " because they are summed" : ""));
  if (host_share(layout, plan.engine.device_units) > 0)
    if (plan.engine.device_units == 0 || machine.device_memory)
      plan.reasons.push_back(fmt::format(
          "buckets of {} in fp32{}; {} transfer buffers in each direction; AdamW on {} host threads",
          format_bytes(static_cast<std::size_t>(bucket) * sizeof(float)),
          bucket < asked_bucket / ParameterLayout::alignment * ParameterLayout::alignment ? " (an eighth of the model)"
                                                                                          : " (--bucket_size)",
          StagingRing::ahead + 1, machine.pool->size()));
}

}  // namespace

TrainingPlan plan_training(const DecoderSpec& spec, const ParameterLayout& layout, const PlanningMachine& machine,
                           const TrainingShape& shape, EngineSettings engine, const OffloadRequest& request,
                           bool adjust_buckets, Toggle activation_checkpointing, WeightOrigin origin) {
  TrainingPlan plan = begin_plan(layout, shape, engine, request, adjust_buckets);
  const auto state = [&] { return plan_state(spec, layout, machine, shape, plan.engine, origin); };

  const int device_units = requested_device_units(request, layout, *machine.backend);
  if (machine.device_memory) {
    choose_owners(spec, layout, machine, device_units, request, activation_checkpointing, origin, plan);
    plan.memory = state().memory;
    // Places were counted by what one takes; what they share depends on owners and residency.
    const std::size_t budget = usable_host_budget(machine);
    while (plan.engine.undo_buckets > 0 && plan.memory.host_total(*machine.backend) > budget) {
      const std::size_t excess = plan.memory.host_total(*machine.backend) - budget,
                        place =
                            static_cast<std::size_t>(plan.engine.bucket_elements) * state_bytes(plan.engine.moments);
      plan.engine.undo_buckets =
          std::max<std::int64_t>(0, plan.engine.undo_buckets - static_cast<std::int64_t>(excess / place + 1));
      plan.memory = state().memory;
    }
    choose_kept(spec, layout, machine, activation_checkpointing, plan);
  } else {
    plan.engine.device_units = device_units;
    plan.engine.streamed_units =
        std::clamp(request.streamed_layers, 0, most_streamed_units(layout.units(), device_units));
    RunState without = state();
    plan.memory = std::move(without.memory);
    choose_kept(spec, layout, machine, activation_checkpointing, plan);
    if (plan.engine.schedule == Schedule::overlapped && without.host_buckets > 0) {
      const std::size_t taken = plan.memory.host_total(*machine.backend);
      plan.engine.undo_buckets = 1;
      const std::size_t place = state().memory.host_total(*machine.backend) - taken;
      MemoryPlan all = plan.memory;
      all.add(MemoryKind::device, "activations", plan.activation_bytes, once_loaded);
      const std::size_t room = beyond(undo_budget(machine), all.host_total(*machine.backend));
      plan.engine.undo_buckets = without.host_buckets;
      if (place > 0) plan.engine.undo_buckets = std::min(without.host_buckets, static_cast<std::int64_t>(room / place));
      plan.memory = state().memory;
    }
    if (plan.engine.streamed_units > 0)
      plan.reasons.push_back(
          fmt::format("weights of {} layers are streamed from host memory, as asked", plan.engine.streamed_units));
    plan.reasons.push_back(fmt::format(
        "optimizer state: {:.1f}% in host memory; AdamW starts before the gradient norm is known for {} buckets",
        100 * host_share(layout, device_units), plan.engine.undo_buckets));
  }
  add_activations(spec, machine, device_advice, plan);
  say_what_is_given(layout, machine, engine.bucket_elements, plan);
  return plan;
}

bool training_fits(const DecoderSpec& spec, const ParameterLayout& layout, const PlanningMachine& machine,
                   const TrainingShape& shape, EngineSettings engine, const OffloadRequest& request,
                   bool adjust_buckets, Toggle activation_checkpointing, WeightOrigin origin) {
  // Soon seen of a model that is far too large, whose plan would take long.
  const int device_units = requested_device_units(request, layout, *machine.backend);
  engine.gradients = choose_gradient_dtype(engine.compute, shape.micro_batches);
  if (room_of(machine).misfit(least_memory(layout, machine, engine, engine.moments, device_units))) return false;
  bool fits = true;
  // What may be locked only a whole plan knows.
  const bool lock_limited = machine.lockable && !(machine.pins_beyond && machine.pins_beyond(*machine.lockable));
  if (machine.device_memory && !lock_limited) {
    TrainingPlan plan = begin_plan(layout, shape, engine, request, adjust_buckets);
    choose_owners(spec, layout, machine, device_units, request, activation_checkpointing, origin, plan, &fits);
    return fits;
  }
  try {
    plan_training(spec, layout, machine, shape, engine, request, adjust_buckets, activation_checkpointing, origin);
  } catch (const MemoryRefusal&) {
    fits = false;
  }
  return fits;
}

void plan_activations(const DecoderSpec& spec, const ParameterLayout& layout, const PlanningMachine& machine,
                      Toggle activation_checkpointing, const std::string& for_device, TrainingPlan& plan) {
  choose_kept(spec, layout, machine, activation_checkpointing, plan);
  add_activations(spec, machine, for_device, plan);
}

}  // namespace so
