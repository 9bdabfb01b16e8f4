#include "offload/host_optimizer.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "base/bf16_arrays.h"
#include "base/delay_point.h"
#include "base/error.h"
#include "base/log.h"
#include "device/trace.h"
#include "offload/link_update.h"

namespace so {
namespace {

// A gradient is fetched into a slot whose last job has ended: behind the one that is updated, a verdict may void all
// that is in hand, and as many others are then taken.
static_assert(2 * (HostSchedule::hands - 1) <= HostLink::ahead);

HostTime time_of(HostTask task) { return task == HostTask::restore ? HostTime::other : HostTime::adamw; }

}  // namespace

HostOptimizer::HostOptimizer(Device& device, ThreadPool& pool, const ParameterLayout& layout, std::span<Bucket> buckets,
                             const UnitWeights& weights, HostGradients& gradients, HostLink& link,
                             const Placement& placement, DType moments, SaveGate& gate)
    : pool_(pool),
      layout_(layout),
      buckets_(buckets),
      state_(device,
             {.pool = pool,
              .spare_places = placement.schedule == Schedule::synchronous ? 0 : placement.spare_buckets,
              .pinned = placement.pins_state()},
             layout, buckets, moments),
      update_(layout, state_),
      weights_(weights),
      gradients_(gradients),
      link_(link),
      gate_(gate),
      schedule_(buckets, state_),
      entries_(buckets.size()) {
  for (const Bucket& bucket : buckets) {
    if (!bucket.on_host()) continue;
    entry(bucket).current = device.create_event();
    if (follows_masters(bucket)) schedule_.set_from_masters(bucket);
  }
  std::vector<std::int64_t> masters(static_cast<std::size_t>(layout.units()));  // that follow, of each unit
  for (const int index : owned())
    if (follows_masters(bucket(index)))
      masters[static_cast<std::size_t>(layout.unit_of(bucket(index).range().begin))] += bucket(index).own().size();
  if (const std::int64_t most = *std::max_element(masters.begin(), masters.end()); most > 0)
    masters_ = std::make_unique<MasterCopies>(device, most);
  if (!owned().empty() && placement.over_link)
    link_update_ = std::make_unique<LinkUpdate>(device, layout, link.longest(), state_, weights, gradients,
                                                gradients.moves() ? std::optional(link.gradients()) : std::nullopt);
  if (owned().empty() || !device.backed()) return;
  clock_.start();
  thread_ = std::thread([this] { run(); });
  if (!link_update_) return;
  try {
    link_thread_ = std::thread([this] { run_link(); });
  } catch (...) {  // a limit on threads or memory; the other has no destructor to end it
    end_threads();
    throw;
  }
}

HostOptimizer::~HostOptimizer() { end_threads(); }

void HostOptimizer::end_threads() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread* thread : {&thread_, &link_thread_})
    if (thread->joinable()) thread->join();
}

// ---- The engine's side ----

template <class Ready>
void HostOptimizer::wait_until(std::unique_lock<std::mutex>& lock, const Ready& ready, bool needs_late) {
  if (needs_late && schedule_.late_closed() && !ready()) {
    schedule_.open_late();
    changed_.notify_all();
  }
  changed_.wait(lock, [&] { return error_ || ready(); });
  throw_error();
}

void HostOptimizer::throw_if_failed() const {
  const std::lock_guard lock(mutex_);
  throw_error();
}

void HostOptimizer::begin_step(const AdamWSteps& unclipped, UpdateChoice choice) {
  const std::lock_guard lock(mutex_);
  throw_error();
  unclipped_ = unclipped;
  pace_.restart();
  link_pace_.restart();
  schedule_.begin_step(std::move(choice));
}

bool HostOptimizer::gradient_free(const Bucket& bucket) const {
  const std::lock_guard lock(mutex_);
  throw_error();
  return schedule_.needs_no_gradient(bucket);
}

void HostOptimizer::require_gradient(const Bucket& bucket, Stream& stream) {
  {
    std::unique_lock lock(mutex_);
    wait_until(lock, [&] { return schedule_.needs_no_gradient(bucket); });
  }
  stream.wait(gradients_.fetched(bucket));
}

std::vector<Bucket*> HostOptimizer::landing_order(std::span<Bucket> complete) const {
  const std::lock_guard lock(mutex_);
  return schedule_.landing_order(complete);
}

void HostOptimizer::land(Bucket& bucket) {
  const std::lock_guard lock(mutex_);
  schedule_.land(bucket);
}

void HostOptimizer::landed(Bucket& bucket, Event& complete) {
  Entry& e = entry(bucket);
  if (gradients_.moves()) gradients_.store(bucket, complete);
  {
    const std::lock_guard lock(mutex_);
    e.complete = &complete;
    schedule_.landed(bucket);
  }
  changed_.notify_all();
}

