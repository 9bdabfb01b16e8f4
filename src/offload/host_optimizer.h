// The host's half of the optimizer: a thread that fetches gradients of host-owned buckets, runs AdamW over them on the
// host's threads, and sends weights back, beside the device's work. It does what is most urgent:
//
//   1. after the verdict, what the next forward pass waits for: updates and redone updates, and old weights that a
//      skipped step must put back; lowest bucket first
//   2. adopting speculated state, then state that must follow weights sent earlier; highest bucket first, whose next
//      gradient comes first
//   3. ahead of the verdict, buckets whose gradients are complete, as the step's UpdateChoice has it
//
// The engine's thread makes all calls; each says whether it waits for this one. The first error, of this thread or
// given to fail(), ends the thread's work and is thrown by every call from begin_step() to finish() but land() and
// landed().
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "offload/bucket.h"
#include "offload/bucket_update.h"
#include "offload/device_weights.h"
#include "offload/optimizer_state.h"
#include "offload/save_gate.h"
#include "offload/staging_ring.h"
#include "offload/unit_array.h"
#include "offload/update_policy.h"
#include "offload/weight_stream.h"
#include "optim/adamw.h"

namespace so {

// Totals since construction, of host-owned buckets.
struct HostCounters {
  std::int64_t speculated = 0, previewed = 0;                    // ahead of the verdict
  std::int64_t committed_ahead = 0;                              // of those, what the verdict let stand
  std::int64_t updated_in_place = 0, updated_weights_first = 0;  // after the verdict
  std::int64_t redone = 0;                                       // of the latter two, void work done again
  std::int64_t restored = 0;                                     // old weights put back after a skipped step
  std::int64_t voided = 0;                                       // work ahead of the verdict that a clipped step voids
  std::int64_t committed = 0, discarded = 0;                     // of steps that stood and that were skipped
  double adam_seconds = 0, gradient_wait_seconds = 0, save_wait_seconds = 0;  // of this thread
};

class HostOptimizer {
 public:
  // `buckets`: the engine's, of all owners; this object alone moves the host-owned ones. `gradients` lie on the device;
  // they are fetched when the host works on a bucket, or, with `store_gradients`, into pinned memory as soon as they
  // are complete. Weights of units in `streamed` are written there, not sent. All references must outlive it.
  HostOptimizer(Device& device, ThreadPool& pool, const ParameterLayout& layout, std::span<Bucket> buckets,
                OptimizerState& state, DeviceWeights& weights, const WeightStream& streamed, const UnitArray& gradients,
                bool store_gradients, CastSide cast, SaveGate& gate);
  // Ends the thread, without doing what is left to do.
  ~HostOptimizer();
  HostOptimizer(const HostOptimizer&) = delete;
  HostOptimizer& operator=(const HostOptimizer&) = delete;

  // Buckets that the host owns, lowest first, as indices; and their sizes.
  std::span<const int> owned() const { return owned_; }
  std::span<const std::int64_t> elements() const { return elements_; }

  // The gradients of the next step's last micro-batch are about to come. `unclipped`: the update if it stands as it is.
  void begin_step(const AdamWStep& unclipped, UpdateChoice choice);
  // Waits until the bucket's former gradient is no longer needed; then its device memory may be written by work that
  // follows on `stream`.
  void require_gradient(const Bucket& bucket, Stream& stream);
  bool gradient_free(const Bucket& bucket) const;  // whether that would not wait
  // Work that follows on `stream` may overwrite the bucket's gradient on the device, which has been stored.
  void require_fetched(const Bucket& bucket, Stream& stream) { stream.wait(*entry(bucket).fetched); }
  // A gradient is being written.
  void land(Bucket& bucket);
  // It is complete once `complete` is reached, which the caller has recorded and leaves recorded until the next step.
  void landed(Bucket& bucket, Event& complete);
  // The verdict: whether the step stands, and with which update; unclipped: as it was given to begin_step().
  void decide(bool stands, bool unclipped, const AdamWStep& step);

  // Waits until the bucket's final weights have been sent; work that follows on `stream` finds them.
  void require_weights(const Bucket& bucket, Stream& stream);
  bool weights_sent(const Bucket& bucket) const;  // whether that would not wait
  // The same at any time, also between a gradient and its verdict: then they are not final.
  bool weights_final(const Bucket& bucket) const;
  bool weights_here(const Bucket& bucket) const;  // nor the stream
  // Waits until the bucket's state is that of the last verdict.
  void require_state(const Bucket& bucket);
  // Waits until all of it is done but for weights on their way.
  void finish();
  // What the device did for this step has failed, so that no verdict will come. The first error stands.
  void fail(std::exception_ptr error);
  // Puts the bucket's master weights, rounded, on the device, or where they stream from. Enqueues.
  void send_masters(const Bucket& bucket);

