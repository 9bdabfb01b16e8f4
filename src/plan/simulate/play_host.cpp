#include <algorithm>
#include <cmath>
#include <utility>

#include "plan/simulate/step_play.h"

namespace so {
namespace {

constexpr double same_facts = 1e-3;

}  // namespace

std::int64_t StepPlay::count_places() const {
  const auto count = static_cast<std::int64_t>(static_cast<double>(placement().spare_buckets) *
                                               static_cast<double>(placement().bucket_elements) /
                                               static_cast<double>(pieces_.largest()) * (1 + 1e-9));
  return placement().schedule == Schedule::synchronous ? 0 : std::min(count, static_cast<std::int64_t>(pieces_.size()));
}

StepTimes StepPlay::times() const {
  return {.update_seconds = pace_.update_seconds(),
          .preview_seconds = pace_.preview_seconds(),
          .link_seconds = link_pace_.update_seconds(),
          .link_preview_seconds = link_pace_.preview_seconds(),
          .stream_seconds = stream_seconds_,
          .forward_seconds = forward_seconds_,
          .backward_seconds = backward_seconds_};
}

void StepPlay::measure_shares() {
  const double first = first_forward_seconds(forward_seconds_, backward_seconds_, run_.micro_batches);
  for (std::size_t u = 0; u < run_.units.size(); ++u) {
    if (needed_at_[u] >= 0 && first > 0) shares_.needed[u] = std::min(1.0, needed_at_[u] / first);
    if (landed_at_[u] >= 0 && backward_seconds_ > 0)
      shares_.left[u] = std::clamp(1 - landed_at_[u] / backward_seconds_, 0.0, 1.0);
  }
}

void StepPlay::ask() {
  asked_ = true;
  const StepTimes measured = times();
  const bool same =
      times_asked_ > 0 && measured.is_within(same_facts, asked_with_) && shares_.is_within(same_facts, asked_shares_);
  choice_is_new_ = !pieces_.empty() && times_asked_ < most_questions_ && !same;
  if (choice_is_new_) {
    asked_with_ = measured;
    asked_shares_ = shares_;
    ++times_asked_;
    choice_ = choose(measured);
  }
  schedule_.begin_step(choice_);
}

UpdateChoice StepPlay::choose(const StepTimes& measured) const {
  const BucketShares shares(shares_, pieces_.units());
  UpdateFacts facts;
  static_cast<StepTimes&>(facts) = measured;
  facts.elements = schedule_.elements();
  facts.needed = shares.needed;
  facts.left = shares.left;
  facts.streamed = streamed_elements_;
  facts.spare_places = place_count_;
  facts.micro_batches = run_.micro_batches;
  facts.previews = !placement().makes_from_masters(Owner::host);
  facts.clip_rate = run_.verdicts == Verdicts::clip ? 1 : 0;
  return policy_->choose(facts);
}

double StepPlay::bytes_of(HostTask task) const {
  const double s = run_.bytes.state, g = run_.bytes.gradient, w = run_.bytes.weight;
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

bool StepPlay::start_host() {
  if (host_.busy) return false;
  if (host_.item < 0) {
    while (in_hand_.size() < HostSchedule::hands) {
      const int index = schedule_.take();
      if (index < 0) break;
      if (schedule_.task_of(index) != HostTask::adopt && !moves_) fetch(index, run_.bytes.gradient);
      in_hand_.push_back(index);
    }
    if (in_hand_.empty()) {
      host_idle_ = schedule_.idle().reason;
      return false;
    }
    host_.item = in_hand_.front();
    in_hand_.pop_front();
  }
  if (!fetched_[at(host_.item)]) {
    host_idle_ = HostTime::fetch;
    return false;
  }
  task_ = schedule_.begin(host_.item);
  const double bytes = bytes_of(task_) * pieces_.elements(host_.item);
  const bool weights_alone = task_ == HostTask::preview || task_ == HostTask::weights_first;
  host_.all = host_.left = weights_alone ? bytes / reading_share : bytes;
  host_.began = now_;
  step_.host_bytes += bytes;
  host_.busy = host_.left > 0;
  host_.span = {.lane = SimulatedLane::host,
                .work = SimulatedWork::host_task,
                .task = task_,
                .unit = pieces_.unit_of(host_.item)};
  if (!host_.busy) finish_host();
  return true;
}

void StepPlay::finish_host() {
  const int piece = std::exchange(host_.item, -1);
  const double elements = pieces_.elements(piece);
  const bool first = task_ == HostTask::preview || task_ == HostTask::weights_first;
  const bool whole = task_ == HostTask::speculate || task_ == HostTask::update;
  if (std::exchange(host_.busy, false)) {
    pace_.add(task_, now_ - host_.began, pieces_[piece].range().size());
    note(host_.span, host_.began);
  }
  if (task_ == HostTask::speculate) step_.speculated += elements;
  if (task_ == HostTask::preview) step_.previewed += elements;
  if (const int unit = pieces_.unit_of(piece); (first || whole) && !streams(unit) && !sends_masters(unit)) {
    ++on_the_way_[at(piece)];
    sends_.push_back({piece, now_});
  }
  schedule_.complete(piece, task_);
}

}  // namespace so
