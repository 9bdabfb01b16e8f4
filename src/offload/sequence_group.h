// The ranks that split the tokens of their micro-batches among each other (Ulysses), and the messages between them.
#pragma once

#include <memory>

#include "offload/memory/sequence_exchange.h"
#include "ranks/communicator.h"

namespace so {

class SequenceGroup final : public SequenceExchange {
 public:
  // Groups of `size` consecutive ranks, which divides their number: rank r of the run is rank r % size of group
  // r / size. A collective of all `ranks`. Of a dry communicator the calls enqueue nothing that moves data.
  SequenceGroup(Communicator& ranks, int size) : group_(ranks.split(size)) {}

  // Whether there are exchanges for this device's memory, or, of a dry one, none is needed.
  static bool works_on(const Device& device);

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  // On a CPU device these are host functions on the stream itself, which waits for the other ranks. A GPU's belong
  // here too, enqueued by NCCL; until then its streams are a Bug.
  void all_to_all(Stream& stream, Tensor receive, std::span<const std::int64_t> receive_bytes, Tensor send,
                  std::span<const std::int64_t> send_bytes) override;
  void add_up(Stream& stream, Tensor values) override;

 private:
  const std::unique_ptr<Communicator> group_;
};

}  // namespace so
