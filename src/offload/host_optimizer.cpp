#include "offload/host_optimizer.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "base/delay_point.h"
#include "base/error.h"
#include "base/log.h"
#include "device/trace.h"

namespace so {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::int64_t largest(std::span<const Bucket> buckets) {
  std::int64_t elements = 0;
  for (const Bucket& bucket : buckets)
    if (bucket.owner() == Owner::host) elements = std::max(elements, bucket.range().size());
  return elements;
}

// Buckets in hand: the one that is next, and one whose gradient arrives meanwhile.
constexpr std::size_t hands = StagingRing::ahead - 1;

}  // namespace

HostOptimizer::HostOptimizer(Device& device, ThreadPool& pool, const ParameterLayout& layout, std::span<Bucket> buckets,
                             OptimizerState& state, DeviceWeights& weights, const WeightStream& streamed,
                             const UnitArray& gradients, bool store_gradients, CastSide cast, SaveGate& gate)
    : pool_(pool),
      buckets_(buckets),
      state_(state),
      layout_(layout),
      update_(pool, layout, state),
      weights_(weights),
      streamed_(streamed),
      gradients_(gradients),
      gate_(gate),
      turn_of_(buckets.size(), -1),
      ring_(device, largest(buckets), gradients.dtype(), weights.dtype(), cast, !store_gradients),
      entries_(buckets.size()) {
  for (const Bucket& bucket : buckets) {
    if (bucket.owner() != Owner::host) continue;
    turn_of_[static_cast<std::size_t>(bucket.index())] = static_cast<int>(owned_.size());
    owned_.push_back(bucket.index());
    elements_.push_back(bucket.range().size());
    entry(bucket).fetched = device.create_event();
    entry(bucket).current = device.create_event();
  }
  if (!owned_.empty() && store_gradients) {
    std::size_t bytes = 0;
    for (const int index : owned_) bytes += gradient_bytes(bucket(index));
    store_ = device.allocate(MemoryKind::pinned, bytes, "gradients");
    auto* at = static_cast<std::byte*>(store_.data());
    for (const int index : owned_) at = (entry(index).stored = at) + gradient_bytes(bucket(index));
  }
  if (!owned_.empty() && device.backed()) thread_ = std::thread([this] { run(); });
}

HostOptimizer::~HostOptimizer() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// ---- The engine's side ----

template <class Ready>
void HostOptimizer::wait_until(std::unique_lock<std::mutex>& lock, const Ready& ready) {
  changed_.wait(lock, [&] { return error_ || ready(); });
  throw_error();
}

bool HostOptimizer::has_final_weights(const Bucket& bucket) const {
  switch (bucket.state()) {
    case BucketState::idle:
    case BucketState::landing:
    case BucketState::owing:
    case BucketState::committed:
    case BucketState::returning:
      return true;
    case BucketState::deferred:
    case BucketState::speculated:
    case BucketState::previewed:
    case BucketState::discarded:
      break;
  }
  SO_CHECK(entry(bucket.index()).decided, "weights of bucket {} after its gradient", bucket.index());
  return false;
}

bool HostOptimizer::needs_no_gradient(const Bucket& bucket) const {
  const BucketState state = bucket.state();
  return state == BucketState::idle || state == BucketState::landing || state == BucketState::returning;
}

void HostOptimizer::begin_step(const AdamWStep& unclipped, UpdateChoice choice) {
  SO_CHECK(choice.ahead.size() == owned_.size() && choice.after.size() == owned_.size() &&
               choice.redo.size() == owned_.size(),
           "a choice for {} of {} buckets", choice.ahead.size(), owned_.size());
  const std::lock_guard lock(mutex_);
  throw_error();
  unclipped_ = unclipped;
  // What is left of the step before goes by the new choice: any is right.
  choice_ = std::move(choice);
}

bool HostOptimizer::gradient_free(const Bucket& bucket) const {
  const std::lock_guard lock(mutex_);
  throw_error();
  return needs_no_gradient(bucket);
}

