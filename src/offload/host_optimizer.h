// The host's half of the optimizer: a thread that fetches gradients of host-owned buckets, runs AdamW over them on the
// host's threads, and sends weights back, beside the device's work. A second thread may have the device update some of
// them (link_update.h). What is done and when, HostSchedule decides (host_schedule.h).
//
// The engine's thread makes all calls; each says whether it waits for these two. The first error, of a thread or given
// to fail(), ends the threads' work and is thrown by every call from throw_if_failed() to finish() but land() and
// landed().
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "base/weight_piece.h"
#include "offload/adamw_steps.h"
#include "offload/bucket_update.h"
#include "offload/host_clock.h"
#include "offload/memory/host_gradients.h"
#include "offload/memory/host_link.h"
#include "offload/memory/master_copies.h"
#include "offload/memory/optimizer_state.h"
#include "offload/memory/state_transfer.h"
#include "offload/memory/unit_weights.h"
#include "offload/save_gate.h"
#include "offload/schedule/bucket.h"
#include "offload/schedule/host_schedule.h"
#include "offload/schedule/placement.h"
#include "offload/schedule/step_time.h"
#include "offload/schedule/update_policy.h"
#include "optim/adamw.h"

namespace so {

class LinkUpdate;
struct LinkTask;

class HostOptimizer {
 public:
  // `buckets`: the engine's, of all owners; this object alone moves the host-owned ones. `gradients` are fetched over
  // `link` when the host works on a bucket or, where they move, as soon as they are complete. Weights that have host
  // memory (WeightResidency) are written there, not sent, and those that follow masters (UnitWeights) are made by
  // cast_masters(). The state has moments of this format, and what the placement says. All references must outlive it.
  HostOptimizer(Device& device, ThreadPool& pool, const ParameterLayout& layout, std::span<Bucket> buckets,
                const UnitWeights& weights, HostGradients& gradients, HostLink& link, const Placement& placement,
                DType moments, SaveGate& gate);
  // Ends the threads, without doing what is left to do.
  ~HostOptimizer();
  HostOptimizer(const HostOptimizer&) = delete;
  HostOptimizer& operator=(const HostOptimizer&) = delete;

  // Buckets that the host owns, lowest first, as indices; and their sizes.
  std::span<const int> owned() const { return schedule_.owned(); }
  std::span<const std::int64_t> elements() const { return schedule_.elements(); }

  // Throws what has failed so far, if anything has.
  void throw_if_failed() const;
  // The gradients of the next step's last micro-batch are about to come. `unclipped`: the update if it stands as it is.
  void begin_step(const AdamWSteps& unclipped, UpdateChoice choice);
  // Waits until the bucket's former gradient is no longer needed; then its device memory may be written by work that
  // follows on `stream`.
  void require_gradient(const Bucket& bucket, Stream& stream);
  // Whether require_gradient() would return at once.
  bool gradient_free(const Bucket& bucket) const;
  std::vector<Bucket*> landing_order(std::span<Bucket> complete) const;  // HostSchedule's
  // The bucket's gradient is being written on the device.
  void land(Bucket& bucket);
  // The bucket's gradient is complete once `complete` is reached, which the caller has recorded and leaves recorded
  // until the next step.
  void landed(Bucket& bucket, Event& complete);
  // The verdict: whether the step stands, and with which update; unclipped: as it was given to begin_step().
  void decide(bool stands, bool unclipped, const AdamWSteps& steps);

  // Further gradients of this step will come: undoes what was done ahead. Waits until it is undone.
  void reopen();

  // From the next gradient on the bucket is a late one (HostSchedule::set_late()): it is updated after the others, once
  // a call waits for it or for all, or preview_rows() has been called. Goes without stored gradients.
  void set_late(const Bucket& bucket);
  // Computes the weights that the last verdict gives some rows of a parameter in late buckets, before all that the pool
  // has to do, and then lets these buckets' update begin. Takes part, and returns when the weights are written. Returns
  // false, having done nothing, if their update may have begun already: then the caller must require the buckets'
  // weights.
  // `rows`: of `width` elements. `gradients` and `weights`: [rows, width], in the formats of both on the device.
  bool preview_rows(Range parameter, std::int64_t width, std::span<const std::int64_t> rows, Tensor gradients,
                    Tensor weights);

  // A bucket's weights are final when they are those of the last verdict. They are sent once their copy to the device
  // is enqueued, and here once it is done.
  //
  // Waits until the bucket's final weights have been sent; work that follows on `stream` finds them.
  void require_weights(const Bucket& bucket, Stream& stream);
  // Whether require_weights() would return at once.
  bool weights_sent(const Bucket& bucket) const;
  // As weights_sent(), but at any time: false between a gradient and its verdict, when they are not final.
  bool weights_final(const Bucket& bucket) const;
  // Whether final weights have come to the device, so that `stream` would not wait either.
  bool weights_here(const Bucket& bucket) const;
  // Enqueues on `stream`, for those of a unit's buckets that are the host's: weights on the device, of those that
  // follow masters, become these, rounded. require_weights() has been called. The host's memory is read until then, and
  // what uses the weights precedes the buckets' next gradients.
  void cast_masters(std::span<const Bucket> unit, Stream& stream);
  // Waits until the bucket's state is that of the last verdict.
  void require_state(const Bucket& bucket);
  // Elements `part` of the bucket's state, as it lies, once it is that of the last verdict. What a save still has to
  // read nobody touches, so reading that does not wait.
  void read_state(StateArray array, const Bucket& bucket, Range part, const ReadPiece& body);
  void write_state(StateArray array, const Bucket& bucket, Range part, const WritePiece& fill);
  // The bucket's own slice, which the caller may write until the next gradient.
  StatePart writable_state(StateArray array, const Bucket& bucket);
  // Waits until all updates are done; weights may still be on their way to the device.
  void finish();
  // Reports that the device's work for this step has failed, so that no verdict will come. The first error is kept.
  void fail(std::exception_ptr error);
  // Puts the bucket's master weights, rounded, on the device, or where they stream from, unless these follow them.
  // Enqueues.
  void send_masters(const Bucket& bucket);
  // Loading: elements `part` of the bucket's own slice from a piece that holds them, by the host's threads, unless they
  // were read right into it. Moments come in the format they are kept in, or in fp32 where that is 8 bits.
  void place(StateArray array, const Bucket& bucket, Range part, const WeightPiece& piece);

