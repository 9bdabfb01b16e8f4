// The ways on which GPUs' collectives go.
#pragma once

#include <cstdint>
#include <string>

namespace so {

enum class CollectiveRoute : std::uint8_t {
  automatic,  // p2p where it can be, else nccl
  nccl,       // from GPU to GPU, by kernels
  p2p,        // between GPUs of one host, by copies
  host,       // through host memory, and the ranks' communicator there
};

// Whether NCCL can be used; else `reason` is a sentence with the fix. Loads the library.
bool have_nccl(std::string& reason);

}  // namespace so