void HostOptimizer::require_gradient(const Bucket& bucket, Stream& stream) {
  {
    std::unique_lock lock(mutex_);
    wait_until(lock, [&] { return needs_no_gradient(bucket); });
  }
  stream.wait(*entry(bucket).fetched);
}

void HostOptimizer::land(Bucket& bucket) {
  const std::lock_guard lock(mutex_);
  // The weights that the last step sent are there: this step's forward pass has waited for them.
  if (bucket.state() == BucketState::returning) bucket.settle();
  bucket.land();
}

void HostOptimizer::landed(Bucket& bucket, Event& complete) {
  Entry& e = entry(bucket);
  if (e.stored) ring_.fetch(e.stored, gradient_of(bucket), complete, *e.fetched);
  {
    const std::lock_guard lock(mutex_);
    bucket.defer();
    e.decided = e.redo = false;
    e.complete = &complete;
    ahead_.push_back(bucket.index());
  }
  changed_.notify_all();
}

void HostOptimizer::decide(bool stands, bool unclipped, const AdamWStep& step) {
  {
    const std::lock_guard lock(mutex_);
    throw_error();
    stands_ = stands;
    as_speculated_ = stands && unclipped;
    final_ = step;
    ahead_.clear();
    for (const int index : owned_) {
      entry(index).decided = true;
      if (!entry(index).in_hand) apply_verdict(bucket(index));
    }
  }
  changed_.notify_all();
}

bool HostOptimizer::weights_sent(const Bucket& bucket) const {
  const std::lock_guard lock(mutex_);
  throw_error();
  return has_final_weights(bucket);
}

bool HostOptimizer::weights_final(const Bucket& bucket) const {
  const std::lock_guard lock(mutex_);
  throw_error();
  return entry(bucket.index()).decided && has_final_weights(bucket);
}

bool HostOptimizer::weights_here(const Bucket& bucket) const {
  const std::lock_guard lock(mutex_);
  throw_error();
  return has_final_weights(bucket) && entry(bucket.index()).current->done();
}

void HostOptimizer::require_weights(const Bucket& bucket, Stream& stream) {
  {
    std::unique_lock lock(mutex_);
    wait_until(lock, [&] { return has_final_weights(bucket); });
  }
  stream.wait(*entry(bucket).current);
}

void HostOptimizer::require_state(const Bucket& bucket) {
  std::unique_lock lock(mutex_);
  wait_until(lock, [&] { return !entry(bucket).decided || (needs_no_gradient(bucket) && !entry(bucket).in_hand); });
}

void HostOptimizer::finish() {
  std::unique_lock lock(mutex_);
  wait_until(lock, [&] {
    return std::all_of(owned_.begin(), owned_.end(),
                       [&](int i) { return needs_no_gradient(bucket(i)) && !entry(i).in_hand; });
  });
}

void HostOptimizer::fail(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  changed_.notify_all();
}

HostCounters HostOptimizer::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

double HostOptimizer::update_seconds() const {
  const std::lock_guard lock(mutex_);
  return update_seconds_;
}

double HostOptimizer::preview_seconds() const {
  const std::lock_guard lock(mutex_);
  return preview_seconds_;
}

// ---- Either side, under the lock ----

void HostOptimizer::apply_verdict(Bucket& bucket) {
  Entry& e = entry(bucket);
  const bool ahead = bucket.state() != BucketState::deferred;
  if (as_speculated_ && ahead) {
    ++counters_.committed_ahead;
    if (bucket.state() == BucketState::speculated) {
      bucket.commit();
      ++counters_.committed;
      adopting_.insert(bucket.index());
    } else {
      bucket.owe();
      owing_.insert(bucket.index());
    }
    return;
  }
  if (stands_ && !ahead) {
    due_.insert(bucket.index());
    return;
  }
  bucket.discard();
  ++(stands_ ? counters_.voided : counters_.discarded);
  if (e.place >= 0) state_.give_back(std::exchange(e.place, -1));
  if (!stands_ && !ahead) {
    bucket.settle();
    return;
  }
  if (stands_) {
    bucket.redo();
    e.redo = true;
  }
  due_.insert(bucket.index());
}