void HostOptimizer::decide(bool stands, bool unclipped, const AdamWSteps& steps) {
  {
    const std::lock_guard lock(mutex_);
    throw_error();
    final_ = steps;
    schedule_.decide(stands, unclipped);
  }
  changed_.notify_all();
}

void HostOptimizer::reopen() {
  {
    std::unique_lock lock(mutex_);
    wait_until(lock, [&] { return schedule_.nothing_decided_left(); });
    schedule_.reopen();
  }
  changed_.notify_all();
  finish();
}

bool HostOptimizer::weights_sent(const Bucket& bucket) const {
  const std::lock_guard lock(mutex_);
  throw_error();
  return schedule_.has_final_weights(bucket);
}

bool HostOptimizer::weights_final(const Bucket& bucket) const {
  const std::lock_guard lock(mutex_);
  throw_error();
  return schedule_.is_decided(bucket) && schedule_.has_final_weights(bucket);
}

bool HostOptimizer::weights_here(const Bucket& bucket) const {
  const std::lock_guard lock(mutex_);
  throw_error();
  return schedule_.has_final_weights(bucket) && entry(bucket.index()).current->done();
}

void HostOptimizer::require_weights(const Bucket& bucket, Stream& stream) {
  {
    std::unique_lock lock(mutex_);
    wait_until(
        lock, [&] { return schedule_.has_final_weights(bucket); }, schedule_.is_late(bucket));
  }
  stream.wait(*entry(bucket).current);
}

void HostOptimizer::cast_masters(std::span<const Bucket> unit, Stream& stream) {
  std::vector<MasterCopies::Part> parts;
  for (const Bucket& bucket : unit)
    if (const Range own = bucket.own(); bucket.on_host() && follows_masters(bucket) && own.size() > 0)
      parts.push_back({state_.part(StateArray::master, bucket, own).values(),
                       Tensor(weights_.own_at(own.begin), weights_.on_device().dtype(), {own.size()})});
  if (!parts.empty()) masters_->cast(parts, stream);
}

void HostOptimizer::require_state(const Bucket& bucket) {
  std::unique_lock lock(mutex_);
  wait_until(lock, [&] { return schedule_.has_final_state(bucket); });
}

void HostOptimizer::read_state(StateArray array, const Bucket& bucket, Range part, const ReadPiece& body) {
  if (!gate_.pending(bucket.index())) require_state(bucket);
  read_host_state(state_.part(array, bucket, part), body);
}

void HostOptimizer::write_state(StateArray array, const Bucket& bucket, Range part, const WritePiece& fill) {
  require_state(bucket);
  wait_for_copies(array);
  const Range whole = state_.dtype(array) == DType::u8 ? layout_.whole_blocks(part) : part;
  write_host_state(state_.part(array, bucket, whole), {part.begin - whole.begin, part.end - whole.begin}, fill);
}

StatePart HostOptimizer::writable_state(StateArray array, const Bucket& bucket) {
  require_state(bucket);
  wait_for_copies(array);
  return state_.part(array, bucket, bucket.own());
}

void HostOptimizer::finish() {
  std::unique_lock lock(mutex_);
  wait_until(lock, [&] { return schedule_.finished(); });
}

void HostOptimizer::fail(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  changed_.notify_all();
}

HostCounters HostOptimizer::counters(HostClock::Clock::time_point& at) const {
  const std::lock_guard lock(mutex_);
  HostCounters counters = schedule_.counters();
  const HostClock::Reading time = clock_.read();
  counters.seconds = time.seconds;
  at = time.at;
  return counters;
}

StepTimes HostOptimizer::times() const {
  const std::lock_guard lock(mutex_);
  return {.update_seconds = pace_.update_seconds(),
          .preview_seconds = pace_.preview_seconds(),
          .link_seconds = link_pace_.update_seconds(),
          .link_preview_seconds = link_pace_.preview_seconds()};
}

// ---- The host's thread ----

bool HostOptimizer::prepare() {
  bool adopted = false;
  int index = schedule_.take();
  // To adopt is no work, and there are hundreds: they are not worth a turn each.
  for (; index >= 0 && schedule_.task_of(index) == HostTask::adopt && !gate_.pending(index); index = schedule_.take()) {
    schedule_.complete(index, schedule_.begin(index));
    adopted = true;
  }
  if (adopted) changed_.notify_all();
  if (index < 0) return false;
  Work work{index, nullptr};
  const HostTask task = schedule_.task_of(index);
  if (task != HostTask::adopt) work.slot = &link_.next_slot();
  if (task != HostTask::adopt && task != HostTask::restore && !gradients_.moves())
    link_.fetch(work.slot->gradient.data(), gradients_.on_device(bucket(index)), *entry(index).complete,
                gradients_.fetched(bucket(index)));
  in_hand_.push_back(work);
  return true;
}

