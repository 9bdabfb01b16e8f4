#include "ranks/collectives/nccl/nccl_library.h"

#include <fmt/format.h>

#include <cstdlib>

#include "base/error.h"
#include "base/shared_library.h"
#include "ranks/collectives/route.h"

namespace so {
namespace {

constexpr int oldest_nccl = NCCL_VERSION(2, 27, 0);

struct LoadedNccl {
  NcclLibrary functions;
  std::string reason;  // empty: all are there
};

std::string nccl_version_text(int code) { return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100); }

void find_functions(const SharedLibrary& library, LoadedNccl& loaded) {
  SymbolFinder find(library);
  NcclLibrary& f = loaded.functions;
  find(f.version, "ncclGetVersion");
  find(f.unique_id, "ncclGetUniqueId");
  find(f.init, "ncclCommInitRankConfig");
  find(f.finalize, "ncclCommFinalize");
  find(f.destroy, "ncclCommDestroy");
  find(f.abort, "ncclCommAbort");
  find(f.state, "ncclCommGetAsyncError");
  find(f.group_start, "ncclGroupStart");
  find(f.group_end, "ncclGroupEnd");
  find(f.send, "ncclSend");
  find(f.receive, "ncclRecv");
  find(f.all_gather, "ncclAllGather");
  find(f.error_string, "ncclGetErrorString");
  find(f.last_error, "ncclGetLastError");
  if (find.missing() != nullptr)
    loaded.reason = fmt::format("this NCCL has no {}: install version 2.27 or later", find.missing());
}

LoadedNccl load_nccl() {
  LoadedNccl loaded;
  // Multicast adds in the switch, in an order that is not the ranks', so nothing here would use it, and its buffers
  // take memory. NCCL reads this when it makes its first communicator.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  const SharedLibrary library = load_library(nvidia_files("libnccl.so.2", "nccl", SO_NCCL_LIBRARY));
  if (library.handle == nullptr) {
    loaded.reason = fmt::format(
        "NCCL, which connects GPUs, cannot be loaded ({}): install libnccl2 or the Python package nvidia-nccl-cu{}, "
        "add its directory to LD_LIBRARY_PATH, or use --collectives host",
        library.reason, CUDART_VERSION / 1000);
    return loaded;
  }
  find_functions(library, loaded);
  int version = 0;
  if (loaded.reason.empty() && (loaded.functions.version(&version) != ncclSuccess || version < oldest_nccl))
    loaded.reason = fmt::format("this NCCL is version {}: install version {} or later, or use --collectives host",
                                nccl_version_text(version), nccl_version_text(oldest_nccl));
  return loaded;
}

}  // namespace

const NcclLibrary* find_nccl(std::string& reason) {
  static const LoadedNccl loaded = load_nccl();
  reason = loaded.reason;
  return reason.empty() ? &loaded.functions : nullptr;
}

const NcclLibrary& nccl() {
  std::string reason;
  const NcclLibrary* const found = find_nccl(reason);
  if (found == nullptr) fail("{}", reason);
  return *found;
}

bool have_nccl(std::string& reason) { return find_nccl(reason) != nullptr; }

}  // namespace so
