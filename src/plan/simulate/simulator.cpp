#include "plan/simulate/simulator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "offload/schedule/parameter_layout.h"
#include "offload/schedule/streamed_units.h"
#include "plan/simulate/device_program.h"

namespace so {
namespace {

constexpr std::int64_t most_pieces = 192;  // of all that the host owns, and one a unit more: finer says nothing new
constexpr int most_steps = 12;             // to the steady state
constexpr double same_facts = 1e-3, same_step = 1e-5;
constexpr double forever = std::numeric_limits<double>::infinity();

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// Cuts what the host owns into pieces of about the same size, none of more than a bucket where there are few.
std::vector<Bucket> make_pieces(const SimulatedRun& run) {
  std::int64_t begin = 0, owned = 0;
  for (std::size_t u = 0; u < run.units.size(); ++u)
    (static_cast<int>(u) < run.device_units ? begin : owned) += run.units[u].elements;
  const std::int64_t target = std::max({std::int64_t{1}, run.bucket_elements, owned / most_pieces});
  std::vector<Bucket> pieces;
  for (std::size_t u = at(run.device_units); u < run.units.size(); ++u) {
    const std::int64_t elements = run.units[u].elements, count = (elements + target - 1) / target;
    for (std::int64_t i = 0; i < count; ++i)
      pieces.emplace_back(static_cast<int>(pieces.size()),
                          Range{begin + elements * i / count, begin + elements * (i + 1) / count}, Owner::host);
    begin += elements;
  }
  return pieces;
}

// So many of them, wherever they are.
class CountedPlaces final : public StatePlaces {
 public:
  explicit CountedPlaces(std::int64_t count) : spare_(count) {}
  bool has_spare() const override { return spare_ > 0; }
  int take_spare() override {
    --spare_;
    return 0;
  }
  void give_back(int) override { ++spare_; }
  void adopt(int, const Bucket&) override { ++spare_; }

 private:
  std::int64_t spare_;
};

// How much of `capacity` each gets that could use `demands` of it.
std::array<double, 3> share(double capacity, const std::array<double, 3>& demands) {
  std::array<double, 3> got{};
  std::array<bool, 3> served{};
  for (int left = 3; left > 0; --left) {
    int least = -1;
    for (int i = 0; i < 3; ++i)
      if (!served[at(i)] && (least < 0 || demands[at(i)] < demands[at(least)])) least = i;
    served[at(least)] = true;
    got[at(least)] = std::min(demands[at(least)], capacity / left);
    capacity -= got[at(least)];
  }
  return got;
}

bool close(double a, double b) { return std::abs(a - b) <= same_facts * std::max(std::abs(a), std::abs(b)); }

}  // namespace

class Simulator::Play {
 public:
  Play(SimulatedRun run, std::unique_ptr<UpdatePolicy> policy)
      : run_(std::move(run)),
        policy_(policy                                   ? std::move(policy)
                : run_.schedule == Schedule::synchronous ? make_synchronous_policy()
                                                         : make_adaptive_policy()),
        pieces_(make_pieces(run_)),
        place_count_(count_places()),
        places_(place_count_),
        schedule_(pieces_, places_),
        streamed_(so::streamed_units(static_cast<int>(run_.units.size()), run_.device_units, run_.streamed_units)),
        program_(make_device_program(run_, streamed_)),
        fetched_(pieces_.size(), true),
        on_the_way_(pieces_.size(), 0) {
    SO_CHECK(run_.link_to_host > 0 && run_.link_to_device > 0 && run_.host_memory > 0 && run_.host_adamw > 0 &&
                 run_.micro_batches > 0 && run_.bucket_elements > 0 &&
                 run_.device_units <= static_cast<int>(run_.units.size()),
             "no machine to simulate");
    held_.fill(-1);
    double total = 0;
    for (const SimulatedUnit& unit : run_.units) total += static_cast<double>(unit.elements);
    std::size_t piece = 0;
    for (std::size_t u = 0; u < run_.units.size(); ++u) {
      first_piece_.push_back(static_cast<int>(piece));
      std::int64_t left = static_cast<int>(u) < run_.device_units ? 0 : run_.units[u].elements;
      while (left > 0) left -= pieces_[piece++].range().size();
      while (unit_of_.size() < piece) unit_of_.push_back(static_cast<int>(u));
    }
    first_piece_.push_back(static_cast<int>(piece));
    for (const Bucket& b : pieces_) shares_.push_back(static_cast<double>(b.range().begin) / total);
    const std::array<double, 3> all{run_.host_adamw, run_.link_to_host, run_.link_to_device};
    for (std::size_t active = 0; active < rates_.size(); ++active) {
      std::array<double, 3> demands{};
      for (std::size_t i = 0; i < 3; ++i) demands[i] = (active >> i & 1) != 0 ? all[i] : 0;
      rates_[active] = share(run_.host_memory, demands);
    }
  }