  // Their seconds add up to the time that has passed until `at`, which is during the call.
  HostCounters counters(HostClock::Clock::time_point& at) const;
  // Seconds an element takes: the mean of a step, from a call of begin_step() to the next; 0 before the first, and for
  // all but AdamW.
  StepTimes times() const;

 private:
  // The facts about a host-owned bucket that the schedule does not know.
  struct Entry {
    Event* complete = nullptr;       // its gradient
    std::unique_ptr<Event> current;  // its weights are on the device
  };
  struct Work {
    int index = -1;
    HostLink::Slot* slot = nullptr;  // none for what is adopted, once a save has read it
  };
  // Work under way.
  struct Running {
    Work work;
    HostTask task = HostTask::none;
    ThreadPool::Job job;
  };
  static constexpr std::size_t most_running = 2;
  static_assert(most_running < HostSchedule::hands);

  void end_threads();
  void run();
  // Does what comes next on the host's thread; false when there will be nothing.
  bool take_turn();
  void run_link();  // link_thread.cpp
  // Waits until the link has work to do; false when there will be none. `task` has a bucket if one can be begun.
  bool next_over_link(LinkTask& task);
  bool prepare();  // adopts what is the most urgent, takes the next in hand; false if there is none
  // Waits until there may be something to take. `lock` is of mutex_.
  void wait_for_work(std::unique_lock<std::mutex>& lock);
  // Waits for what the bucket's task reads and writes.
  void wait_for_slot(const Work& work);
  // Whether start() would not wait.
  bool next_is_ready() const;
  void start();  // begins the work on the next bucket in hand, or does it where it is none for the pool
  void end();    // waits for the work that was begun first, and hands it over
  // place() where moments are codes.
  void place_codes(StateArray array, const Bucket& bucket, Range part, const WeightPiece& piece);
  ParallelWork work_on(const Bucket& bucket, const HostLink::Slot& slot, HostTask task, int place,
                       const AdamWSteps& steps) const;
  // Enqueues the bucket's new weights, and tells the schedule. `seconds`: of AdamW.
  void hand_over(const Work& work, HostTask task, double seconds);
  void give(const Bucket& bucket, HostLink::Slot& slot);
  // Where its weights are kept in host memory; null if they are sent to the device.
  std::byte* kept(const Bucket& bucket) const {
    return weights_.at(bucket.range().begin).host_memory(bucket.range().begin);
  }
  // State is about to be written from outside: a pass may have asked for weights of it that nobody has used.
  void wait_for_copies(StateArray array) {
    if (masters_ && array == StateArray::master) masters_->wait();
  }
  // Whether its weights are made of its masters, so that none are sent.
  bool follows_masters(const Bucket& bucket) const { return weights_.follows_masters(bucket.range().begin); }
  // Where its new weights are written.
  Tensor weights_of(const Bucket& bucket, const HostLink::Slot& slot) const;
  Bucket& bucket(int index) const { return buckets_[static_cast<std::size_t>(index)]; }
  Entry& entry(int index) { return entries_[static_cast<std::size_t>(index)]; }
  Entry& entry(const Bucket& bucket) { return entry(bucket.index()); }
  const Entry& entry(const Bucket& bucket) const { return entry(bucket.index()); }
  const Entry& entry(int index) const { return entries_[static_cast<std::size_t>(index)]; }
  void throw_error() const {
    if (error_) std::rethrow_exception(error_);
  }
  // Late buckets are no longer held back, unless it is ready or does not need them.
  template <class Ready>
  void wait_until(std::unique_lock<std::mutex>& lock, const Ready& ready, bool needs_late = true);

  ThreadPool& pool_;
  const ParameterLayout& layout_;
  const std::span<Bucket> buckets_;
  OptimizerState state_;
  const BucketUpdate update_;
  const UnitWeights& weights_;
  HostGradients& gradients_;
  HostLink& link_;
  SaveGate& gate_;
  std::unique_ptr<MasterCopies> masters_;  // null: no weights follow masters

  // The host's thread alone uses these.
  std::deque<Work> in_hand_;
  std::deque<Running> running_;
  std::int64_t traced_ = 0;  // when the trace's last span of running work ended, or the first began

  mutable std::mutex mutex_;  // guards all below, and the states of host-owned buckets
  std::condition_variable changed_;
  HostSchedule schedule_;
  std::vector<Entry> entries_;  // by bucket; events are null for those of others
  AdamWSteps unclipped_, final_;
  bool stop_ = false;
  std::exception_ptr error_;
  HostPace pace_{follow_share}, link_pace_{1};
  HostClock clock_;  // the thread's; it has a lock of its own

  std::unique_ptr<LinkUpdate> link_update_;  // null: the device updates none
  std::thread thread_, link_thread_;         // last: they use all the others
};

}  // namespace so