void HostOptimizer::run() {
  pthread_setname_np(pthread_self(), "optimizer");
  pool_.pin_caller();
  try {
    while (take_turn()) {
    }
  } catch (...) {
    fail(std::current_exception());
  }
  running_.clear();  // waits for the work
}

bool HostOptimizer::take_turn() {
  if (!running_.empty() && running_.front().job.done()) {
    end();
    return true;
  }
  {
    std::unique_lock lock(mutex_);
    if (stop_ || error_) return false;
    while (in_hand_.size() + running_.size() < HostSchedule::hands && prepare()) {
    }
    if (in_hand_.empty() && running_.empty()) {
      wait_for_work(lock);
      return true;
    }
  }
  if (running_.empty() || (running_.size() < most_running && next_is_ready()))
    start();
  else if (!pool_.take_part())
    end();
  return true;
}

void HostOptimizer::wait_for_work(std::unique_lock<std::mutex>& lock) {
  const HostSchedule::Idle idle = schedule_.idle();
  Event* const complete = idle.bucket < 0 ? nullptr : entry(idle.bucket).complete;
  if (complete == nullptr || complete->done()) {
    clock_.enter(idle.reason);
    changed_.wait(lock);
    return;
  }
  // The engine's thread is ahead of the device, so the gradient that the reason holds back is still to be computed:
  // until then it is waited for. Nothing is missed: what could be taken before is a gradient that comes after it.
  clock_.enter(HostTime::gradient);
  lock.unlock();
  complete->synchronize();
  lock.lock();
}

void HostOptimizer::wait_for_slot(const Work& work) {
  const Entry& e = entry(work.index);
  if (e.complete) {
    clock_.enter(HostTime::gradient);
    e.complete->synchronize();
  }
  clock_.enter(HostTime::fetch);
  gradients_.fetched(bucket(work.index)).synchronize();
  clock_.enter(HostTime::send);
  work.slot->weights_gone->synchronize();
  clock_.enter(HostTime::other);
}

bool HostOptimizer::next_is_ready() const {
  if (in_hand_.empty()) return false;
  const Work& next = in_hand_.front();
  return next.slot && next.slot->weights_gone->done() && gradients_.fetched(bucket(next.index)).done() &&
         !gate_.pending(next.index);
}

void HostOptimizer::start() {
  const bool first = running_.empty();
  const Work work = in_hand_.front();
  in_hand_.pop_front();
  if (first) clock_.enter(HostTime::other);
  delay_point();
  if (first && work.slot) wait_for_slot(work);

  // The verdict may have come since the bucket was taken in hand.
  std::unique_lock lock(mutex_);
  const HostTask task = schedule_.begin(work.index);
  const AdamWSteps steps = task == HostTask::speculate || task == HostTask::preview ? unclipped_ : final_;
  const int place = schedule_.place_of(work.index);
  lock.unlock();

  // A save begins when nothing is in hand, so only the first may have to wait for it (next_is_ready()).
  const bool changes_state = task == HostTask::update || task == HostTask::follow || task == HostTask::adopt;
  if (changes_state && gate_.pending(work.index)) {
    clock_.enter(HostTime::checkpoint);
    gate_.wait(work.index);
    clock_.enter(HostTime::other);
  }
  if (task == HostTask::adopt || task == HostTask::none) return hand_over(work, task, 0);
  if (first) {
    clock_.enter(time_of(task));
    traced_ = trace_now();
  }
  running_.push_back({work, task, pool_.begin(work_on(bucket(work.index), *work.slot, task, place, steps))});
}

void HostOptimizer::end() {
  Running first = std::move(running_.front());
  running_.pop_front();
  pool_.finish(std::move(first.job));
  const double seconds = clock_.enter(running_.empty() ? HostTime::other : time_of(running_.front().task));
  if (tracing()) {
    const std::int64_t now = trace_now();
    trace_span(fmt::format("{}{} {}", time_of(first.task) == HostTime::adamw ? "AdamW: " : "", name_of(first.task),
                           first.work.index),
               std::exchange(traced_, now), now);
  }
  hand_over(first.work, first.task, time_of(first.task) == HostTime::adamw ? seconds : 0);
}

