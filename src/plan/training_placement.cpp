#include "plan/training_placement.h"

#include <algorithm>
#include <utility>

#include "base/quantities.h"
#include "offload/memory/optimizer_state.h"
#include "optim/engine_ops.h"
#include "plan/placement/more_on_host.h"
#include "plan/placement/unit_work.h"

namespace so {

namespace {

// A part of the step: what costs something that is not simulated has to gain more.
constexpr double worth_it = 0.01;

MachineRates rates_of(const PlacementQuestion& question, const DecoderSettings& decoder) {
  MachineRates rates = question.machine.rates();
  rates.efficiencies.gradients_in_any_order = decoder.any_order;
  return rates;
}

}  // namespace

bool in_any_order(const Backend& backend, bool deterministic) {
  if (!deterministic && !backend.own_memory)
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
  constexpr std::int64_t unit = ParameterLayout::alignment;
  std::int64_t& bucket = plan.engine.placement.bucket_elements;
  if (!request.bucket_size_given) {
    // An eighth of the model: the staging ring holds two, and the pipeline needs a few to be one.
    constexpr std::int64_t smallest = 1 << 16;
    bucket = std::min(bucket, std::max(smallest, layout.elements() / 8));
  }
  bucket = std::max(unit, bucket / unit * unit);
  plan.decoder.formats = plan.engine.formats;
  plan.decoder.any_order = in_any_order(backend, request.deterministic);
  return plan;
}

const MemoryAdvice training_advice{
    .for_device =
        "use a smaller --batch_size or --max_length, --activation_checkpointing auto, more of the optimizer state in "
        "host memory (--offload_optimizer cpu without --offload_ratio), or a GPU with more memory",
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
  inputs_.gathers_together = plan_.engine.collectives != CollectiveRoute::host;
  if (plan_.shape.ranks > 1 && !q_.request.bucket_size_given) set_bucket_of_ranks();
  set_units();
  inputs_.state_bytes = static_cast<double>(state_bytes(plan_.engine.formats.moments));
  inputs_.sum_bytes = static_cast<double>(size_of(plan_.engine.formats.gradients));
  inputs_.rank_sum_bytes = static_cast<double>(size_of(plan_.engine.formats.rank_sums));
  if (plan_.engine.formats.weights == DType::bf16 && q_.request.cast_side == CastChoice::automatic)
    plan_.engine.placement.cast = choose_cast(measured_, inputs_.state_bytes);
  set_cast(inputs_, plan_.engine.placement.cast);
  inputs_.schedule = plan_.engine.placement.schedule;
  inputs_.update_over_link = plan_.engine.placement.over_link;
  inputs_.micro_batches = plan_.shape.micro_batches;
  inputs_.bucket_elements = plan_.engine.placement.bucket_elements;
  inputs_.stream_bytes = static_cast<double>(size_of(plan_.engine.formats.weights));
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
  inputs.gradient_bytes = on_device               ? static_cast<double>(sizeof(float))
                          : plan_.shape.ranks > 1 ? inputs.rank_sum_bytes
                                                  : inputs.sum_bytes;
  inputs.weight_bytes = static_cast<double>(size_of(on_device ? DType::f32 : plan_.engine.formats.weights));
  inputs.rates.host_adamw = on_device ? measured_.host_adamw_wide : measured_.host_adamw;
}

void TrainingPlacement::set_sizes() {
  inputs_.activation_bytes = [this](std::int64_t keep) { return activation_bytes(keep); };
  inputs_.activation_host_bytes = [this](std::int64_t keep) {
    return kept_host_bytes(q_.spec, plan_.engine.formats.activations, plan_.shape, keep_of(keep));
  };
  inputs_.memory = [this](int device_units, Residency residency) { return state_memory(device_units, residency); };
  const MemoryPlan memory = state(0, 0);
  loading_floor_ = beyond(memory.total(MemoryKind::device), memory.total(MemoryKind::device, once_loaded));
}

void TrainingPlacement::set_budgets() {
  inputs_.device_budget = *q_.machine.device_memory;
  inputs_.host_budget = usable_host_budget(q_.machine);
  inputs_.undo_budget = undo_budget(q_.machine);
  if (inputs_.schedule != Schedule::overlapped) return;
  // The first place brings what all share.
  const std::size_t none = inputs_.memory(0, {}).host_bytes, one = state(0, 1).host_total(*q_.machine.backend),
                    two = state(0, 2).host_total(*q_.machine.backend);
  inputs_.undo_place_bytes = two - one;
  inputs_.undo_table_bytes = page_table_bytes(*q_.machine.backend, inputs_.undo_place_bytes);
  inputs_.undo_budget = beyond(inputs_.undo_budget, beyond(one - none, inputs_.undo_place_bytes));
}

void TrainingPlacement::set_residencies() {
  const bool narrow = plan_.engine.formats.weights == DType::bf16;  // a cast of fp32 saves nothing
  inputs_.residencies.clear();
  const auto may_move = [&](bool move) {
    const Toggle wanted = move ? Toggle::on : Toggle::off;
    return q_.request.move_gradients == Toggle::automatic || q_.request.move_gradients == wanted;
  };
  for (const bool cast : {false, true})
    for (const bool move : {false, true})
      if (may_move(move) && (narrow || !cast))
        inputs_.residencies.push_back({.cast_weights = cast, .move_gradients = move});
  if (plan_.shape.ranks > 1) {  // weights do not stream with several ranks yet
    const std::vector<Residency> others = inputs_.residencies;
    for (Residency residency : others) {
      residency.send_masters = true;
      if (residency.casts_weights() && may_pin_state()) inputs_.residencies.push_back(residency);
    }
    inputs_.most_gathered = most_gathered_units(q_.request, q_.layout, plan_.shape.ranks);
    inputs_.forced_gather = q_.request.gathered_layers.has_value();
    return;
  }
  inputs_.most_streamed = q_.request.streamed_layers.value_or(q_.layout.units());
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

std::vector<UnitPlacement> TrainingPlacement::rows(int device_units, Residency residency) const {
  return make_rows(trained_units(q_.layout), plan_.shape.ranks, residency.counts(device_units));
}

MemoryPlan TrainingPlacement::state(int device_units, std::int64_t undo_buckets, Residency residency) const {
  EngineSettings settings = plan_.engine;
  settings.placement.units = rows(device_units, residency);
  settings.placement.spare_buckets = undo_buckets;
  return plan_state(q_.spec, q_.layout, q_.machine, plan_.shape, settings, q_.origin).memory;
}

// How many units stream or are gathered, if any, changes nothing but where their weights and gradients are: arithmetic
// beside one dry run.
StateMemory TrainingPlacement::state_memory(int device_units, Residency residency) {
  const bool streams = residency.streamed_units > 0, gathers = residency.gathered_units > 0;
  const auto key = std::tuple(device_units, residency.cast_weights, residency.send_masters, residency.move_gradients,
                              streams, gathers, plan_.engine.placement.over_link);
  auto found = states_.find(key);
  if (found == states_.end()) {
    Residency one = residency;
    one.streamed_units = streams ? 1 : 0;
    one.gathered_units = gathers ? 1 : 0;
    const MemoryPlan memory = state(device_units, 0, one);
    const StateMemory sizes{memory.total(MemoryKind::device, once_loaded), memory.host_total(*q_.machine.backend)};
    found = states_.emplace(key, sizes).first;
  }
  if (gathers) {
    EngineSettings settings = plan_.engine;
    const auto bytes = [&](int gathered) {
      residency.gathered_units = gathered;
      settings.placement.units = rows(device_units, residency);
      return gathered_bytes(q_.layout, settings);
    };
    const std::size_t all = bytes(residency.gathered_units);
    return {found->second.device_bytes + all - bytes(1), found->second.host_bytes};
  }
  if (!streams) return found->second;
  const DType dtype = plan_.engine.formats.weights;
  const auto weights = [&](int streamed) {
    residency.streamed_units = streamed;
    return streamed_weights(q_.layout, {.units = rows(device_units, residency)}, dtype);
  };
  const StreamedWeights all = weights(residency.streamed_units), one = weights(1);
  const std::size_t more = all.host_bytes - one.host_bytes;  // pinned
  return {
      found->second.device_bytes + all.device_bytes - one.device_bytes + page_table_bytes(*q_.machine.backend, more),
      found->second.host_bytes + more};
}

MemoryRefusal TrainingPlacement::refusal(const NothingFits& nothing) {
  MemoryPlan memory = state(nothing.device_units, 0, nothing.residency);
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

ChosenPlan TrainingPlacement::search() {
  // What travels for each micro-batch makes the step depend on the link.
  ChosenPlan best = unless_worth_it(&Residency::sends_masters);
  const bool sums = plan_.shape.micro_batches > 1 && q_.request.move_gradients == Toggle::automatic;
  return sums ? unless_worth_it(&Residency::moves_gradients) : best;
}

ChosenPlan TrainingPlacement::unless_worth_it(bool (Residency::*costs)() const) {
  ChosenPlan best = choose_placement(inputs_);
  if (!(best.residency.*costs)()) return best;
  PlacementInputs others = inputs_;
  std::erase_if(others.residencies, [&](const Residency& residency) { return (residency.*costs)(); });
  if (others.residencies.empty() || !any_placement_fits(others)) return best;
  ChosenPlan stays = choose_placement(others);
  if (best.rank < (1 - worth_it) * stays.rank) return best;
  inputs_.residencies = std::move(others.residencies);
  return stays;
}

bool TrainingPlacement::may_pin_state() const {
  return !q_.machine.lockable || (q_.machine.pins_beyond && q_.machine.pins_beyond(*q_.machine.lockable));
}

bool TrainingPlacement::may_update_over_link() const {
  return q_.request.update_over_link == Toggle::automatic && plan_.engine.placement.schedule == Schedule::overlapped &&
         may_pin_state();
}

void TrainingPlacement::take_if_worth_it(ChosenPlan& chosen, const std::function<void(bool allowed)>& change) {
  const PlacementInputs before = inputs_;
  change(true);
  std::optional<ChosenPlan> other;
  if (any()) other = search();
  if (other && other->rank < (1 - worth_it) * chosen.rank) {
    chosen = std::move(*other);
  } else {
    change(false);
    inputs_ = before;  // a search takes residencies away
  }
}

// A step that waits for the host at the measured rates is longer on any slower one, so what spares that host the most
// may cost much on this one: 8% of GPT-OSS-20B's step were seen. And a host that others slowed down while it was
// measured is quicker in the run as often as slower. The mean of the three hosts then decides between what is best on
// each.
void TrainingPlacement::take_the_best_mean_of_hosts(ChosenPlan& chosen) {
  const auto rank_on = [this](double host, const ChosenPlan& placement) {
    return rank_of(inputs_.known_steps->estimate(with_host_rates(placement.run, host)));
  };
  const auto mean = [&](const ChosenPlan& placement) {
    return (rank_on(slower_host, placement) + rank_of(placement.estimate) + rank_on(quicker_host, placement)) / 3;
  };
  PlacementInputs best = inputs_;
  for (const double host : {1.0, quicker_host}) {
    inputs_ = best;  // a search takes residencies away
    inputs_.judged_at = host;
    ChosenPlan other = search();
    inputs_.judged_at = best.judged_at;
    if (mean(other) >= mean(chosen)) continue;
    other.rank = rank_on(best.judged_at, other);
    chosen = std::move(other);
    best = inputs_;
  }
  inputs_ = std::move(best);
}

void TrainingPlacement::choose() {
  ChosenPlan chosen = [&] {
    try {
      return search();
    } catch (const NothingFits& nothing) {
      throw refusal(nothing);
    }
  }();
  // Pinning all state takes time when the run begins.
  if (may_update_over_link() && host_elements(chosen.run) > 0)
    take_if_worth_it(chosen, [this](bool on) { plan_.engine.placement.over_link = inputs_.update_over_link = on; });
  if (chosen.estimate.exposed > worth_it * chosen.estimate.seconds()) take_the_best_mean_of_hosts(chosen);
  chosen = with_more_on_host(inputs_, std::move(chosen));
  plan_.engine.placement.units = rows(chosen.device_units, chosen.residency);
  plan_.engine.placement.spare_buckets = chosen.undo_buckets;
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
  add(chosen.why_undo);
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
