#include "plan/plan_question.h"

#include <algorithm>
#include <optional>
#include <string>

#include "offload/schedule/placement.h"
#include "plan/memory/memory_room.h"
#include "plan/memory/state_memory.h"
#include "plan/requested_engine.h"
#include "plan/training_placement.h"

namespace so {
namespace {

// Whether plan_training() would return, sooner than by calling it.
bool training_fits(const DecoderSpec& spec, const ParameterLayout& layout, const PlanningMachine& machine,
                   const TrainingShape& shape, const RunRequest& request, WeightOrigin origin) {
  // Soon seen of a model that is far too large, whose plan would take long.
  const NumberFormats formats = number_formats(request);
  const std::optional<int> device_units = requested_device_units(request, layout, *machine.backend);
  const int gathered = most_gathered_units(request, layout, request.gpus);
  if (room_of(machine).misfit(least_memory(layout, machine, formats, device_units, request.gpus, gathered)))
    return false;
  // Only a whole plan knows how much is to be locked.
  const bool lock_limited = machine.lockable && !(machine.pins_beyond && machine.pins_beyond(*machine.lockable));
  if (machine.device_memory && !lock_limited) {
    TrainingPlan plan = begin_plan(layout, *machine.backend, shape, request);
    return TrainingPlacement({spec, layout, machine, request, origin, training_advice}, plan).any();
  }
  try {
    plan_training(spec, layout, machine, shape, request, origin);
  } catch (const MemoryRefusal&) {
    return false;
  }
  return true;
}

// Throws if the state alone exceeds a memory. What layers keep comes on top of it, whatever they keep.
void require_state(const ParameterLayout& layout, const PlanningMachine& machine, const RunRequest& request) {
  const NumberFormats formats = number_formats(request);
  const std::optional<int> device_units = requested_device_units(request, layout, *machine.backend);
  const int gathered = most_gathered_units(request, layout, request.gpus);
  const MemoryPlan plan = least_memory(layout, machine, formats, device_units, request.gpus, gathered);
  std::string advice =
      fmt::format("the model has {:.3g} billion parameters; ", static_cast<double>(layout.elements()) / 1e9);
  const MemoryRoom room = room_of(machine);
  NumberFormats narrow = formats;
  narrow.moments = DType::bf16;
  if (formats != narrow && !room.misfit(least_memory(layout, machine, narrow, device_units, request.gpus, gathered)))
    advice +=
        "keep AdamW's moments in bf16 (--optimizer_state_dtype "
        "bf16, which train wants with --adam_beta2 0.996 or less), ";
  const std::string smaller = "train a smaller one or use a ";
  const auto refusal = room.misfit(
      plan,
      {.for_device = advice +
                     (device_units.value_or(0) > 0 ? "use --offload_optimizer cpu without --offload_ratio, " : "") +
                     smaller + "GPU with more memory",
       .for_host = advice + smaller + "machine with more memory"});
  if (!refusal) return;
  const int most = request.gpus == 1 ? 0 : most_gathered_units(layout.units());
  if (gathered >= most || !room.device ||
      room.misfit(least_memory(layout, machine, formats, device_units, request.gpus, most)))
    throw *refusal;
  const std::string why = gathered == 0
                              ? std::string(whole_on_each_rank)
                              : fmt::format("--gathered_layers {} leaves the other layers whole on each GPU", gathered);
  throw MemoryRefusal(fmt::format("{} ({})", refusal->brief(), why), smaller + "GPU with more memory", refusal->plan(),
                      refusal->short_of());
}

}  // namespace

PlanQuestion make_question(const PlannedRun& run, const RunRequest& asked, const OptionRows& rows) {
  const auto call = [run](const PlanKnobs& knobs, const auto& plan) {
    return plan(run.spec, run.layout, with_memory(run.machine, knobs.memory), run.shape(knobs), knobs, run.origin);
  };
  PlanQuestion question;
  question.asked = {asked, {}};
  question.rows = &rows;
  question.plan = [call](const PlanKnobs& knobs) { return call(knobs, plan_training); };
  question.fits = [call](const PlanKnobs& knobs) { return call(knobs, training_fits); };
  question.require_state = [run, asked] { require_state(run.layout, run.machine, asked); };
  question.there = {run.machine.device_memory, usable_host(run.machine).available};
  PlanningMachine whole = run.machine;
  whole.host_cap.reset();
  question.askable = {run.machine.whole_device_memory, usable_host_budget(whole)};
  return question;
}

PlanningMachine with_memory(PlanningMachine machine, const MemoryCaps& memory) {
  if (memory.device && machine.device_memory) {
    machine.device_memory = memory.device;
    machine.device_cap = memory.device;
  }
  if (memory.host) {
    machine.host.available = std::max(machine.host.available, *memory.host);
    machine.host_cap = memory.host;
  }
  return machine;
}

}  // namespace so