void HostOptimizer::hand_over(const Work& work, HostTask task, double seconds) {
  Bucket& b = bucket(work.index);
  if (task != HostTask::adopt && task != HostTask::none && task != HostTask::follow) give(b, *work.slot);
  delay_point();
  {
    const std::lock_guard lock(mutex_);
    if (seconds > 0) pace_.add(task, seconds, b.own().size());
    schedule_.complete(work.index, task);
  }
  changed_.notify_all();
}

ParallelWork HostOptimizer::work_on(const Bucket& bucket, const HostLink::Slot& slot, HostTask task, int place,
                                    const AdamWSteps& steps) const {
  std::byte* const stored = gradients_.stored(bucket);
  const Tensor gradient(stored ? stored : slot.gradient.data(), link_.gradients(), {bucket.own().size()}),
      weights = weights_of(bucket, slot);
  switch (task) {
    case HostTask::speculate:
      return update_.beside(place, bucket, steps, gradient, weights);
    case HostTask::preview:
    case HostTask::weights_first:
      return update_.preview(bucket, steps, gradient, weights);
    case HostTask::update:
      if (follows_masters(bucket)) return update_.follow(bucket, steps, gradient);
      return update_.in_place(bucket, steps, gradient, weights);
    case HostTask::follow:
      return update_.follow(bucket, steps, gradient);
    case HostTask::restore:
      if (follows_masters(bucket)) return {};  // what changed lay beside them
      return update_.round_masters(bucket, weights);
    case HostTask::none:
    case HostTask::adopt:
      break;
  }
  return {};
}

Tensor HostOptimizer::weights_of(const Bucket& bucket, const HostLink::Slot& slot) const {
  const Range range = bucket.own();
  if (std::byte* memory = kept(bucket)) return {memory, weights_.on_device().dtype(), {range.size()}};
  return {slot.weights.data(), link_.weights(), {range.size()}};
}

void HostOptimizer::give(const Bucket& bucket, HostLink::Slot& slot) {
  if (kept(bucket) || follows_masters(bucket)) return;
  const Range range = bucket.own();
  link_.give(slot, Tensor(weights_.own_at(range.begin), weights_.on_device().dtype(), {range.size()}),
             *entry(bucket.index()).current);
}

void HostOptimizer::send_masters(const Bucket& bucket) {
  if (follows_masters(bucket)) return;
  HostLink::Slot& slot = link_.next_slot();
  slot.weights_gone->synchronize();
  pool_.run(update_.round_masters(bucket, weights_of(bucket, slot)));
  give(bucket, slot);
}

void HostOptimizer::place(StateArray array, const Bucket& bucket, Range part, const WeightPiece& piece) {
  if (state_.dtype(array) == DType::u8) return place_codes(array, bucket, part, piece);
  const Tensor to = state_.part(array, bucket, part).values();
  const auto from = static_cast<std::size_t>(part.begin - piece.begin);
  const bool narrow = to.dtype() == DType::bf16, widens = !narrow && piece.wide.empty();
  SO_CHECK(!narrow || !piece.narrow.empty(), "bf16 moments at {} came in fp32 only", part.begin);
  const void* const source = narrow || widens ? static_cast<const void*>(piece.narrow.data() + from)
                                              : static_cast<const void*>(piece.wide.data() + from);
  if (source == to.data()) return;
  wait_for_copies(array);
  pool_.parallel_for(part.size(), 1 << 16, [&](std::int64_t begin, std::int64_t end) {
    const auto first = static_cast<std::size_t>(begin), count = static_cast<std::size_t>(end - begin),
               size = size_of(to.dtype());
    if (widens)
      widen_bf16(static_cast<const bf16*>(source) + first, to.as<float>() + first, count);
    else
      std::memcpy(static_cast<std::byte*>(to.data()) + first * size,
                  static_cast<const std::byte*>(source) + first * size, count * size);
  });
}

void HostOptimizer::place_codes(StateArray array, const Bucket& bucket, Range part, const WeightPiece& piece) {
  SO_CHECK(!piece.wide.empty(), "8-bit moments at {} came in another format than fp32", part.begin);
  if (layout_.whole_blocks(part) != part)
    return write_state(array, bucket, part, [&](std::int64_t offset, std::span<float> values) {
      std::copy_n(piece.wide.data() + (part.begin - piece.begin) + offset, values.size(), values.data());
    });
  const StatePart to = state_.part(array, bucket, part);
  constexpr std::int64_t grain = 64 * moment_block;
  // Elements of one parameter, so that blocks count from the first.
  pool_.parallel_for(part.size(), grain, [&](std::int64_t begin, std::int64_t end) {
    const float* const from = piece.wide.data() + (part.begin - piece.begin) + begin;
    to.slice({begin, end}).encode({from, static_cast<std::size_t>(end - begin)});
  });
}

}  // namespace so
