#include "ranks/collectives/cuda/collective_watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/stream_values.h"

namespace so {
namespace {

constexpr std::chrono::milliseconds beat_period{200};
constexpr std::chrono::milliseconds end_period{5};

// Their number, once the device is the thread's, which maps them.
int words_on(Device& device, int count) {
  device.make_current();
  return count;
}

}  // namespace

CollectiveWatch::CollectiveWatch(Device& device, std::unique_ptr<Communicator> ranks, Carrier carrier)
    : device_(device),
      ranks_(std::move(ranks)),
      carrier_(std::move(carrier)),
      words_(SharedWords::Unshared::words, words_on(device, word_count)) {
  require_stream_values();
  thread_ = std::thread([this] { watch(); });
}

void CollectiveWatch::stop() {
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// ---- The calls of the stream's thread ----

void CollectiveWatch::write(Stream& stream, Word word, const Collective& collective) {
  write_value(cuda_stream(stream), words_.on_device(static_cast<int>(word)),
              static_cast<std::uint32_t>(collective.number));
}

// The word has the low half of a number, which is enough: far fewer collectives are ever under way.
bool CollectiveWatch::has(Word word, const Collective& collective) const {
  const std::uint32_t beyond = words_.at(static_cast<int>(word)).load() - static_cast<std::uint32_t>(collective.number);
  return static_cast<std::int32_t>(beyond) >= 0;
}

CollectiveWatch::Collective CollectiveWatch::begin(Stream& stream, const char* what) {
  Collective collective{.what = what};
  {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    collective.number = ++number_;
    pending_.push_back(collective);
  }
  write(stream, Word::begun, collective);
  return collective;
}

void CollectiveWatch::end(Stream& stream, const Collective& collective) { write(stream, Word::ended, collective); }

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
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, beat_period, [&] { return leaving_; });
  }
}

CollectiveWatch::Beat CollectiveWatch::look() {
  Beat beat;
  std::optional<Collective> head;
  {
    const std::lock_guard lock(mutex_);
    while (!pending_.empty() && has(Word::ended, pending_.front())) pending_.pop_front();
    if (!pending_.empty()) head = pending_.front();
    beat = {.begun = number_, .leaving = leaving_ ? 1 : 0};
  }
  if (carrier_.check) carrier_.check(head ? head->what : "between collectives");
  if (!head) {
    waiting_for_ = 0;
    return beat;
  }
  beat.begun = has(Word::begun, *head) ? head->number : head->number - 1;
  if (beat.begun != head->number) return beat;
  if (waiting_for_ != head->number) waiting_.emplace(*ranks_);
  waiting_for_ = head->number;
  if (waiting_->over()) beat.overdue = head->number;
  return beat;
}

// Whether the others wait for this rank, or this one for a collective that all ranks have begun.
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
  {
    const std::lock_guard lock(mutex_);
    failure_ = std::move(error);
    pending_.clear();
  }
  for (bool leaving = false; !leaving;) {
    carrier_.end();
    std::unique_lock lock(mutex_);
    leaving = changed_.wait_for(lock, end_period, [&] { return leaving_; });
  }
}

}  // namespace so
