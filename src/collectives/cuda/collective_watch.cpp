#include "collectives/cuda/collective_watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "device/cuda/cuda_device.h"

namespace so {
namespace {

constexpr std::chrono::milliseconds beat_period{200};
constexpr std::chrono::milliseconds end_period{5};

}  // namespace

CollectiveWatch::CollectiveWatch(Device& device, std::unique_ptr<Communicator> ranks, Carrier carrier)
    : device_(device), ranks_(std::move(ranks)), carrier_(std::move(carrier)) {
  thread_ = std::thread([this] { watch(); });
}

void CollectiveWatch::stop() {
  {
    const Lock lock(mutex_);
    leaving_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// ---- The calls of the stream's thread ----

std::unique_ptr<Event> CollectiveWatch::take_event() {
  if (events_.empty()) return device_.create_event();
  std::unique_ptr<Event> event = std::move(events_.back());
  events_.pop_back();
  return event;
}

CollectiveWatch::Collective CollectiveWatch::begin(Stream& stream, const char* what) {
  Collective collective{number_ + 1, what, take_event(), take_event()};
  stream.record(*collective.begun);
  return collective;
}

void CollectiveWatch::end(Stream& stream, Collective collective) {
  stream.record(*collective.ended);
  number_ = collective.number;
  pending_.push_back(std::move(collective));
}

// ---- The watch ----

void CollectiveWatch::watch() noexcept {
  try {
    watch_until_left();
  } catch (...) {
    fail(std::current_exception());
  }
}

void CollectiveWatch::watch_until_left() {
  device_.make_current();
  // Every rank sees the same beats, so all stop alike when one leaves: from there on each watches for itself.
  for (bool beats = true;;) {
    const Beat own = look();
    std::vector<Beat> all(static_cast<std::size_t>(ranks_->size()), own);
    if (beats) {
      const std::vector<std::int64_t> one_each(all.size(), 1);
      ranks_->all_gather(std::span(&own, 1), one_each, std::span(all));
      beats = std::none_of(all.begin(), all.end(), [](const Beat& beat) { return beat.leaving != 0; });
    }
    judge(all);
    if (own.leaving != 0) return;
    Lock lock(mutex_);
    changed_.wait_for(lock, beat_period, [&] { return leaving_; });
  }
}

CollectiveWatch::Beat CollectiveWatch::look() {
  const Lock lock(mutex_);
  if (carrier_.check) carrier_.check(pending_.empty() ? "between collectives" : pending_.front().what);
  while (!pending_.empty() && pending_.front().ended->done()) {
    events_.push_back(std::move(pending_.front().begun));
    events_.push_back(std::move(pending_.front().ended));
    pending_.pop_front();
  }
  Beat beat{.begun = number_, .leaving = leaving_ ? 1 : 0};
  if (pending_.empty()) {
    waiting_for_ = 0;
    return beat;
  }
  const Collective& head = pending_.front();
  beat.begun = head.begun->done() ? head.number : head.number - 1;
  if (beat.begun != head.number) return beat;
  if (waiting_for_ != head.number) waiting_.emplace(*ranks_);
  waiting_for_ = head.number;
  if (waiting_->over()) beat.overdue = head.number;
  return beat;
}

// Whether the others wait for this rank, or this one for what no rank has failed to begin.
void CollectiveWatch::judge(const std::vector<Beat>& beats) {
  const Beat& own = beats[static_cast<std::size_t>(ranks_->rank())];
  std::int64_t overdue = 0;
  for (const Beat& beat : beats) overdue = std::max(overdue, beat.overdue);
  if (overdue == 0) return;
  const double limit = ranks_->time_limit();
  if (own.begun < overdue)
    give_up(fmt::format("it has not come to a collective in which the other ranks have waited for {:g} s", limit));
  if (own.overdue > 0 && std::all_of(beats.begin(), beats.end(), [&](const Beat& b) { return b.begun >= overdue; }))
    give_up(fmt::format("{} has not ended within {:g} s", carrier_.collective, limit));
  // Else the one that is behind gives up, which this one hears of with the next beat.
}

void CollectiveWatch::give_up(const std::string& reason) {
  ranks_->abort(reason);
  throw Communicator::gave_up(ranks_->rank(), reason);
}

// What is enqueued already may wait again for a rank that is gone, so this goes on until the last has run.
void CollectiveWatch::fail(std::exception_ptr error) noexcept {
  fail_streams(device_, error);  // first, so that what the end of the collectives wakes finds it
  Lock lock(mutex_);
  failure_ = std::move(error);
  pending_.clear();
  do carrier_.end();
  while (!changed_.wait_for(lock, end_period, [&] { return leaving_; }));
}

}  // namespace so
