#include "base/error.h"
#include "ranks/collectives/device_peers.h"

namespace so {

std::unique_ptr<DevicePeers> make_copied_peers(Device&, Communicator&, PiecePlaces, Arrivals, const Buffer*) {
  fail("this build has no CUDA backend, whose GPUs' copies --collectives p2p are: use --device cpu");
}

}  // namespace so