  SimulatedStep step() {
    begin_step();
    for (;;) {
      while (start_what_can()) {
      }
      if (next_op_ == program_.ops.size() && !device_.busy) break;
      advance();
    }
    schedule_.decide(true, run_.verdicts == Verdicts::stand);
    backward_seconds_ = phase_;
    step_.seconds = now_;
    step_.update_seconds = pace_.update_seconds();
    for (Lane* lane : lanes()) lane->began -= now_;
    for (Ready& ready : sends_) ready.since -= now_;
    now_ = 0;
    return step_;
  }

  SimulatedTimeline timeline() {
    SimulatedTimeline timeline;
    spans_ = &timeline.spans;
    timeline.seconds = step().seconds;
    // What is under way then.
    now_ = timeline.seconds;
    for (Lane* lane : lanes())
      if (lane->busy) note(lane->span, std::max(0.0, lane->began + now_));
    now_ = 0;
    spans_ = nullptr;
    return timeline;
  }
  bool choice_is_new() const { return choice_is_new_; }  // in the last step
  const HostCounters& counters() const { return schedule_.counters(); }
  std::size_t pieces() const { return pieces_.size(); }

 private:
  struct Lane {
    bool busy = false;
    double all = 0, left = 0;  // bytes
    double began = 0;          // below 0: in the step before
    int item = -1;             // piece or unit
    SimulatedSpan span;        // what it is
  };
  std::array<Lane*, 3> lanes() { return {&host_, &to_host_, &to_device_}; }

  std::int64_t count_places() const {
    std::int64_t largest = 1;
    for (const Bucket& b : pieces_) largest = std::max(largest, b.range().size());
    const auto count =
        static_cast<std::int64_t>(static_cast<double>(run_.undo_buckets) * static_cast<double>(run_.bucket_elements) /
                                  static_cast<double>(largest) * (1 + 1e-9));
    return run_.schedule == Schedule::synchronous ? 0 : std::min(count, static_cast<std::int64_t>(pieces_.size()));
  }

  void begin_step() {
    step_ = {};
    next_op_ = 0;
    uses_done_ = uses_there_ = 0;
    stream_ready_ = forever;
    asked_ = first_gradient_ = false;
    phase_ = 0;
    pace_.restart();
    // The engine's own thread is ahead of the device by as much as it need not wait.
    if (run_.micro_batches == 1) ask();
  }

  // ---- The policy ----

  void ask() {
    asked_ = true;
    const std::array<double, 4> measured{pace_.update_seconds(), pace_.preview_seconds(), forward_seconds_,
                                         backward_seconds_};
    choice_is_new_ =
        !pieces_.empty() && (!was_asked_ || !std::equal(measured.begin(), measured.end(), asked_with_.begin(), close));
    if (choice_is_new_) {
      UpdateFacts facts;
      facts.elements = schedule_.elements();
      facts.forward_shares = shares_;
      facts.undo_places = place_count_;
      facts.update_seconds = pace_.update_seconds();
      facts.preview_seconds = pace_.preview_seconds();
      facts.forward_seconds = forward_seconds_;
      facts.backward_seconds = backward_seconds_;
      facts.clip_rate = run_.verdicts == Verdicts::clip ? 1 : 0;
      choice_ = policy_->choose(facts);
      asked_with_ = measured;
      was_asked_ = true;
    }
    schedule_.begin_step(choice_);
  }

