#include "ops/cuda/cuda_ops.h"

#include "base/error.h"
#include "device/cuda/cublas_lt.h"
#include "device/cuda/cudnn_library.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/attention_cudnn.h"
#include "ops/cuda/cuda.h"
#include "ops/cuda/gemm.h"
#include "ops/ops_memory.h"

namespace so {

namespace {

// The libraries' handles belong to the device that is current when they are made.
const CudaProperties& current_properties(Device& device) {
  device.make_current();
  return cuda_properties(device);
}

}  // namespace

CudaOps::CudaOps(Device& device)
    : Ops(cuda_ops_memory()),
      properties_(current_properties(device)),
      scratch_(device.allocate(MemoryKind::device, memory().held(), "ops scratch")),
      gemm_(std::make_unique<CudaGemm>(scratch_.data(), scratch_.bytes())),
      attention_(std::make_unique<CudaAttention>(properties_)) {}

CudaOps::~CudaOps() = default;

cudaStream_t CudaOps::enter(Stream& stream) {
  if (!stream_) {
    stream_ = &stream;
    stream_name_ = stream.name();
  }
  // The first may be gone: its name is our own.
  SO_CHECK(stream_ == &stream, "ops of one instance on the streams '{}' and '{}': they share scratch", stream_name_,
           stream.name());
  return cuda_stream(stream);
}

void* CudaOps::scratch_bytes(std::size_t bytes) const {
  SO_CHECK(bytes <= scratch_.bytes(), "an op needs {} bytes of scratch, there are {}", bytes, scratch_.bytes());
  return scratch_.data();
}

std::unique_ptr<Ops> make_cuda_ops(Device& device) {
  cublas_lt();
  if (const std::string& reason = why_no_cudnn(); !reason.empty()) fail("{}", reason);
  return std::make_unique<CudaOps>(device);
}

}  // namespace so
