#include "device/cuda/rows.h"

#include "device/cuda/cuda_device.h"
#include "optim/cuda/cuda_engine_ops.h"
#include "optim/engine_ops_checks.h"

namespace so {

void CudaEngineOps::gather_rows(Stream& stream, Tensor out, Tensor in, Tensor rows) {
  check_rows("gather_rows", in, out, rows);
  take_rows(cuda_stream(stream), out, in, rows);
}

void CudaEngineOps::scatter_rows(Stream& stream, Tensor out, Tensor in, Tensor rows) {
  check_rows("scatter_rows", out, in, rows);
  so::scatter_rows(cuda_stream(stream), out, in, rows);
}

}  // namespace so
