// The CUDA runtime that this program was built with.
#pragma once

namespace so {

// Returns CUDA's own number, 13000 for 13.0, or 0 if this build has none. Asks no driver.
int cuda_runtime_version();

}  // namespace so