  // ---- The device ----

  template <class Body>
  bool all_pieces(int unit, const Body& body) const {
    for (int i = first_piece_[at(unit)]; i < first_piece_[at(unit) + 1]; ++i)
      if (!body(i)) return false;
    return true;
  }
  bool has_final_weights(int unit) const {
    return all_pieces(unit, [&](int i) { return schedule_.has_final_weights(pieces_[at(i)]); });
  }

  // Whether the device can go on; if not, `waits_for_` says for whom it waits.
  bool may_start(const DeviceOp& op) {
    const auto wait_for = [&](WaitReason reason) {
      waits_for_ = reason;
      return false;
    };
    if (op.unit < 0) return true;
    if (op.work == SimulatedWork::forward && op.first) {
      if (run_.schedule == Schedule::synchronous && op.unit == 0 && !schedule_.finished())
        return wait_for(WaitReason::host);
      if (!has_final_weights(op.unit)) return wait_for(WaitReason::host);
      if (!all_pieces(op.unit, [&](int i) { return on_the_way_[at(i)] == 0; })) return wait_for(WaitReason::link);
    }
    if (op.use >= uses_there_) return wait_for(WaitReason::stream);
    if (op.work == SimulatedWork::backward) {
      if (op.first && !all_pieces(op.unit, [&](int i) { return schedule_.needs_no_gradient(pieces_[at(i)]); }))
        return wait_for(WaitReason::gradient);
      if (const int slot = slot_of(op.unit);
          slot >= 0 && held_[at(slot)] >= 0 && !all_pieces(held_[at(slot)], [&](int i) { return fetched_[at(i)]; }))
        return wait_for(WaitReason::gradient);
    }
    return true;
  }
  int slot_of(int unit) const {
    const bool stays = unit_stays(unit, static_cast<int>(run_.units.size()));
    return run_.move_gradients && !stays && unit >= run_.device_units ? unit % gradient_slots : -1;
  }

  // Tries each lane once, in this order; whether any of them took up work.
  bool start_what_can() {
    const bool device = start_device();
    const bool host = start_host();
    const bool to_host = start_to_host();
    const bool to_device = start_to_device();
    return device || host || to_host || to_device;
  }

  bool start_device() {
    if (device_.busy || next_op_ == program_.ops.size()) return false;
    const DeviceOp& op = program_.ops[next_op_];
    if (op.last && !asked_) ask();
    const WaitReason before = waits_for_;
    if (!may_start(op)) {
      if (wait_began_ >= 0 && waits_for_ != before) end_wait(before);
      if (wait_began_ < 0) wait_began_ = now_;
      return false;
    }
    end_wait(before);
    if (op.work == SimulatedWork::backward && op.first) {
      for (int i = first_piece_[at(op.unit)]; i < first_piece_[at(op.unit) + 1]; ++i) schedule_.land(pieces_[at(i)]);
      if (const int slot = slot_of(op.unit); slot >= 0) held_[at(slot)] = op.unit;
    }
    double seconds = op.seconds;
    if (op.times > 0) {  // each like the one that was played last, and its waits
      const auto n = static_cast<double>(op.times);
      const double waited = micro_waited_;
      seconds = n * (program_.pass_seconds + waited);
      step_.host_bytes += n * micro_streamed_;
      step_.waits[static_cast<std::size_t>(WaitReason::stream)] += n * waited;
      step_.device -= n * waited;  // what follows counts all of it
    }
    device_.busy = true;
    device_.began = now_;
    device_ends_ = now_ + seconds;
    step_.device += seconds;
    if (op.work == SimulatedWork::forward && op.unit == 0) micro_waited_ = micro_streamed_ = 0;
    return true;
  }

