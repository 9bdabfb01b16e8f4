// The memory that each kind of backend needs. It is plain arithmetic, so that a dry run on any machine plans what the
// real backend will use; the backend checks itself against it.
#pragma once

#include "ops/ops.h"

namespace so {

const OpsMemory& cpu_ops_memory();
const OpsMemory& cuda_ops_memory();

}  // namespace so
