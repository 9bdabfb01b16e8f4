#include "plan/simulate/step_play.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "offload/schedule/placement.h"

namespace so {
namespace {

std::vector<std::int64_t> elements_of(const SimulatedRun& run) {
  std::vector<std::int64_t> elements;
  for (const SimulatedUnit& unit : run.units) elements.push_back(unit.elements);
  return elements;
}

// A run asks its policy again and again. Three questions give the same step within 0.8% (96 plans).
constexpr int usual_questions = 3;

}  // namespace

StepPlay::StepPlay(SimulatedRun run, std::unique_ptr<UpdatePolicy> policy)
    : run_(std::move(run)),
      most_questions_(policy ? std::numeric_limits<int>::max() : usual_questions),
      policy_(policy                                             ? std::move(policy)
              : run_.placement.schedule == Schedule::synchronous ? make_synchronous_policy()
                                                                 : make_adaptive_policy()),
      pieces_(run_),
      place_count_(count_places()),
      places_(place_count_),
      schedule_(pieces_.all(), places_),
      turns_(turns_of(run_.placement)),
      moves_(run_.placement.moves()),
      program_(make_device_program(run_)),
      bandwidth_(run_.host_memory,
                 {run_.host_adamw, run_.link_to_host, run_.link_to_device,
                  2 * std::min(run_.link_to_host, run_.link_to_device)},
                 run_.link_both),
      several_ranks_(run_.placement.ranks > 1),
      fetched_(pieces_.size(), true),
      on_the_way_(pieces_.size(), 0),
      shares_(PassShares::by_elements(elements_of(run_))) {
  SO_CHECK(run_.link_to_host > 0 && run_.link_to_device > 0 && run_.host_memory > 0 && run_.host_adamw > 0 &&
               run_.link_both > 0 && run_.micro_batches > 0 && placement().bucket_elements > 0 &&
               placement().units.size() == run_.units.size(),
           "no machine to simulate");
  for (int piece = 0; piece < static_cast<int>(pieces_.size()); ++piece) {
    const int unit = pieces_.unit_of(piece);
    if (sends_masters(unit)) schedule_.set_from_masters(pieces_[piece]);
    streamed_elements_.push_back(streams(unit) ? pieces_[piece].range().size() : 0);
  }
}

SimulatedStep StepPlay::step() {
  begin_step();
  for (;;) {
    while (start_what_can()) {
    }
    if (next_op_ == program_.ops.size() && !device_.busy && !reducing()) break;
    advance();
  }
  end_wait(WaitReason::verdict);
  schedule_.decide(true, run_.verdicts == Verdicts::stand);
  backward_seconds_ = phase_;
  measure_shares();
  step_.seconds = now_;
  step_.times = times();
  for (Lane* lane : lanes()) lane->began -= now_;
  for (Ready& ready : sends_) ready.since -= now_;
  now_ = 0;
  return step_;
}

SimulatedTimeline StepPlay::timeline() {
  SimulatedTimeline timeline;
  spans_ = &timeline.spans;
  timeline.seconds = step().seconds;
  // The copies and updates that are under way then.
  now_ = timeline.seconds;
  for (Lane* lane : lanes())
    if (lane->busy) note(lane->span, std::max(0.0, lane->began + now_));
  now_ = 0;
  spans_ = nullptr;
  return timeline;
}

void StepPlay::begin_step() {
  step_ = {};
  next_op_ = 0;
  uses_done_ = uses_there_ = 0;
  stream_ready_ = forever;
  stream_sent_ = 0;
  asked_ = first_gradient_ = false;
  needed_at_.assign(run_.units.size(), -1);
  landed_at_.assign(run_.units.size(), -1);
  gathers_done_ = turns_done_ = 0;
  phase_ = 0;
  streaming_seconds_ = streaming_elements_ = 0;
  pace_.restart();
  link_pace_.restart();
  // The engine's own thread is ahead of the device by as much as it need not wait.
  if (run_.micro_batches == 1) ask();
}

bool StepPlay::start_what_can() {
  const bool device = start_device();
  const bool host = start_host();
  const bool to_host = start_to_host();
  const bool to_device = start_to_device();
  const bool over_link = start_over_link();
  const bool reduce = start_reduce();
  const bool gather = start_gather();
  return device || host || to_host || to_device || over_link || reduce || gather;
}

void StepPlay::advance() {
  const std::array<Lane*, bandwidth_users> all = lanes();
  // A GPU's copy engine stays with a stream as long as that has a copy ready. Gradients that move are enqueued as they
  // come, and state over the link piece by piece (offload/link_update.h), so it stands still beside them.
  const bool link_stands_still = moves_ && to_host_.busy;
  std::size_t active = 0;
  for (std::size_t i = 0; i < bandwidth_users; ++i)
    if (all[i]->busy && !(link_stands_still && all[i] == &link_)) active |= std::size_t{1} << i;
  const BandwidthRates& rates = bandwidth_.rates(active);
  double until = device_.busy ? device_ends_ : forever;
  std::size_t next = bandwidth_users;
  for (std::size_t i = 0; i < bandwidth_users; ++i)
    if (const double end = all[i]->busy ? now_ + all[i]->left / rates[i] : forever; end < until) {
      until = end;
      next = i;
    }
  const Lane* next_collective = nullptr;
  for (const Lane* lane : collectives())
    if (const double end = lane->busy ? now_ + lane->left : forever; end < until) {
      until = end;
      next = bandwidth_users;
      next_collective = lane;
    }
  SO_CHECK(until < forever, "a simulated step that never ends");
  const double seconds = until - now_;
  // Waits for weights that are brought for each use, for gradients that move, and until one in slices is reduced.
  const bool of_the_pass = waits_for_ == WaitReason::stream || waits_for_ == WaitReason::moving ||
                           (waits_for_ == WaitReason::gradient && for_collective_);
  if (!device_.busy) {
    step_.waits[static_cast<std::size_t>(waits_for_)] += seconds;
    if (of_the_pass) micro_waited_ += seconds;
    if (waits_for_ == WaitReason::moving) micro_for_moving_ += seconds;
    if (for_collective_) step_.collective_waits += seconds;
    if (of_the_pass && for_collective_) micro_for_collectives_ += seconds;
  }
  // They belong to the pass's own time, and those for the last reductions to backward's: they pass whatever the host
  // does.
  if (device_.busy || of_the_pass || waits_for_ == WaitReason::verdict) phase_ += seconds;
  now_ = until;
  if (pieces_.size() > 0) step_.host[static_cast<std::size_t>(host_.busy ? HostTime::adamw : host_idle_)] += seconds;
  for (std::size_t i = 0; i < bandwidth_users; ++i)
    if (all[i]->busy) all[i]->left -= rates[i] * seconds;
  // Beside that which is next, what differs from it by rounding only.
  const auto done = [&](std::size_t i) { return all[i]->busy && (i == next || all[i]->left <= 1e-9 * all[i]->all); };
  for (Lane* lane : collectives())
    if (lane->busy) {
      lane->left -= seconds;
      step_.collectives += seconds;
    }
  const auto collective_done = [&](const Lane& lane) {
    return lane.busy && (&lane == next_collective || lane.left <= 1e-9 * lane.all);
  };
  if (done(0)) finish_host();
  if (done(1)) finish_to_host();
  if (done(2)) finish_to_device();
  if (done(3)) finish_over_link();
  if (collective_done(reduce_)) finish_reduce();
  if (collective_done(gather_)) finish_gather();
  if (device_.busy && device_ends_ <= now_) finish_device();
}

void StepPlay::note(SimulatedSpan span, double began) {
  if (!spans_) return;
  span.begin = std::max(0.0, began);
  span.end = now_;
  spans_->push_back(span);
}

bool StepPlay::has_final_weights(int unit) const {
  return pieces_.all_of(unit, [&](int i) { return schedule_.has_final_weights(pieces_[i]); });
}

}  // namespace so