  HostCounters counters() const;
  // Running means of the seconds an element takes, 0 before the first.
  double update_seconds() const;
  double preview_seconds() const;

 private:
  // What is known of a host-owned bucket beside its state.
  struct Entry {
    bool decided = true;                      // the verdict on its gradient is in
    bool in_hand = false;                     // taken by the thread
    bool redo = false;                        // its update replaces one that was void
    int place = -1;                           // spare place of its speculated state
    Event* complete = nullptr;                // its gradient
    std::byte* stored = nullptr;              // where its gradient is stored, if it is
    std::unique_ptr<Event> fetched, current;  // its gradient was read; its weights are on the device
  };
  struct Work {
    int index = -1;
    StagingRing::Slot* slot = nullptr;
  };
  enum class Task : std::uint8_t { none, speculate, preview, update, weights_first, follow, adopt, restore };

  void run();
  bool prepare();  // takes the most urgent bucket in hand; false if there is none
  int most_urgent();
  Task task_of(int index) const;
  void perform(const Work& work);
  void update(const Bucket& bucket, const StagingRing::Slot& slot, Task task, const AdamWStep& step);
  void complete(Bucket& bucket, Task task);
  void apply_verdict(Bucket& bucket);
  void give(const Bucket& bucket, StagingRing::Slot& slot);
  std::size_t gradient_bytes(const Bucket& bucket) const {
    return static_cast<std::size_t>(bucket.range().size()) * size_of(ring_.gradients());
  }
  bool streams(const Bucket& bucket) const { return streamed_.has(layout_.unit_of(bucket.range().begin)); }
  // Where its new weights are written.
  Tensor weights_of(const Bucket& bucket, const StagingRing::Slot& slot) const;
  Tensor gradient_of(const Bucket& bucket) const {
    return {gradients_.at(bucket.range().begin), gradients_.dtype(), {bucket.range().size()}};
  }
  void measured(double& mean, double seconds, std::int64_t elements) const;

  Bucket& bucket(int index) { return buckets_[static_cast<std::size_t>(index)]; }
  Entry& entry(int index) { return entries_[static_cast<std::size_t>(index)]; }
  Entry& entry(const Bucket& bucket) { return entry(bucket.index()); }
  const Entry& entry(int index) const { return entries_[static_cast<std::size_t>(index)]; }
  bool has_final_weights(const Bucket& bucket) const;
  bool needs_no_gradient(const Bucket& bucket) const;
  void throw_error() const {
    if (error_) std::rethrow_exception(error_);
  }
  template <class Ready>
  void wait_until(std::unique_lock<std::mutex>& lock, const Ready& ready);

  ThreadPool& pool_;
  const std::span<Bucket> buckets_;
  OptimizerState& state_;
  const ParameterLayout& layout_;
  const BucketUpdate update_;
  DeviceWeights& weights_;
  const WeightStream& streamed_;
  const UnitArray& gradients_;
  SaveGate& gate_;
  std::vector<int> owned_;
  std::vector<int> turn_of_;  // by bucket: its index in owned_, -1 for others
  std::vector<std::int64_t> elements_;
  Buffer store_;  // gradients of all host-owned buckets, if they are stored; then the engine's thread fetches them
  StagingRing ring_;
  std::size_t turn_ = 0;

  mutable std::mutex mutex_;  // guards all below, and the states of host-owned buckets
  std::condition_variable changed_;
  std::vector<Entry> entries_;  // by bucket; events are null for those of others
  UpdateChoice choice_;
  AdamWStep unclipped_{}, final_{};
  bool stands_ = true, as_speculated_ = true;  // of the last verdict
  std::set<int> due_, adopting_, owing_;
  std::deque<int> ahead_;  // in the order their gradients become complete
  std::deque<Work> in_hand_;
  bool stop_ = false;
  std::exception_ptr error_;
  HostCounters counters_;
  double update_seconds_ = 0, preview_seconds_ = 0;

  std::thread thread_;  // last: it uses all the others
};

}  // namespace so
