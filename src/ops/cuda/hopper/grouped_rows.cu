#include "ops/cuda/hopper/grouped_instance.h"

namespace so {

void grouped_rows(const GroupedLaunch& launch, const GroupedProduct& product) {
  using namespace grouped;
  using Rows =
      Instance<cutlass::layout::RowMajor, cutlass::layout::RowMajor, cutlass::bfloat16_t, void,
               cute::Shape<cute::_128, cute::Int<192>, cute::_64>, cute::Shape<cute::_1, cute::_1, cute::_1>, Pingpong>;
  run<Rows, Shared::rows>(launch, product);
}

}  // namespace so
