// AdamW over host-owned buckets by the device: a bucket's optimizer state travels to the device, is updated there
// beside the gradient and the weights, and travels back, unless only the weights are wanted yet. It gives the bits of
// BucketUpdate and needs neither the host's threads nor the way of gradient and weight over the link; it costs the link
// twice the state's bytes.
//
// Up to `slots` buckets are under way. One arrives, one leaves, and some may wait for the device to come to their
// update, which is short but begins only when the model's work lets it: a matrix product may keep all multiprocessors
// for milliseconds, in which the link brings a few buckets.
//
// Others' copies come first: gradients and weights that the host or the model waits for. A GPU's copy engine stays with
// a stream as long as that has a copy ready, whatever waits in others. So state travels in pieces, and of either
// direction the next piece is enqueued when the one before has arrived.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "device/device.h"
#include "offload/adamw_steps.h"
#include "offload/memory/host_gradients.h"
#include "offload/memory/optimizer_state.h"
#include "offload/memory/unit_weights.h"
#include "offload/schedule/bucket.h"
#include "offload/schedule/host_schedule.h"
#include "offload/schedule/parameter_layout.h"
#include "optim/adamw.h"
#include "optim/device_adamw.h"

namespace so {

// A bucket to update. `complete`: its gradient is complete on the device. `stored`: null, or its gradient in pinned
// memory, which is there once `fetched` is reached. LinkUpdate records `fetched` if `stored` is null, when it has read
// the gradient, and `current` when new weights are where they are kept.
struct LinkTask {
  const Bucket* bucket = nullptr;
  HostTask task = HostTask::none;  // any that is AdamW's
  int place = -1;                  // for new state, of speculate
  AdamWSteps steps;
  Event* complete = nullptr;
  const std::byte* stored = nullptr;
  Event *fetched = nullptr, *current = nullptr;
};

// One thread calls.
class LinkUpdate {
 public:
  static constexpr std::size_t slots = 6;

  // Updates buckets that the host owns, of at most `elements`. `state` is in pinned memory. `stored_gradients`: the
  // gradients' type in pinned memory, if they are stored there; f32 or bf16. All references must outlive it.
  LinkUpdate(Device& device, const ParameterLayout& layout, std::int64_t elements, OptimizerState& state,
             const UnitWeights& weights, const HostGradients& gradients, std::optional<DType> stored_gradients);
  // Waits for what is under way.
  ~LinkUpdate();

  bool busy() const { return count_ > 0; }
  bool full() const { return count_ == slots; }

  // Takes a bucket up. Not while it is full.
  void begin(const LinkTask& task);

  struct Done {
    int index = -1;
    HostTask task = HostTask::none;
    double seconds = 0;  // since the one before was done, or it was begun; 0: it had to wait for its gradient
  };
  // Moves a piece each way and waits for them; where nothing can be moved yet, for the update that comes next. Returns
  // the oldest bucket when it is done: its state is in host memory then. Not while nothing is under way.
  std::optional<Done> advance();

 private:
  struct Copy {
    void* to = nullptr;
    const void* from = nullptr;
    std::size_t bytes = 0;
  };
  // The copies of one direction, in order; pieces of them, once they are enqueued, are cut from the front.
  using Copies = std::vector<Copy>;
  struct Slot {
    std::vector<Buffer> state;  // an array each (OptimizerState::arrays())
    Buffer gradient, weights;
    std::unique_ptr<Event> here, updated;
    LinkTask task;
    Copies up, down;
    std::size_t up_next = 0, down_next = 0;  // the first that is not, or not wholly, enqueued
    bool was_complete = false;               // its gradient, when it was begun
    std::chrono::steady_clock::time_point begun;
  };
  // One direction.
  struct Way {
    std::unique_ptr<Stream> stream;
    std::unique_ptr<Event> arrived;  // the last piece
  };
  void list_copies(Slot& slot) const;
  // Enqueues what is next of these copies, up to a piece.
  static void enqueue_piece(const Way& way, Copies& copies, std::size_t& next);
  void update(Slot& slot);
  Slot& slot(std::size_t i) { return slots_[(oldest_ + i) % slots]; }  // by age
  // Where the bucket's new weights are kept in host memory; null if they are the device's, or have been sent before.
  std::byte* kept(const Slot& slot) const;
  AdamWState state_in(const Slot& slot) const;

  const ParameterLayout& layout_;
  OptimizerState& state_;
  const UnitWeights& weights_;
  const HostGradients& gradients_;
  const std::optional<DType> stored_;
  const std::unique_ptr<DeviceAdamW> adamw_;
  std::array<Slot, slots> slots_;
  std::size_t oldest_ = 0, count_ = 0;
  std::chrono::steady_clock::time_point last_done_{};
  Way up_, down_;
  std::unique_ptr<Stream> work_;
};

}  // namespace so
