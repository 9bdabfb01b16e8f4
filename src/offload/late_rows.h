// This brings single rows of an embedding whose state the host owns and updates last (OwnerSplit). A forward pass needs
// few of them, those of its tokens, so the host computes these rows' new weights first, which changes no state, and
// they are written into the table on the device. The update of all follows when the host has nothing more urgent to do,
// and brings the others.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/tensor.h"
#include "base/thread_pool.h"
#include "device/device.h"
#include "offload/host_optimizer.h"
#include "offload/schedule/parameter_layout.h"
#include "optim/engine_ops.h"

namespace so {

class LateRows {
 public:
  // `parameter`: its elements, all in late buckets of `host`. `table` and `gradients`: its weights and its gradient on
  // the device, [rows, width]. All outlive this.
  LateRows(Device& device, HostOptimizer& host, Range parameter, Tensor table, Tensor gradients);
  // Waits for copies under way.
  ~LateRows();
  LateRows(const LateRows&) = delete;
  LateRows& operator=(const LateRows&) = delete;

  // After a verdict, before anything else asks for the table: work that follows on `stream` finds the new weights of
  // these rows, which are in any order and may be repeated. What read the table before has run; weights of the update
  // before, which may still be on their way to it, are waited for. `complete`: the gradient is. Returns when the host
  // has computed the rows; they may still be on their way. The host's update of all must not begin before they have
  // been read (HostOptimizer::open_late()).
  void bring(std::span<const std::int32_t> rows, Event& complete, Stream& stream);

  std::int64_t brought() const { return brought_; }  // rows; total

 private:
  // A piece of the rows on its way. It has arrays of piece_ rows, on the device and pinned.
  struct Slot {
    Buffer gradients, weights, gradients_here, weights_here;
    std::vector<std::int64_t> numbers;               // of the rows
    Tensor on_device;                                // the same
    std::unique_ptr<Event> gradients_came, written;  // the host may read these; the table has the weights
    ThreadPool::Job job;
  };
  // Enqueues the way of the gradients of some of the rows to the host.
  void fetch(Slot& slot, std::size_t first, std::size_t count);
  // Begins to compute the weights.
  void begin(Slot& slot);
  // Waits for them and enqueues their way to the table.
  void give(Slot& slot);
  // Returns what a piece has of an array of rows.
  Tensor part(const Buffer& memory, DType dtype, const Slot& slot) const;

  HostOptimizer& host_;
  const Range parameter_;
  const Tensor table_, gradients_;
  const std::int64_t width_, piece_;  // elements of a row, rows of a piece
  const std::unique_ptr<EngineOps> ops_;
  // Others' copies of state occupy the link for longer than one of these takes, so either way has a stream of its own:
  // of four pieces two are on their way to the host, one is computed, and one is on its way to the table.
  const std::unique_ptr<Stream> gradients_come_, weights_go_;
  std::array<Slot, 4> slots_;
  std::unique_ptr<Event> arrived_;
  std::vector<std::uint8_t> wanted_;  // by row of the table
  Buffer rows_, rows_here_;           // those that are, ascending: i32 on the device, and pinned
  std::int64_t brought_ = 0;
};

}  // namespace so
