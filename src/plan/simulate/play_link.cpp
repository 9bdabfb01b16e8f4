#include <algorithm>
#include <utility>

#include "plan/simulate/step_play.h"

namespace so {

void StepPlay::fetch(int piece, double element_bytes) {
  fetched_[at(piece)] = false;
  fetches_.push_back({piece, element_bytes});
}

bool StepPlay::start_to_host() {
  if (to_host_.busy || fetches_.empty()) return false;
  const auto [piece, element_bytes] = fetches_.front();
  fetches_.pop_front();
  start(to_host_, piece, weigh(piece, element_bytes),
        {.lane = SimulatedLane::to_host, .work = SimulatedWork::fetch, .unit = pieces_.unit_of(piece)});
  return true;
}

Traffic StepPlay::traffic(int unit) const {
  const SimulatedUnit& u = run_.units[at(unit)];
  return traffic_of(placement().unit(unit), {u.elements, u.frozen}, run_.bytes);
}

double StepPlay::may_stream(const StreamUse& use) const {
  if (!use.waits || has_final_weights(use.unit)) return traffic(use.unit).use;
  const bool wanted = wait_began_ >= 0 && next_op_ < program_.ops.size() && program_.ops[next_op_].use == uses_there_;
  double elements = 0;
  for (int i = pieces_.first_of(use.unit); wanted && schedule_.has_final_weights(pieces_[i]); ++i)
    elements += pieces_.elements(i);
  return run_.bytes.stored * elements;
}

bool StepPlay::start_to_device() {
  bool went_on = false;
  while (uses_there_ < static_cast<int>(program_.uses.size()) && program_.uses[at(uses_there_)].there && !streaming_) {
    ++uses_there_;
    went_on = true;
  }
  const bool more = uses_there_ < static_cast<int>(program_.uses.size());
  if (more && !streaming_ && stream_ready_ == forever) {
    const StreamUse& use = program_.uses[at(uses_there_)];
    // Its place is free when the use that had it is done.
    if (uses_done_ > use.after && may_stream(use) > stream_sent_) stream_ready_ = now_;
  }
  if (to_device_.busy) return went_on;
  const double send_since = sends_.empty() ? forever : sends_.front().since,
               sum_since = sum_may_come() ? sums_.front().since : forever;
  if (masters_since_ < std::min({send_since, sum_since, stream_ready_})) {
    const int unit = program_.gathers[at(gathers_done_)].unit;
    masters_since_ = forever;
    bringing_masters_ = true;
    const double bytes = traffic(unit).use;
    micro_copied_ += bytes;
    start(to_device_, unit, bytes, {.lane = SimulatedLane::to_device, .work = SimulatedWork::masters, .unit = unit});
    return true;
  }
  if (sum_since < std::min(send_since, stream_ready_)) {
    start_sum();
    return true;
  }
  if (stream_ready_ < forever && stream_ready_ < send_since) {
    const StreamUse& use = program_.uses[at(uses_there_)];
    const int unit = use.unit;
    stream_ready_ = forever;
    streaming_ = true;
    const double until = may_stream(use), bytes = until - stream_sent_;
    stream_sent_ = until;
    micro_copied_ += bytes;
    start(to_device_, unit, bytes, {.lane = SimulatedLane::to_device, .work = SimulatedWork::stream, .unit = unit});
    return true;
  }
  if (sends_.empty()) return went_on;
  const int piece = sends_.front().piece;
  sends_.pop_front();
  start(to_device_, piece, weigh(piece, run_.bytes.weight),
        {.lane = SimulatedLane::to_device, .work = SimulatedWork::send, .unit = pieces_.unit_of(piece)});
  return true;
}

bool StepPlay::start_over_link() {
  if (!placement().over_link || link_.busy) return false;
  bool went_on = false;
  if (link_.item < 0) {
    link_.item = schedule_.take(Updater::link);
    went_on = link_.item >= 0;
  }
  if (link_.item < 0 || !fetched_[at(link_.item)]) return went_on;
  link_task_ = schedule_.begin(link_.item);
  const int unit = pieces_.unit_of(link_.item);
  // Weights alone take their state one way, at half of both ways' rate.
  const double bytes =
      2 * run_.bytes.state + (moves_ ? run_.bytes.gradient : 0) +
      (streams(unit) && !sends_masters(unit) && link_task_ != HostTask::follow ? run_.bytes.weight : 0);
  start(link_, link_.item, weigh(link_.item, bytes),
        {.lane = SimulatedLane::link, .work = SimulatedWork::over_link, .task = link_task_, .unit = unit});
  return true;
}

void StepPlay::finish_over_link() {
  const int piece = std::exchange(link_.item, -1);
  link_.busy = false;
  link_pace_.add(link_task_, now_ - link_.began, pieces_[piece].range().size());
  step_.over_link += pieces_.elements(piece);
  if (link_task_ == HostTask::speculate) step_.speculated += pieces_.elements(piece);
  if (link_task_ == HostTask::preview) step_.previewed += pieces_.elements(piece);
  note(link_.span, link_.began);
  schedule_.complete(piece, link_task_);
}

void StepPlay::start(Lane& lane, int item, double bytes, SimulatedSpan span) {
  span.bytes = bytes;
  lane = {.busy = true, .all = bytes, .left = bytes, .began = now_, .item = item, .span = span};
  step_.host_bytes += bytes;
}

void StepPlay::finish_to_host() {
  to_host_.busy = false;
  fetched_[at(to_host_.item)] = true;
  note(to_host_.span, to_host_.began);
}

void StepPlay::finish_to_device() {
  to_device_.busy = false;
  note(to_device_.span, to_device_.began);
  if (std::exchange(streaming_, false)) {
    if (!first_gradient_) {
      streaming_seconds_ += now_ - to_device_.began;
      streaming_elements_ += to_device_.all / run_.bytes.stored;
      stream_seconds_ = streaming_seconds_ / streaming_elements_;
    }
    if (stream_sent_ < traffic(program_.uses[at(uses_there_)].unit).use) return;
    stream_sent_ = 0;
    ++uses_there_;
  } else if (std::exchange(bringing_masters_, false)) {
    masters_here_ = true;
  } else if (std::exchange(bringing_sum_, false)) {
    --slots_[at(slot_of(pieces_.unit_of(to_device_.item)))].to_come;
  } else {
    --on_the_way_[at(to_device_.item)];
  }
}

}  // namespace so
