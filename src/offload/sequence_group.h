// The ranks that split the tokens of their micro-batches among each other (Ulysses), and the messages between them.
#pragma once

#include <memory>

#include "offload/memory/sequence_exchange.h"
#include "optim/engine_ops.h"
#include "ranks/collectives/device_peers.h"
#include "ranks/collectives/route.h"
#include "ranks/communicator.h"

namespace so {

class SequenceGroup final : public SequenceExchange {
 public:
  // Groups of `size` consecutive ranks, which divides their number: rank r of the run is rank r % size of group
  // r / size. GPUs exchange by `route`. A collective of all `ranks`; throws Error on all of them where the GPUs of a
  // group cannot be connected. On a dry device the calls enqueue nothing, and it takes the memory that the route takes.
  // The device must outlive it, and so must the work that was enqueued here.
  SequenceGroup(Communicator& ranks, int size, Device& device, CollectiveRoute route);

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  // On the CPU device these are host functions on the stream itself, which waits for the other ranks.
  void all_to_all(Stream& stream, Tensor receive, std::span<const std::int64_t> receive_bytes, Tensor send,
                  std::span<const std::int64_t> send_bytes) override;
  void add_up(Stream& stream, Tensor values, Tensor scratch) override;

 private:
  const std::unique_ptr<Communicator> group_;
  std::unique_ptr<EngineOps> ops_;      // of a GPU, as the peers are
  std::unique_ptr<DevicePeers> peers_;  // null where the ranks' communicator does it: on the CPU device, and alone
};

}  // namespace so
