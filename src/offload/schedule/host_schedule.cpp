#include "offload/schedule/host_schedule.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/error.h"

namespace so {

std::string_view name_of(HostTask task) {
  constexpr std::array<std::string_view, 8> names = {"none",          "speculate", "preview", "update",
                                                     "weights first", "state",     "adopt",   "restore weights"};
  return names.at(static_cast<std::size_t>(task));
}

void HostPace::restart() {
  for (Mean* mean : {&updates_, &previews_}) mean->seconds = mean->elements = 0;
}

void HostPace::add(HostTask task, double seconds, std::int64_t elements) {
  Mean& mean = task == HostTask::preview || task == HostTask::weights_first ? previews_ : updates_;
  mean.seconds += seconds;
  mean.elements += (task == HostTask::follow ? follow_ : 1) * static_cast<double>(elements);
  mean.value = mean.seconds / mean.elements;
}

HostSchedule::HostSchedule(std::span<Bucket> buckets, StatePlaces& places)
    : buckets_(buckets), places_(places), turn_of_(buckets.size(), -1), entries_(buckets.size()) {
  for (const Bucket& bucket : buckets) {
    if (!bucket.on_host()) continue;
    turn_of_[static_cast<std::size_t>(bucket.index())] = static_cast<int>(owned_.size());
    owned_.push_back(bucket.index());
    elements_.push_back(bucket.own().size());
  }
}

// ---- The device's side ----

void HostSchedule::begin_step(UpdateChoice choice) {
  SO_CHECK(choice.ahead.size() == owned_.size() && choice.after.size() == owned_.size() &&
               choice.redo.size() == owned_.size(),
           "a choice for {} of {} buckets", choice.ahead.size(), owned_.size());
  choice_ = std::move(choice);
  for (const int index : owned_) {
    const Entry& e = entry(index);
    if (!e.late && !e.from_masters) continue;
    Ahead& ahead = choice_.ahead[turn_of(index)];
    if (e.late || ahead == Ahead::preview) ahead = Ahead::leave;
    choice_.after[turn_of(index)] = choice_.redo[turn_of(index)] = After::in_place;
  }
  without_place_.merge(unwanted_);
  for (const int index : std::exchange(without_place_, {})) leave(index);
}

void HostSchedule::land(Bucket& bucket) {
  // The weights that the last step sent are there, since this step's forward pass has waited for them; or, of a late
  // bucket, who writes the next ones waits for them.
  if (bucket.state() == BucketState::returning) bucket.settle();
  bucket.land();
}

void HostSchedule::landed(Bucket& bucket) {
  Entry& e = entry(bucket.index());
  bucket.defer();
  undecided_ += std::exchange(e.decided, false) ? 1 : 0;
  e.redo = false;
  ahead_.push_back(bucket.index());
  leave(bucket.index());
}

void HostSchedule::decide(bool stands, bool unclipped) {
  stands_ = stands;
  as_speculated_ = stands && unclipped;
  late_open_ = !stands;
  forget_ahead();
  for (const int index : owned_) {
    entry(index).decided = true;
    if (!entry(index).in_hand) apply_verdict(bucket(index));
  }
}

void HostSchedule::forget_ahead() {
  ahead_.clear();
  without_place_.clear();
  unwanted_.clear();
  undecided_ = 0;
}

void HostSchedule::reopen() {
  stands_ = as_speculated_ = false;
  late_open_ = true;
  forget_ahead();
  for (const int index : owned_) {
    if (std::exchange(entry(index).decided, true)) continue;
    if (!entry(index).in_hand) apply_verdict(bucket(index));
  }
}

bool HostSchedule::nothing_decided_left() const {
  return std::all_of(owned_.begin(), owned_.end(), [&](int i) {
    return !entry(i).decided || (needs_no_gradient(buckets_[static_cast<std::size_t>(i)]) && !entry(i).in_hand);
  });
}

bool HostSchedule::has_final_weights(const Bucket& bucket) const {
  switch (bucket.state()) {
    case BucketState::idle:
    case BucketState::landing:
    case BucketState::owing:
    case BucketState::returning:
      return true;
    case BucketState::committed:
      return !entry(bucket.index()).from_masters;
    case BucketState::deferred:
    case BucketState::speculated:
    case BucketState::previewed:
    case BucketState::discarded:
      break;
  }
  SO_CHECK(entry(bucket.index()).decided, "weights of bucket {} after its gradient", bucket.index());
  return false;
}

bool HostSchedule::needs_no_gradient(const Bucket& bucket) const {
  const BucketState state = bucket.state();
  return state == BucketState::idle || state == BucketState::landing || state == BucketState::returning;
}

bool HostSchedule::has_final_state(const Bucket& bucket) const {
  const Entry& e = entry(bucket.index());
  return !e.decided || (needs_no_gradient(bucket) && !e.in_hand);
}

bool HostSchedule::finished() const {
  return std::all_of(owned_.begin(), owned_.end(), [&](int i) {
    return needs_no_gradient(buckets_[static_cast<std::size_t>(i)]) && !entry(i).in_hand;
  });
}

// ---- The host's side ----

int HostSchedule::first_due(std::set<int>& due, Updater updater) {
  // Some must only be put back, which is the host's.
  const auto first = std::find_if(due.begin(), due.end(), [&](int index) {
    return updater == Updater::host || bucket(index).state() == BucketState::deferred;
  });
  if (first == due.end()) return -1;
  const int index = *first;
  due.erase(first);
  return index;
}

int HostSchedule::most_urgent(Updater updater) {
  const auto take = [](std::set<int>& from, std::set<int>::const_iterator at) {
    const int index = *at;
    from.erase(at);
    return index;
  };
  const bool host = updater == Updater::host;
  if (host && !adopting_first_.empty()) return take(adopting_first_, adopting_first_.begin());
  if (const int index = first_due(due_, updater); index >= 0) return index;
  if (const int index = late_open_ ? first_due(late_due_, updater) : -1; index >= 0) return index;
  if (host && !adopting_.empty()) return take(adopting_, std::prev(adopting_.end()));
  if (!owing_.empty()) return take(owing_, std::prev(owing_.end()));
  while (!ahead_.empty()) {
    const int index = ahead_.front();
    ahead_.pop_front();
    if (choice_.ahead[turn_of(index)] == Ahead::speculate && places_.has_spare()) {
      entry(index).place = places_.take_spare();
      ++places_taken_;
    }
    if (task_of(index) != HostTask::none) return index;
  }
  return -1;
}

int HostSchedule::take(Updater updater) {
  const int index = most_urgent(updater);
  if (index >= 0) {
    without_place_.erase(index);
    unwanted_.erase(index);
    entry(index).in_hand = true;
    entry(index).updater = updater;
  }
  return index;
}

std::vector<Bucket*> HostSchedule::landing_order(std::span<Bucket> complete) const {
  std::vector<Bucket*> order;
  for (Bucket& bucket : complete) order.push_back(&bucket);
  std::reverse(order.begin(), order.end());
  std::stable_partition(order.begin(), order.end(), [&](const Bucket* bucket) {
    return !bucket->on_host() || choice_.ahead[turn_of(bucket->index())] != Ahead::leave;
  });
  return order;
}

HostSchedule::Idle HostSchedule::idle() const {
  const auto highest = [](const std::set<int>& left) { return left.empty() ? -1 : *left.rbegin(); };
  const int without_place = highest(without_place_), unwanted = highest(unwanted_);
  const bool all_full = places_taken_ > 0 && !places_.has_spare();
  if (const int first = all_full ? std::max(without_place, unwanted) : without_place; first >= 0)
    return {HostTime::place, first};
  if (unwanted >= 0) return {HostTime::verdict, unwanted};
  return {undecided_ > 0 && undecided_ == owned_.size() ? HostTime::verdict : HostTime::gradient, -1};
}

void HostSchedule::leave(int index) {
  (choice_.ahead[turn_of(index)] == Ahead::speculate ? without_place_ : unwanted_).insert(index);
}

HostTask HostSchedule::task_of(int index) const {
  const Entry& e = entry(index);
  const std::size_t turn = turn_of(index);
  switch (buckets_[static_cast<std::size_t>(index)].state()) {
    case BucketState::deferred:
      if (e.decided) {
        if (!stands_) return HostTask::none;
        return (as_speculated_ ? choice_.after : choice_.redo)[turn] == After::in_place ? HostTask::update
                                                                                        : HostTask::weights_first;
      }
      if (choice_.ahead[turn] == Ahead::speculate) return e.place >= 0 ? HostTask::speculate : HostTask::none;
      return choice_.ahead[turn] == Ahead::preview ? HostTask::preview : HostTask::none;
    case BucketState::owing:
      return HostTask::follow;
    case BucketState::committed:
      return HostTask::adopt;
    case BucketState::discarded:
      return HostTask::restore;
    default:
      return HostTask::none;
  }
}

void HostSchedule::give_back_place(Entry& entry) {
  if (entry.place < 0) return;
  places_.give_back(std::exchange(entry.place, -1));
  --places_taken_;
}

HostTask HostSchedule::begin(int index) {
  const HostTask task = task_of(index);
  if (task != HostTask::speculate && task != HostTask::adopt) give_back_place(entry(index));
  return task;
}

void HostSchedule::apply_verdict(Bucket& bucket) {
  Entry& e = entry(bucket.index());
  const bool ahead = bucket.state() != BucketState::deferred;
  if (as_speculated_ && ahead) {
    ++counters_.committed_ahead;
    if (bucket.state() == BucketState::speculated) {
      bucket.commit();
      ++counters_.committed;
      (e.from_masters ? adopting_first_ : adopting_).insert(bucket.index());
    } else {
      bucket.owe();
      owing_.insert(bucket.index());
    }
    return;
  }
  if (stands_ && !ahead) {
    make_due(bucket.index());
    return;
  }
  bucket.discard();
  ++(stands_ ? counters_.voided : counters_.discarded);
  give_back_place(e);
  if (!stands_ && !ahead) {
    bucket.settle();
    return;
  }
  if (stands_) {
    bucket.redo();
    e.redo = true;
  }
  make_due(bucket.index());
}

void HostSchedule::complete(int index, HostTask task) {
  Entry& e = entry(index);
  Bucket& b = bucket(index);
  e.in_hand = false;
  counters_.over_link += e.updater == Updater::link ? 1 : 0;
  const auto final = [&] {
    b.commit();
    ++counters_.committed;
    b.depart();
  };
  switch (task) {
    case HostTask::none:  // its step is skipped, and nothing had been done
      apply_verdict(b);
      return;
    case HostTask::speculate:
      b.speculate();
      ++counters_.speculated;
      if (e.decided) apply_verdict(b);
      return;
    case HostTask::preview:
      b.preview();
      ++counters_.previewed;
      if (e.decided) apply_verdict(b);
      return;
    case HostTask::update:
      ++counters_.updated_in_place;
      counters_.redone += e.redo ? 1 : 0;
      final();
      return;
    case HostTask::weights_first:
      ++counters_.updated_weights_first;
      counters_.redone += e.redo ? 1 : 0;
      b.owe();
      owing_.insert(index);
      return;
    case HostTask::follow:
      final();
      return;
    case HostTask::adopt:
      places_.adopt(std::exchange(e.place, -1), b);
      --places_taken_;
      b.depart();
      return;
    case HostTask::restore:
      ++counters_.restored;
      b.depart();
      return;
  }
}

}  // namespace so
