// Messages between the devices' memory of ranks, of which collectives are made (peer_collectives.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "ranks/collectives/route.h"
#include "ranks/collectives/slice_gather.h"
#include "ranks/communicator.h"

namespace so {

// send[r] goes to rank r, and receive[r] comes from it, for each other rank. The ranks agree on the lengths; empty
// messages are not sent. Both have an entry for every rank. This rank's own are not sent either, but count for the
// longest of all entries, which must be the same on every rank.
struct PeerMessages {
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
  // For messages that go to arrivals(), by rank: the offset in rank r's arrivals, in bytes, to which send[r] is
  // written.
  std::vector<std::size_t> there = {};
};

class DevicePeers {
 public:
  virtual ~DevicePeers() = default;

  // Whether there is memory into which other ranks write their messages themselves.
  virtual bool has_arrivals() const { return false; }
  // Returns that memory for the next exchange that uses it. Two exchanges in a row use different memory.
  virtual std::byte* arrivals() { return nullptr; }
  // Enqueues: the arrivals of the last such exchange have been used, and others may come to lie there.
  virtual void used_arrivals(Stream&) {}

  // Enqueues all of them.
  virtual void exchange(Stream& stream, const char* what, std::span<const PeerMessages> messages) = 0;
  // Enqueues all of them, as DeviceCollectives has them.
  virtual void all_gather(Stream& stream, std::span<const SliceGather> gathers) = 0;
};

// A route reads the member that is its own.
struct PeerLimits {
  std::size_t staged_piece;               // host: bytes of a rank that are on their way at a time, at most
  int nccl_blocks;                        // nccl: see make_nccl_peers()
  std::size_t longest;                    // p2p: bytes that a call sends to a rank in pieces, at most
  std::size_t arrivals = 0;               // p2p: bytes that arrive in one exchange of a reduction; 0: none is made
  bool in_pieces = true;                  // p2p: whether there are messages that come neither there nor into place
  const Buffer* gathered_into = nullptr;  // p2p: where all that is gathered lies, if it can be shared
};
// Makes the peers for this route; a collective. Null on a dry device for NCCL, which takes no memory that is counted.
std::unique_ptr<DevicePeers> make_peers(Device& device, Communicator& ranks, CollectiveRoute route,
                                        const PeerLimits& limits);

// Over NCCL, whose kernels have `most_blocks` thread blocks at most (0: as many as NCCL takes). Each keeps a
// multiprocessor from what runs beside it, and has buffers for each peer. A collective; throws Error on all ranks
// alike.
std::unique_ptr<DevicePeers> make_nccl_peers(Device& device, Communicator& ranks, int most_blocks);
// Through pinned memory of the host, in pieces of `piece` bytes of a rank at most.
std::unique_ptr<DevicePeers> make_staged_peers(Device& device, Communicator& ranks, std::size_t piece);

// Memory of a rank's device in which pieces of the others' messages arrive, each rank's in places of its own.
struct PiecePlaces {
  static constexpr std::uint32_t of_a_rank = 4;
  std::size_t piece = 0;  // bytes of a place
  Buffer memory;
};
// Where the messages of reductions arrive: two exchanges have such memory in turn.
struct Arrivals {
  std::size_t of_an_exchange = 0;  // bytes
  Buffer memory;
};
// The sender copies into the receiver's memory: to its `arrivals`, to a slice's final place in `gathered_into`, or to
// its `places`, from which the receiver copies on. All ranks have the same of these three. Messages for one that is
// missing cannot be sent, but without `gathered_into` a gather goes through `places`. For GPUs of one host that reach
// each other (gpu_reaches()). A collective; throws Error on all ranks alike.
std::unique_ptr<DevicePeers> make_copied_peers(Device& device, Communicator& ranks, PiecePlaces places,
                                               Arrivals arrivals, const Buffer* gathered_into);

}  // namespace so