HostOptimizer::Task HostOptimizer::task_of(int index) const {
  const Entry& e = entry(index);
  const auto turn = static_cast<std::size_t>(turn_of_[static_cast<std::size_t>(index)]);
  switch (buckets_[static_cast<std::size_t>(index)].state()) {
    case BucketState::deferred:
      if (e.decided) {
        if (!stands_) return Task::none;
        return (as_speculated_ ? choice_.after : choice_.redo)[turn] == After::in_place ? Task::update
                                                                                        : Task::weights_first;
      }
      if (choice_.ahead[turn] == Ahead::speculate) return e.place >= 0 ? Task::speculate : Task::none;
      return choice_.ahead[turn] == Ahead::preview ? Task::preview : Task::none;
    case BucketState::owing:
      return Task::follow;
    case BucketState::committed:
      return Task::adopt;
    case BucketState::discarded:
      return Task::restore;
    default:
      return Task::none;
  }
}

// ---- The thread ----

int HostOptimizer::most_urgent() {
  const auto take = [](std::set<int>& from, bool lowest) {
    const auto at = lowest ? from.begin() : std::prev(from.end());
    const int index = *at;
    from.erase(at);
    return index;
  };
  if (!due_.empty()) return take(due_, true);
  if (!adopting_.empty()) return take(adopting_, false);
  if (!owing_.empty()) return take(owing_, false);
  while (!ahead_.empty()) {
    const int index = ahead_.front();
    ahead_.pop_front();
    const auto turn = static_cast<std::size_t>(turn_of_[static_cast<std::size_t>(index)]);
    if (choice_.ahead[turn] == Ahead::speculate && state_.has_spare()) entry(index).place = state_.take_spare();
    if (task_of(index) != Task::none) return index;
  }
  return -1;
}

bool HostOptimizer::prepare() {
  const int index = most_urgent();
  if (index < 0) return false;
  Entry& e = entry(index);
  e.in_hand = true;
  Work work{index, nullptr};
  const Task task = task_of(index);
  if (task != Task::adopt) work.slot = &ring_.slot(turn_++);
  if (task != Task::adopt && task != Task::restore && !e.stored)
    ring_.fetch(work.slot->gradient.data(), gradient_of(bucket(index)), *e.complete, *e.fetched);
  in_hand_.push_back(work);
  return true;
}

void HostOptimizer::run() {
  pthread_setname_np(pthread_self(), "optimizer");
  pool_.pin_caller();
  try {
    for (;;) {
      Work work;
      {
        std::unique_lock lock(mutex_);
        for (;;) {
          if (stop_ || error_) return;
          while (in_hand_.size() < hands && prepare()) {
          }
          if (!in_hand_.empty()) break;
          changed_.wait(lock);
        }
        work = in_hand_.front();
        in_hand_.pop_front();
      }
      perform(work);
    }
  } catch (...) {
    fail(std::current_exception());
  }
}

void HostOptimizer::perform(const Work& work) {
  constexpr std::array names = {"none",          "speculate", "preview", "update",
                                "weights first", "state",     "adopt",   "restore weights"};
  delay_point();
  Bucket& b = bucket(work.index);
  auto start = std::chrono::steady_clock::now();
  if (work.slot) {
    work.slot->weights_gone->synchronize();
    entry(work.index).fetched->synchronize();
  }
  const double waited = seconds_since(start);

  // The verdict may have come since the bucket was taken in hand.
  std::unique_lock lock(mutex_);
  counters_.gradient_wait_seconds += waited;
  const Task task = task_of(work.index);
  const AdamWStep step = task == Task::speculate || task == Task::preview ? unclipped_ : final_;
  Entry& e = entry(work.index);
  if (task != Task::speculate && task != Task::adopt && e.place >= 0) state_.give_back(std::exchange(e.place, -1));
  lock.unlock();

  double adam = 0, save_wait = 0;
  const std::string name = tracing() ? fmt::format("{} {}", names[static_cast<std::size_t>(task)], work.index) : "";
  const TraceSpan span(name);
  if (task == Task::update || task == Task::follow || task == Task::adopt) save_wait = gate_.wait(work.index);
  if (task != Task::adopt && task != Task::none) {
    start = std::chrono::steady_clock::now();
    update(b, *work.slot, task, step);
    if (task != Task::restore) adam = seconds_since(start);
    if (task != Task::follow) give(b, *work.slot);
  }

  delay_point();
  lock.lock();
  counters_.adam_seconds += adam;
  counters_.save_wait_seconds += save_wait;
  if (adam > 0)
    measured(task == Task::preview || task == Task::weights_first ? preview_seconds_ : update_seconds_, adam,
             b.range().size());
  complete(b, task);
  e.in_hand = false;
  lock.unlock();
  changed_.notify_all();
}

