#include "base/error.h"
#include "ranks/collectives/device_peers.h"
#include "ranks/collectives/route.h"

namespace so {
namespace {

constexpr const char* no_nccl =
    "this build has no NCCL, which connects GPUs: run scripts/install_dependencies.sh, which fetches its header, and "
    "build again, or use --collectives host";

}  // namespace

bool have_nccl(std::string& reason) {
  reason = no_nccl;
  return false;
}

std::unique_ptr<DevicePeers> make_nccl_peers(Device&, Communicator&, int) { fail("{}", no_nccl); }

}  // namespace so
