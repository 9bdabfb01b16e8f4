#include "plan/plan_question.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "model/parameter_rules.h"
#include "model/parameters.h"
#include "offload/schedule/placement.h"
#include "plan/memory/memory_room.h"
#include "plan/memory/state_memory.h"
#include "plan/requested_engine.h"
#include "plan/training_placement.h"

namespace so {
namespace {

constexpr std::int64_t most_layers_of_a_pattern = 100;  // numbers of two digits

// The layout with what the knobs freeze; none: the run's own.
std::optional<ParameterLayout> frozen_layout(const PlannedRun& run, const PlanKnobs& knobs) {
  if (!knobs.freeze) return std::nullopt;
  return ParameterLayout(make_parameters(run.spec, {.frozen = parse_patterns(*knobs.freeze, "--freeze")}));
}

// Answers whether plan_training() would return for a run with this memory or that, sooner than by calling it.
class Fitting {
 public:
  Fitting(const PlannedRun& run, const PlanKnobs& knobs)
      : frozen_(frozen_layout(run, knobs)),
        run_{run.spec, frozen_ ? *frozen_ : run.layout, run.machine, run.origin, run.shape},
        request_(knobs),
        shape_(run.shape(knobs)) {}
  Fitting(const Fitting&) = delete;
  Fitting& operator=(const Fitting&) = delete;
  bool fits(const MemoryCaps& memory);

 private:
  const std::optional<ParameterLayout> frozen_;
  const PlannedRun run_;
  const RunRequest request_;
  const TrainingShape shape_;
  PlanningMachine machine_;
  TrainingPlan plan_;
  std::optional<TrainingPlacement> placement_;  // knows sizes, which do not depend on how much memory there is
};

bool Fitting::fits(const MemoryCaps& memory) {
  machine_ = with_memory(run_.machine, memory);
  // Soon seen of a model that is far too large, whose plan would take long.
  const NumberFormats formats = number_formats(request_);
  const std::optional<int> device_units = requested_device_units(request_, run_.layout, *machine_.backend);
  const int gathered = most_gathered_units(request_, run_.layout, request_.gpus);
  if (room_of(machine_).misfit(least_memory(run_.layout, machine_, formats, device_units, request_.gpus, gathered)))
    return false;
  if (machine_.backend->own_processors) {
    if (placement_) {
      placement_->set_budgets();
    } else {
      plan_ = begin_plan(run_.layout, *machine_.backend, shape_, request_);
      const PlacementQuestion question{run_.spec, run_.layout, machine_, request_, run_.origin, training_advice};
      placement_.emplace(question, plan_);
    }
    return placement_->any();
  }
  try {
    plan_training(run_.spec, run_.layout, machine_, shape_, request_, run_.origin);
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
  const auto fits_with = [&](DType moments) {
    NumberFormats narrow = formats;
    narrow.moments = moments;
    return state_bytes(moments) < state_bytes(formats.moments) &&
           !room.misfit(least_memory(layout, machine, narrow, device_units, request.gpus, gathered));
  };
  if (fits_with(DType::bf16))
    advice +=
        "keep AdamW's moments in bf16 (--optimizer_state_dtype "
        "bf16, which train wants with --adam_beta2 0.996 or less), ";
  else if (fits_with(DType::u8))
    advice += "keep AdamW's moments in 8 bits, which adds noise to updates (--optimizer_state_dtype fp8), ";
  const std::string smaller = "train a smaller one";
  const auto refusal = room.misfit(
      plan,
      {.for_device = advice +
                     (device_units.value_or(0) > 0 ? "use --offload_optimizer cpu without --offload_ratio, " : "") +
                     smaller,
       .for_host = advice + smaller + " or use a machine with more memory"});
  if (!refusal) return;
  const int most = request.gpus == 1 ? 0 : most_gathered_units(layout.units());
  if (gathered >= most || !room.device ||
      room.misfit(least_memory(layout, machine, formats, device_units, request.gpus, most)))
    throw *refusal;
  const std::string why = gathered == 0
                              ? std::string(whole_on_each_rank)
                              : fmt::format("--gathered_layers {} leaves the other layers whole on each GPU", gathered);
  throw MemoryRefusal(fmt::format("{} ({})", refusal->brief(), why), smaller, refusal->plan(), refusal->short_of());
}

}  // namespace

PlanQuestion make_question(const PlannedRun& run, const RunRequest& asked, const OptionRows& rows) {
  PlanQuestion question;
  question.asked = {asked, {}};
  question.rows = &rows;
  question.plan = [run](const PlanKnobs& knobs) {
    const std::optional<ParameterLayout> frozen = frozen_layout(run, knobs);
    return plan_training(run.spec, frozen ? *frozen : run.layout, with_memory(run.machine, knobs.memory),
                         run.shape(knobs), knobs, run.origin);
  };
  question.fits = [run](const PlanKnobs& knobs) {
    return
        [fitting = std::make_shared<Fitting>(run, knobs)](const MemoryCaps& memory) { return fitting->fits(memory); };
  };
  question.require_state = [run, asked] { require_state(run.layout, run.machine, asked); };
  question.there = {run.machine.device_memory, usable_host(run.machine).available};
  PlanningMachine whole = run.machine;
  whole.host_cap.reset();
  question.buys_memory = !run.machine.fixed_memory;
  question.askable = {run.machine.whole_device_memory, usable_host_budget(whole)};
  const auto parameters = run.layout.parameters();
  const std::vector<Parameter> usual = make_parameters(run.spec);
  if (run.spec.layers <= most_layers_of_a_pattern &&
      std::equal(parameters.begin(), parameters.end(), usual.begin(), usual.end(),
                 [](const Parameter& p, const Parameter& u) { return p.trained == u.trained && p.lr_multiplier == 1; }))
    for (int layers = 0; layers < run.spec.layers; ++layers)
      question.freezable.push_back(first_layers_pattern(run.layout, layers));
  return question;
}

std::string first_layers_pattern(const ParameterLayout& layout, int layers) {
  // Unit 0 is the embedding, with what else is made below the layers and their scales; the others begin with
  // "model.layers.0.": what is in front of the number, and behind.
  const auto name_of = [&](int p) { return layout.parameters()[static_cast<std::size_t>(p)].name; };
  const std::string layer = name_of(layout.unit_parameters(1).first);
  const std::string before = layer.substr(0, layer.find(".0.") + 1);
  std::string pattern;
  for (auto [p, end] = layout.unit_parameters(0); p < end; ++p)
    if (const std::string name = name_of(p); !name.starts_with(before))
      pattern += fmt::format("{}{}.*", pattern.empty() ? "" : ",", name.substr(0, name.rfind('.')));
  const auto add = [&](const std::string& numbers) { pattern += fmt::format(",{}{}.*", before, numbers); };
  const auto digits = [](int first, int last) {
    return first == last ? std::to_string(first) : fmt::format("[{}-{}]", first, last);
  };
  const int tens = layers / 10, ones = layers % 10;
  if (tens > 0) add("[0-9]");
  if (tens > 1) add(digits(1, tens - 1) + "[0-9]");
  if (ones > 0) add((tens > 0 ? std::to_string(tens) : "") + digits(0, ones - 1));
  return pattern;
}

PlanningMachine with_memory(PlanningMachine machine, const MemoryCaps& memory) {
  if (memory.device && machine.device_memory) {
    machine.device_memory = memory.device;
    machine.device_cap = memory.device;
  }
  if (memory.host) {
    enlarge_host(machine, *memory.host);
    machine.host_cap = memory.host;
  }
  return machine;
}

}  // namespace so