void HostOptimizer::complete(Bucket& bucket, Task task) {
  Entry& e = entry(bucket);
  const auto final = [&] {
    bucket.commit();
    ++counters_.committed;
    bucket.depart();
  };
  switch (task) {
    case Task::none:  // its step is skipped, and nothing had been done
      apply_verdict(bucket);
      return;
    case Task::speculate:
      bucket.speculate();
      ++counters_.speculated;
      if (e.decided) apply_verdict(bucket);
      return;
    case Task::preview:
      bucket.preview();
      ++counters_.previewed;
      if (e.decided) apply_verdict(bucket);
      return;
    case Task::update:
      ++counters_.updated_in_place;
      counters_.redone += e.redo ? 1 : 0;
      final();
      return;
    case Task::weights_first:
      ++counters_.updated_weights_first;
      counters_.redone += e.redo ? 1 : 0;
      bucket.owe();
      owing_.insert(bucket.index());
      return;
    case Task::follow:
      final();
      return;
    case Task::adopt:
      state_.adopt(std::exchange(e.place, -1), bucket);
      bucket.depart();
      return;
    case Task::restore:
      ++counters_.restored;
      bucket.depart();
      return;
  }
}

void HostOptimizer::update(const Bucket& bucket, const StagingRing::Slot& slot, Task task, const AdamWStep& step) {
  const Entry& e = entry(bucket);
  const Tensor gradient(e.stored ? e.stored : slot.gradient.data(), ring_.gradients(), {bucket.range().size()}),
      weights = weights_of(bucket, slot);
  switch (task) {
    case Task::speculate:
      return update_.beside(e.place, bucket, step, gradient, weights);
    case Task::preview:
    case Task::weights_first:
      return update_.preview(bucket, step, gradient, weights);
    case Task::update:
      return update_.in_place(bucket, step, gradient, weights);
    case Task::follow:
      return update_.follow(bucket, step, gradient);
    case Task::restore:
      return update_.round_masters(bucket, weights);
    case Task::none:
    case Task::adopt:
      return;
  }
}

Tensor HostOptimizer::weights_of(const Bucket& bucket, const StagingRing::Slot& slot) const {
  const Range range = bucket.range();
  if (streams(bucket)) return {streamed_.at(range.begin), weights_.dtype(), {range.size()}};
  return {slot.weights.data(), ring_.weights(), {range.size()}};
}

void HostOptimizer::give(const Bucket& bucket, StagingRing::Slot& slot) {
  if (streams(bucket)) return;
  const Range range = bucket.range();
  ring_.give(slot, Tensor(weights_.at(range.begin), weights_.dtype(), {range.size()}), *entry(bucket.index()).current);
}

void HostOptimizer::send_masters(const Bucket& bucket) {
  StagingRing::Slot& slot = ring_.slot(turn_++);
  slot.weights_gone->synchronize();
  update_.round_masters(bucket, weights_of(bucket, slot));
  give(bucket, slot);
}

void HostOptimizer::measured(double& mean, double seconds, std::int64_t elements) const {
  const double now = seconds / static_cast<double>(elements);
  mean = mean == 0 ? now : 0.95 * mean + 0.05 * now;
}

}  // namespace so
