// The operations of a Mamba2 mixer that `bench ops` times, beside its products.
#pragma once

#include <cstdint>
#include <vector>

#include "commands/bench/bench_ops_cases.h"

namespace so {

struct StateSpaceCases {
  StateSpaceSpec spec;
  std::int64_t tokens;
  const std::vector<std::int32_t>& starts;  // of documents, and the end of the last; outlives the cases
  DType dtype;
  const OpsMemory& memory;
};
void add_state_space_cases(std::vector<Case>& cases, const StateSpaceCases& of);

}  // namespace so
