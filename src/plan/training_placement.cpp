#include "plan/training_placement.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/quantities.h"
#include "offload/memory/optimizer_state.h"
#include "optim/engine_ops.h"
#include "options/run_request.h"
#include "plan/placement/unit_work.h"
#include "plan/requested_engine.h"

namespace so {

namespace {

MachineRates rates_of(const PlacementQuestion& question, const DecoderSettings& decoder) {
  MachineRates rates = question.machine.rates();
  rates.efficiencies.gradients_in_any_order = decoder.any_order;
  return rates;
}

}  // namespace

bool in_any_order(const Backend& backend, bool deterministic) {
  if (!deterministic && !backend.own_processors)
    fail("--deterministic false: the CPU has no quicker way, and gives the same bits in any case; leave it out");
  return !deterministic;
}

TrainingPlan begin_plan(const ParameterLayout& layout, const Backend& backend, const TrainingShape& shape,
                        const RunRequest& request) {
  SO_CHECK(shape.micro_batches == request.gradient_accumulation_steps, "{} micro-batches where {} are asked for",
           shape.micro_batches, request.gradient_accumulation_steps);
  TrainingPlan plan;
  plan.shape = shape;
  plan.engine = engine_settings(request);
  plan.engine.placement.ranks = shape.ranks;
  const std::int64_t block = block_elements(plan.engine.formats.moments),
                     unit = std::max(ParameterLayout::alignment, block);
  std::int64_t& bucket = plan.engine.placement.bucket_elements;
  if (!request.bucket_size_given) {
    // An eighth of the model: the staging ring holds two, and the pipeline needs a few to be one.
    constexpr std::int64_t smallest = 1 << 16;
    bucket = std::min(bucket, std::max(smallest, layout.elements() / 8));
  }
  bucket = std::max(bucket / unit, (layout.longest_uncut(block) + unit - 1) / unit) * unit;
  plan.decoder.formats = plan.engine.formats;
  plan.decoder.any_order = in_any_order(backend, request.deterministic);
  return plan;
}

const MemoryAdvice training_advice{
    .for_device =
        "use a smaller --batch_size or --max_length, --activation_checkpointing auto, more of the optimizer state in "
        "host memory (--offload_optimizer cpu without --offload_ratio), or a smaller model",
    .for_host =
        "use a smaller --batch_size or --max_length, --activation_checkpointing true, or a machine with more memory"};

const std::string_view whole_on_each_rank =
    "each of several GPUs holds all weights and gradients: --gathered_layers 0, or a ZeRO stage below 3, leaves "
    "none to be gathered";

TrainingPlacement::TrainingPlacement(const PlacementQuestion& question, TrainingPlan& plan)
    : q_(question),
      plan_(plan),
      measured_(rates_of(question, plan.decoder)),
      choices_(activation_choices(q_.spec.layers, *q_.machine.backend, q_.request.activation_checkpointing,
                                  slice_tokens(plan.shape))),
      sizer_(q_.spec, q_.layout, *q_.machine.backend, plan.shape),
      sizes_(choices_.size()) {
  inputs_.rates = measured_;
  inputs_.ranks = plan_.shape.ranks;
  inputs_.one_memory = !q_.machine.backend->own_memory;
  inputs_.gathers_together = plan_.engine.collectives != CollectiveRoute::host;
  if (plan_.shape.ranks > 1 && !q_.request.bucket_size_given) set_bucket_of_ranks();
  set_units();
  const NumberFormats& formats = plan_.engine.formats;
  inputs_.reduced_bytes = static_cast<double>(size_of(formats.gradients));
  inputs_.bytes.stored = static_cast<double>(size_of(formats.weights));
  inputs_.bytes.sum = static_cast<double>(size_of(plan_.shape.ranks > 1 ? formats.rank_sums : formats.gradients));
  inputs_.bytes.state = state_bytes(formats.moments);
  if (formats.weights == DType::bf16 && q_.request.cast_side == CastChoice::automatic)
    plan_.engine.placement.cast = choose_cast(measured_, inputs_.bytes.state);
  set_cast(inputs_, plan_.engine.placement.cast);
  inputs_.schedule = plan_.engine.placement.schedule;
  inputs_.micro_batches = plan_.shape.micro_batches;
  inputs_.bucket_elements = plan_.engine.placement.bucket_elements;
  set_sizes();
  set_budgets();
  set_residencies();
  inputs_.forced_device_units = requested_device_units(q_.request, q_.layout, *q_.machine.backend);
  inputs_.device_name = q_.machine.name;
  inputs_.device_advice = q_.advice.for_device;
  inputs_.host_advice = q_.advice.for_host;
}

// A rank's slices are as large as one rank's buckets, so that collectives are few, and their latency is too; but a
// bucket is no larger than a unit, since it is reduced when all of its gradients are there.
void TrainingPlacement::set_bucket_of_ranks() {
  constexpr std::int64_t alignment = ParameterLayout::alignment;
  const std::int64_t alone = plan_.engine.placement.bucket_elements, unit = q_.layout.elements() / q_.layout.units();
  plan_.engine.placement.bucket_elements =
      std::min(alone * plan_.shape.ranks, std::max(alone, unit / alignment * alignment));
}

void TrainingPlacement::set_units() {
  const std::vector<std::int32_t> documents = usual_documents(plan_.shape);
  const std::vector<UnitBackward> backward = unit_backward(q_.spec, q_.layout);
  inputs_.units = unit_work(q_.spec, documents, plan_.engine.formats.activations, measured_.efficiencies, backward,
                            plan_.shape.sequence);
  for (const ActivationChoice& choice : choices_)
    inputs_.keeps.push_back(recomputation(q_.spec, choice.keep, documents, plan_.engine.formats.activations,
                                          measured_.efficiencies, backward, choice.tile_rows, plan_.shape.sequence));
  apply_unit_factors();
  inputs_.first_trained_unit = q_.layout.first_trained_unit();
  for (int unit = 0; unit < q_.layout.units(); ++unit) {
    UnitWork& work = inputs_.units[static_cast<std::size_t>(unit)];
    work.elements = q_.layout.trained_elements(unit);
    work.frozen_elements = q_.layout.unit_range(unit).size() - work.elements;
    // For the norm.
    const auto [first, last] = q_.layout.unit_parameters(unit);
    work.backward_bytes +=
        static_cast<double>(work.elements) * static_cast<double>(size_of(plan_.engine.formats.gradients));
    const auto parameters =
        q_.layout.parameters().subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
    const auto trained =
        std::count_if(parameters.begin(), parameters.end(), [](const Parameter& p) { return p.trained; });
    constexpr auto at_a_time = static_cast<std::ptrdiff_t>(EngineOps::stats_at_a_time);
    work.backward_kernels += 2.0 * static_cast<double>((trained + at_a_time - 1) / at_a_time);
  }
}

void TrainingPlacement::apply_unit_factors() {
  const std::vector<UnitFactor>& factors = q_.machine.unit_factors;
  if (factors.empty()) return;
  for (std::size_t u = 0; u < inputs_.units.size(); ++u) {
    const UnitFactor& factor = factors.at(u);
    UnitWork& work = inputs_.units[u];
    for (double* part : {&work.forward_flops, &work.forward_bytes, &work.forward_kernels}) *part *= factor.forward;
    for (double* part : {&work.backward_flops, &work.backward_bytes, &work.backward_kernels}) *part *= factor.backward;
    for (Recomputation& again : inputs_.keeps) {  // what backward has again is the forward pass's
      again.flops[u] *= factor.forward;
      again.device_bytes[u] *= factor.forward;
    }
  }
}

void TrainingPlacement::set_cast(PlacementInputs& inputs, CastSide side) const {
  const bool on_device = side == CastSide::device;
  inputs.cast = side;
  inputs.bytes.gradient = on_device ? static_cast<double>(sizeof(float)) : inputs.bytes.sum;
  inputs.bytes.weight = on_device ? static_cast<double>(sizeof(float)) : inputs.bytes.stored;
  inputs.rates.host_adamw = on_device ? measured_.host_adamw_wide : measured_.host_adamw;
}

void TrainingPlacement::set_sizes() {
  inputs_.activation_bytes = [this](std::int64_t keep) { return activation_bytes(keep); };
  inputs_.activation_host_bytes = [this](std::int64_t keep) {
    if (inputs_.one_memory) return activation_bytes(keep);
    return kept_host_bytes(q_.spec, plan_.engine.formats.activations, plan_.shape, keep_of(keep));
  };
  inputs_.memory = [this](const Choice& choice) { return state_memory(choice); };
  const MemoryPlan memory = state({.over_link = plan_.engine.placement.over_link});
  loading_floor_ = beyond(memory.total(MemoryKind::device), memory.total(MemoryKind::device, once_loaded));
  if (inputs_.schedule != Schedule::overlapped) return;
  const auto places = [this](std::int64_t count) {
    return state({.over_link = plan_.engine.placement.over_link, .spare_buckets = count})
        .host_total(*q_.machine.backend);
  };
  const std::size_t none = places(0), one = places(1), two = places(2);
  inputs_.spare_place_bytes = two - one;
  inputs_.spare_table_bytes = page_table_bytes(*q_.machine.backend, inputs_.spare_place_bytes);
  shared_by_places_ = beyond(one - none, inputs_.spare_place_bytes);
}

void TrainingPlacement::set_budgets() {
  // All of one memory counts as the host's.
  inputs_.device_budget = q_.machine.device_memory.value_or(std::numeric_limits<std::size_t>::max());
  inputs_.host_budget = usable_host_budget(q_.machine);
  inputs_.spare_budget = beyond(spare_budget(q_.machine), shared_by_places_);
}

void TrainingPlacement::set_residencies() {
  const bool may_be_chosen = q_.request.update_over_link == Toggle::automatic && !inputs_.one_memory &&
                             plan_.engine.placement.schedule == Schedule::overlapped && may_pin_state();
  inputs_.over_link = plan_.engine.placement.over_link ? Toggle::on : may_be_chosen ? Toggle::automatic : Toggle::off;
  const bool narrow = plan_.engine.formats.weights == DType::bf16;  // a cast of fp32 saves nothing
  inputs_.residencies.clear();
  const auto may_move = [&](bool move) {
    if (q_.request.move_gradients == Toggle::automatic) return !move || !inputs_.one_memory;
    return q_.request.move_gradients == (move ? Toggle::on : Toggle::off);
  };
  for (const bool cast : {false, true})
    for (const bool move : {false, true})
      if (may_move(move) && (narrow || !cast))
        inputs_.residencies.push_back({.cast_weights = cast, .move_gradients = move});
  if (!inputs_.one_memory || plan_.shape.ranks > 1) {
    const std::vector<Counts> others = inputs_.residencies;
    for (Counts residency : others) {
      residency.send_masters = true;
      if (residency.cast_weights && may_pin_state()) inputs_.residencies.push_back(residency);
    }
  }
  if (plan_.shape.ranks > 1) {  // weights do not stream with several ranks yet
    inputs_.most_gathered = most_gathered_units(q_.request, q_.layout, plan_.shape.ranks);
    inputs_.forced_gather = q_.request.gathered_layers.has_value();
    return;
  }
  inputs_.most_streamed = q_.request.streamed_layers.value_or(inputs_.one_memory ? 0 : q_.layout.units());
  inputs_.forced_stream = q_.request.streamed_layers.has_value();
}

std::vector<Keep> TrainingPlacement::keep_of(std::int64_t index) const {
  return choices_[static_cast<std::size_t>(index)].keep;
}

std::size_t TrainingPlacement::activation_bytes(std::int64_t index) {
  std::optional<std::size_t>& size = sizes_[static_cast<std::size_t>(index)];
  if (!size) {
    DecoderSettings decoder = plan_.decoder;
    decoder.loss_chunk_rows = choose_loss_chunk(*q_.machine.backend, q_.spec.vocab);
    decoder.keep = keep_of(index);
    decoder.tile_rows = choices_[static_cast<std::size_t>(index)].tile_rows;
    size = sizer_.bytes(decoder) + sizer_.page_tables(decoder);
  }
  return std::max(*size, loading_floor_);
}

void TrainingPlacement::set_choice(Placement& placement, const Choice& choice) const {
  placement.units = make_rows(trained_units(q_.layout), plan_.shape.ranks, choice);
  placement.over_link = choice.over_link;
  placement.spare_buckets = choice.spare_buckets;
}

MemoryPlan TrainingPlacement::state(const Choice& choice) const {
  EngineSettings settings = plan_.engine;
  set_choice(settings.placement, choice);
  return plan_state(q_.spec, q_.layout, q_.machine, plan_.shape, settings, q_.origin).memory;
}

StateMemory TrainingPlacement::dry_run(const Choice& choice) const {
  const MemoryPlan memory = state(choice);
  return {memory.total(MemoryKind::device, once_loaded), memory.host_total(*q_.machine.backend)};
}

// The splits beside both ends are found by dry runs. Those between differ by the optimizer state, the weights and the
// gradients of layers.
StateMemory TrainingPlacement::state_of_split(const Choice& choice) {
  if (const auto found = states_.find(choice); found != states_.end()) return found->second;
  constexpr int ends = 3;
  Choice first = choice, last = choice;
  first.device_units = ends;
  last.device_units = q_.layout.units() - ends;
  if (choice.device_units <= first.device_units || choice.device_units >= last.device_units)
    return states_[choice] = dry_run(choice);
  // Frozen units have no state.
  const auto before = [this](const Choice& c) {
    if (!q_.layout.has_frozen()) return static_cast<double>(q_.layout.unit_range(c.device_units).begin);
    std::int64_t trained = 0;
    for (int unit = 0; unit < c.device_units; ++unit) trained += q_.layout.trained_elements(unit);
    return static_cast<double>(trained);
  };
  const double between_ends = before(last) - before(first);
  const double share = between_ends > 0 ? (before(choice) - before(first)) / between_ends : 0;
  const StateMemory a = state_of_split(first), b = state_of_split(last);
  const auto between = [share](std::size_t from, std::size_t to) {
    return static_cast<std::size_t>((1 - share) * static_cast<double>(from) + share * static_cast<double>(to));
  };
  return {between(a.device_bytes, b.device_bytes), between(a.host_bytes, b.host_bytes)};
}

// How many units stream or are gathered, if any, changes nothing but where their weights and gradients are: arithmetic.
StateMemory TrainingPlacement::state_memory(const Choice& choice) {
  Choice whole = choice;
  whole.keep = whole.spare_buckets = 0;
  if (const auto known = states_.find(whole); known != states_.end()) return known->second;
  Choice one = whole;
  one.streamed_units = std::min(choice.streamed_units, 1);
  one.gathered_units = std::min(choice.gathered_units, 1);
  const StateMemory found = state_of_split(one);
  if (one == whole) return found;
  const auto held = [this](const Choice& of) {
    const auto [known, is_new] = held_.try_emplace(of);
    if (!is_new) return known->second;
    EngineSettings settings = plan_.engine;
    set_choice(settings.placement, of);
    return known->second = held_memory(q_.layout, settings);
  };
  const HeldMemory all = held(whole), first = held(one);
  const std::size_t more = all.pinned - first.pinned,
                    device = all.device - first.device + page_table_bytes(*q_.machine.backend, more);
  return {found.device_bytes + device, found.host_bytes + more + (inputs_.one_memory ? device : 0)};
}

MemoryRefusal TrainingPlacement::refusal(const NothingFits& nothing) {
  Choice nearest = nothing.nearest;
  nearest.spare_buckets = 0;
  MemoryPlan memory = state(nearest);
  std::size_t least = activation_bytes(0);
  for (std::int64_t keep = 1; keep < std::ssize(inputs_.keeps); ++keep) least = std::min(least, activation_bytes(keep));
  memory.add(MemoryKind::device, "activations", least, once_loaded);
  MemoryRoom room = room_of(q_.machine);
  room.host.available = std::min(room.host.available, inputs_.host_budget);
  std::string lines = room.short_of(memory);
  std::string brief = nothing.brief;
  if (plan_.shape.ranks > 1 && inputs_.most_gathered == 0 && memory.total(MemoryKind::device) > inputs_.device_budget)
    brief += fmt::format(" ({})", whole_on_each_rank);
  return {std::move(brief), nothing.advice, std::move(memory), std::move(lines)};
}

bool TrainingPlacement::may_pin_state() const { return !q_.machine.pins_state || q_.machine.pins_state(); }

bool TrainingPlacement::is_as_summed(const Choice& choice) {
  Choice without = choice;
  without.keep = without.spare_buckets = 0;
  const StateMemory summed = state_memory(without), real = dry_run(without);
  states_[without] = real;
  return real.device_bytes <= summed.device_bytes && real.host_bytes <= summed.host_bytes;
}

bool TrainingPlacement::any() {
  for (;;) {  // each turn learns what one choice takes
    const std::optional<Choice> choice = fitting_choice(inputs_);
    if (!choice || is_as_summed(*choice)) return choice.has_value();
  }
}

void TrainingPlacement::choose() {
  ChosenPlan chosen;
  try {
    do chosen = choose_placement(inputs_);
    while (!is_as_summed(chosen));
  } catch (const NothingFits& nothing) {
    throw refusal(nothing);
  }
  set_choice(plan_.engine.placement, chosen);
  plan_.decoder.keep = keep_of(chosen.keep);
  plan_.activation_bytes = inputs_.activation_bytes(chosen.keep);
  plan_.engine.expected = chosen.estimate.times;
  plan_.estimate = chosen.estimate;
  plan_.rates = measured_;
  plan_.run = chosen.run;
  explain(chosen);
  say(chosen);
}

void TrainingPlacement::explain(const ChosenPlan& chosen) {
  PlacementInputs other = inputs_;
  set_cast(other, plan_.engine.placement.cast == CastSide::device ? CastSide::host : CastSide::device);
  const auto describe_keep = [this](std::int64_t keep) {
    return describe(keep_of(keep), choices_[static_cast<std::size_t>(keep)].tile_rows);
  };
  for (const PlanChoice choice : q_.request.explain)
    plan_.alternatives.emplace_back(choice,
                                    alternatives(inputs_, chosen, choice, describe_keep,
                                                 plan_.engine.formats.weights == DType::bf16 ? &other : nullptr));
}

void TrainingPlacement::say(const ChosenPlan& chosen) {
  const auto add = [&](std::string reason) { plan_.reasons.push_back(std::move(reason)); };
  add(fmt::format("{}: {}", q_.machine.rates_origin, describe_rates(measured_)));
  if (const double share = product_share(q_.spec, plan_.engine.formats.activations, measured_.efficiencies); share < 1)
    add(fmt::format("matrix products run at about {:.0f}% of the GPU's rate: sizes of this model's layers are {}",
                    100 * share, share == measured_.efficiencies.odd_products ? "odd" : "no multiples of 8"));
  add("optimizer state: " + chosen.why_split);
  const bool any_on_host = host_elements(chosen.run) > 0;
  if (any_on_host && plan_.engine.formats.weights == DType::bf16)
    add(fmt::format("bf16 and fp32 are cast into each other on the {}{}",
                    plan_.engine.placement.cast == CastSide::device ? "device" : "host",
                    q_.request.cast_side == CastChoice::automatic ? ", which is faster here" : ", as asked"));
  if (plan_.engine.placement.over_link && any_on_host)
    add(fmt::format(
        "the device updates some of the state that is on the host too, about {:.0f}% of it, which travels over "
        "the link and back{}",
        100 * chosen.estimate.over_link_elements / host_elements(chosen.run),
        q_.request.update_over_link == Toggle::on ? ", as asked" : ""));
  add(chosen.why_spare);
  if (!chosen.why_residency.empty()) add(chosen.why_residency);
  const StepOverlap overlap = chosen.estimate.overlap();
  add(fmt::format("expected: {:.3f} s a step, overlap efficiency {:.3f}; {}", overlap.seconds, overlap.efficiency(),
                  describe(overlap)));
  if (plan_.shape.ranks > 1)
    add(fmt::format(
        "collectives: {:.4f} s a step, at {:.3g} GB/s and {:.3g} us each; the device waits {:.4f} s for them",
        chosen.estimate.collectives, measured_.collectives.bytes / 1e9, 1e6 * measured_.collectives.seconds,
        chosen.estimate.collective_waits));
}

}  // namespace so
