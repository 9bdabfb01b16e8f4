// The CUDA runtime that this program was built with.
#pragma once

namespace so {

// As CUDA counts: 13000 is 13.0. 0: this build has none. Asks no driver.
int cuda_runtime_version();

}  // namespace so