  void end_wait(WaitReason reason) {
    if (wait_began_ >= 0 && now_ > wait_began_)
      note({.work = SimulatedWork::wait, .reason = reason, .unit = program_.ops[next_op_].unit}, wait_began_);
    wait_began_ = -1;
  }

  void finish_device() {
    const DeviceOp& op = program_.ops[next_op_++];
    device_.busy = false;
    note({.work = op.work, .unit = op.unit}, device_.began);
    if (op.use >= 0) ++uses_done_;
    if (op.work == SimulatedWork::device_update) phase_ = 0;
    if (op.work != SimulatedWork::backward || !op.last) return;
    for (int i = first_piece_[at(op.unit) + 1]; i-- > first_piece_[at(op.unit)];) {
      schedule_.landed(pieces_[at(i)]);
      if (run_.move_gradients) fetch(i);
    }
    if (!first_gradient_) {
      first_gradient_ = true;
      forward_seconds_ = std::exchange(phase_, 0);
    }
  }

  // ---- The host ----

  double bytes_of(HostTask task) const {
    const double s = run_.state_bytes, g = run_.gradient_bytes, w = run_.weight_bytes;
    switch (task) {
      case HostTask::speculate:
      case HostTask::update:
        return 2 * s + g + w;  // old state read, new state written
      case HostTask::preview:
      case HostTask::weights_first:
        return s + g + w;
      case HostTask::follow:
        return 2 * s + g;
      case HostTask::none:
      case HostTask::adopt:
      case HostTask::restore:
        return 0;
    }
    return 0;
  }

  bool start_host() {
    if (host_.busy) return false;
    if (host_.item < 0) {
      while (in_hand_.size() < HostSchedule::hands) {
        const int index = schedule_.take();
        if (index < 0) break;
        if (schedule_.task_of(index) != HostTask::adopt && !run_.move_gradients) fetch(index);
        in_hand_.push_back(index);
      }
      if (in_hand_.empty()) return false;
      host_.item = in_hand_.front();
      in_hand_.pop_front();
    }
    if (!fetched_[at(host_.item)]) return false;
    task_ = schedule_.begin(host_.item);
    host_.all = host_.left = bytes_of(task_) * static_cast<double>(pieces_[at(host_.item)].range().size());
    host_.began = now_;
    step_.host_bytes += host_.left;
    host_.busy = host_.left > 0;
    host_.span = {
        .lane = SimulatedLane::host, .work = SimulatedWork::host_task, .task = task_, .unit = unit_of_[at(host_.item)]};
    if (!host_.busy) finish_host();
    return true;
  }

  void finish_host() {
    const int piece = std::exchange(host_.item, -1);
    const auto elements = static_cast<double>(pieces_[at(piece)].range().size());
    const bool first = task_ == HostTask::preview || task_ == HostTask::weights_first;
    const bool whole = task_ == HostTask::speculate || task_ == HostTask::update;
    if (std::exchange(host_.busy, false)) {
      pace_.add(task_, now_ - host_.began, pieces_[at(piece)].range().size());
      note(host_.span, host_.began);
    }
    if (task_ == HostTask::speculate) step_.speculated += elements;
    if (task_ == HostTask::preview) step_.previewed += elements;
    if ((first || whole) && !streamed_[at(unit_of_[at(piece)])]) {
      ++on_the_way_[at(piece)];
      sends_.push_back({piece, now_});
    }
    schedule_.complete(piece, task_);
  }

  // Until now.
  void note(SimulatedSpan span, double began) {
    if (!spans_) return;
    span.begin = std::max(0.0, began);
    span.end = now_;
    spans_->push_back(span);
  }

  // ---- The link ----

  double weigh(int piece, double bytes) const { return bytes * static_cast<double>(pieces_[at(piece)].range().size()); }
  void fetch(int piece) {
    fetched_[at(piece)] = false;
    fetches_.push_back(piece);
  }

