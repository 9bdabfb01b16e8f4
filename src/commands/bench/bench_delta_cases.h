// The operations of a gated delta mixer that `bench ops` times, beside its products.
#pragma once

#include <cstdint>
#include <vector>

#include "commands/bench/bench_ops_cases.h"

namespace so {

struct DeltaCases {
  DeltaSpec spec;
  std::int64_t tokens;
  const std::vector<std::int32_t>& starts;  // of documents, and the end of the last; outlives the cases
  std::int64_t longest;                     // tokens of the longest document
  DType dtype;
  const OpsMemory& memory;
};
void add_delta_cases(std::vector<Case>& cases, const DeltaCases& of);

}  // namespace so
