#include "device/cuda/stream_values.h"

#include <cuda.h>
#include <dlfcn.h>

#include "base/error.h"

namespace so {
namespace {

using StreamValue = CUresult (*)(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);

struct StreamValues {
  StreamValue write = nullptr, wait = nullptr;
};

// The runtime has no such calls, and the driver is no library of the build's: the runtime has loaded it.
StreamValues find_stream_values() {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return {};
  const auto find = [&](const char* newest, const char* oldest) {
    void* call = dlsym(driver, newest);
    if (call == nullptr) call = dlsym(driver, oldest);
    return reinterpret_cast<StreamValue>(call);
  };
  return {.write = find("cuStreamWriteValue32_v2", "cuStreamWriteValue32"),
          .wait = find("cuStreamWaitValue32_v2", "cuStreamWaitValue32")};
}

const StreamValues& stream_values() {
  static const StreamValues calls = find_stream_values();
  return calls;
}

void check_value(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS)
    fail("CUDA: a stream cannot wait for others ({}: error {})", call, static_cast<int>(result));
}

}  // namespace

void require_stream_values() {
  if (stream_values().write == nullptr || stream_values().wait == nullptr)
    fail("this NVIDIA driver has no cuStreamWriteValue32 and cuStreamWaitValue32: update it");
}

void write_value(cudaStream_t stream, std::uint64_t word, std::uint32_t value) {
  check_value(stream_values().write(stream, word, value, CU_STREAM_WRITE_VALUE_DEFAULT), "cuStreamWriteValue32");
}

void wait_for_value(cudaStream_t stream, std::uint64_t word, std::uint32_t value) {
  check_value(stream_values().wait(stream, word, value, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue32");
}

}  // namespace so