  bool start_to_host() {
    if (to_host_.busy || fetches_.empty()) return false;
    const int piece = fetches_.front();
    fetches_.pop_front();
    start(to_host_, piece, weigh(piece, run_.gradient_bytes),
          {.lane = SimulatedLane::to_host, .work = SimulatedWork::fetch, .unit = unit_of_[at(piece)]});
    return true;
  }

  bool start_to_device() {
    bool went_on = false;
    while (uses_there_ < static_cast<int>(program_.uses.size()) && program_.uses[at(uses_there_)].there &&
           !streaming_) {
      ++uses_there_;
      went_on = true;
    }
    const bool more = uses_there_ < static_cast<int>(program_.uses.size());
    if (more && !streaming_ && stream_ready_ == forever) {
      const StreamUse& use = program_.uses[at(uses_there_)];
      // Uses take the places in turn: this one's is free when the use that had it is done.
      if (uses_done_ > uses_there_ - stream_places && (!use.waits || has_final_weights(use.unit))) stream_ready_ = now_;
    }
    if (to_device_.busy) return went_on;
    if (stream_ready_ < forever && (sends_.empty() || stream_ready_ < sends_.front().since)) {
      const int unit = program_.uses[at(uses_there_)].unit;
      stream_ready_ = forever;
      streaming_ = true;
      const double bytes = run_.stream_bytes * static_cast<double>(run_.units[at(unit)].elements);
      micro_streamed_ += bytes;
      start(to_device_, unit, bytes, {.lane = SimulatedLane::to_device, .work = SimulatedWork::stream, .unit = unit});
      return true;
    }
    if (sends_.empty()) return went_on;
    const int piece = sends_.front().piece;
    sends_.pop_front();
    start(to_device_, piece, weigh(piece, run_.weight_bytes),
          {.lane = SimulatedLane::to_device, .work = SimulatedWork::send, .unit = unit_of_[at(piece)]});
    return true;
  }

  void start(Lane& lane, int item, double bytes, SimulatedSpan span) {
    span.bytes = bytes;
    lane = {.busy = true, .all = bytes, .left = bytes, .began = now_, .item = item, .span = span};
    step_.host_bytes += bytes;
  }

  void finish_to_host() {
    to_host_.busy = false;
    fetched_[at(to_host_.item)] = true;
    note(to_host_.span, to_host_.began);
  }
  void finish_to_device() {
    to_device_.busy = false;
    note(to_device_.span, to_device_.began);
    if (std::exchange(streaming_, false))
      ++uses_there_;
    else
      --on_the_way_[at(to_device_.item)];
  }

  // ---- Time ----

  // To the next moment at which something is done.
  void advance() {
    const std::array<Lane*, 3> lanes = this->lanes();
    std::size_t active = 0;
    for (std::size_t i = 0; i < 3; ++i) active |= (lanes[i]->busy ? std::size_t{1} : 0) << i;
    const std::array<double, 3>& rates = rates_[active];
    double until = device_.busy ? device_ends_ : forever;
    std::size_t next = 3;
    for (std::size_t i = 0; i < 3; ++i)
      if (const double end = lanes[i]->busy ? now_ + lanes[i]->left / rates[i] : forever; end < until) {
        until = end;
        next = i;
      }
    SO_CHECK(until < forever, "a simulated step that never ends");
    const double seconds = until - now_;
    if (!device_.busy) {
      step_.waits[static_cast<std::size_t>(waits_for_)] += seconds;
      if (waits_for_ == WaitReason::stream) micro_waited_ += seconds;
    }
    // What streaming takes is the pass's own time: it passes whatever the host does.
    if (device_.busy || waits_for_ == WaitReason::stream) phase_ += seconds;
    now_ = until;
    if (host_.busy) step_.host_seconds += seconds;
    for (std::size_t i = 0; i < 3; ++i)
      if (lanes[i]->busy) lanes[i]->left -= rates[i] * seconds;
    // Beside that which is next, what differs from it by rounding only.
    const auto done = [&](std::size_t i) {
      return lanes[i]->busy && (i == next || lanes[i]->left <= 1e-9 * lanes[i]->all);
    };
    if (done(0)) finish_host();
    if (done(1)) finish_to_host();
    if (done(2)) finish_to_device();
    if (device_.busy && device_ends_ <= now_) finish_device();
  }

