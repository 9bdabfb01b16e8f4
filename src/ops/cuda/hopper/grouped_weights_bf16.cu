#include "ops/cuda/hopper/grouped_instance.h"

namespace so {

void grouped_weights_bf16(const GroupedLaunch& launch, const GroupedProduct& product) {
  using namespace grouped;
  using Weights =
      Instance<cutlass::layout::ColumnMajor, cutlass::layout::RowMajor, cutlass::bfloat16_t, cutlass::bfloat16_t,
               cute::Shape<cute::_128, cute::Int<192>, cute::_64>, cute::Shape<cute::_2, cute::_1, cute::_1>, Pingpong>;
  run<Weights, Shared::inner>(launch, product);
}

}  // namespace so
