// NCCL's functions. The program does not link the library but loads it when several ranks are to use GPUs, so that it
// starts without it.
#pragma once

#include <nccl.h>

#include <string>

namespace so {

struct NcclLibrary {
  decltype(&ncclGetVersion) version = nullptr;
  decltype(&ncclGetUniqueId) unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init = nullptr;
  decltype(&ncclCommFinalize) finalize = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclCommGetAsyncError) state = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
};

// Loads the library once, from any thread, and keeps it. Null, with the reason, if it cannot be loaded, is too old or
// lacks a function.
const NcclLibrary* find_nccl(std::string& reason);
// The same; throws Error with the reason.
const NcclLibrary& nccl();

}  // namespace so