  const SimulatedRun run_;
  const std::unique_ptr<UpdatePolicy> policy_;
  std::vector<Bucket> pieces_;
  const std::int64_t place_count_;
  CountedPlaces places_;
  HostSchedule schedule_;
  const std::vector<bool> streamed_;              // by unit
  const DeviceProgram program_;                   // of a step
  std::vector<int> first_piece_, unit_of_;        // by unit, and one more; by piece
  std::vector<double> shares_;                    // by piece
  std::array<std::array<double, 3>, 8> rates_{};  // of host, to_host and to_device, by which of them work

  double now_ = 0;  // seconds since the last verdict
  SimulatedStep step_;
  std::vector<SimulatedSpan>* spans_ = nullptr;

  Lane device_, host_, to_host_, to_device_;
  double device_ends_ = 0;
  std::size_t next_op_ = 0;
  WaitReason waits_for_ = WaitReason::host;
  double wait_began_ = -1;
  double micro_waited_ = 0, micro_streamed_ = 0;  // seconds and bytes, of this micro-batch, by streaming
  std::array<int, gradient_slots> held_;          // by slot: the unit that had it last, -1: none

  HostTask task_ = HostTask::none;
  std::deque<int> in_hand_;
  std::vector<bool> fetched_;    // by piece: its gradient is where the host can read it
  std::vector<int> on_the_way_;  // by piece: copies of weights
  std::deque<int> fetches_;
  struct Ready {
    int piece = -1;
    double since = 0;
  };
  std::deque<Ready> sends_;
  int uses_done_ = 0, uses_there_ = 0;
  bool streaming_ = false;
  double stream_ready_ = forever;

  // What the engine would measure.
  HostPace pace_;
  double forward_seconds_ = 0, backward_seconds_ = 0, phase_ = 0;
  bool first_gradient_ = false, asked_ = false, was_asked_ = false, choice_is_new_ = false;
  UpdateChoice choice_;
  std::array<double, 4> asked_with_{};
};

Simulator::Simulator(SimulatedRun run, std::unique_ptr<UpdatePolicy> policy)
    : play_(std::make_unique<Play>(std::move(run), std::move(policy))) {}
Simulator::~Simulator() = default;

SimulatedStep Simulator::step() { return play_->step(); }

SimulatedStep Simulator::settle() {
  SimulatedStep sum;
  double before = -1;
  int counted = 0;
  for (int i = 0; i < most_steps; ++i) {
    const SimulatedStep now = play_->step();
    const bool repeats = !play_->choice_is_new() && std::abs(now.seconds - before) <= same_step * now.seconds;
    before = now.seconds;
    if (repeats) return now;
    if (i < most_steps / 2) continue;
    ++counted;
    sum.seconds += now.seconds;
    sum.device += now.device;
    sum.host_bytes += now.host_bytes;
    sum.speculated += now.speculated;
    sum.previewed += now.previewed;
    sum.update_seconds += now.update_seconds;
    sum.host_seconds += now.host_seconds;
    for (std::size_t r = 0; r < wait_reasons; ++r) sum.waits[r] += now.waits[r];
  }
  for (double* value : {&sum.seconds, &sum.device, &sum.host_bytes, &sum.speculated, &sum.previewed,
                        &sum.update_seconds, &sum.host_seconds})
    *value /= counted;
  for (double& seconds : sum.waits) seconds /= counted;
  return sum;
}

SimulatedTimeline Simulator::timeline() { return play_->timeline(); }
const HostCounters& Simulator::counters() const { return play_->counters(); }
std::size_t Simulator::pieces() const { return play_->pieces(); }

}  // namespace so
