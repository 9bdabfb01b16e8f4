#include "device/backend.h"

#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "device/gpu_place.h"

namespace so {
namespace {

// Matrix products pack their operands in buffers of the library's own, per thread. This was measured.
constexpr Backend::Reserve cpu_libraries[] = {
    {MemoryKind::pageable, "matrix product scratch", std::size_t{4} << 20, true},
    {MemoryKind::pageable, "bf16 product scratch", bf16_product_scratch, true, true}};

// Device memory that the CUDA libraries take once they work: kernels loaded, cuBLAS and cuDNN handles. Less than a
// tenth of this was seen on an H200; the rest is for other GPUs and fragmentation. Host memory of the driver and the
// libraries, kernels compiled at run time among them: 297 to 304 MB were seen.
constexpr Backend::Reserve cuda_libraries[] = {{MemoryKind::device, "CUDA libraries (reserve)", std::size_t{256} << 20},
                                               {MemoryKind::pageable, "CUDA libraries", 300'000'000}};

// NCCL's buffers, for two communicators, computed from its own sizes. Generous: two H100 took a third of it.
constexpr Backend::Reserve nccl_buffers[] = {{MemoryKind::device, "NCCL (reserve)", std::size_t{1} << 30}};

}  // namespace

const Backend& cpu_backend() {
  static const Backend backend{
      .kind = DeviceKind::cpu,
      .own_memory = false,
      .own_processors = false,
      .libraries = cpu_libraries,
      .pinned_per_table_byte = 0,
      .nccl = {},
      // Large enough that reading the projection's weights again for every chunk does not show, small enough to stay
      // out of the way.
      .loss_chunk = {.bytes = 32 << 20, .element_bytes = 4, .tile = 1, .least_rows = 64, .most_rows = 512},
      .probe = {.brief = true,
                .gemm_side = 1024,
                .gemm_seconds = 0.02,
                .brief_gemm_side = 256,
                .brief_gemm_seconds = 0.002,
                .copy_bytes = 64 << 20,
                .link_bytes = 1 << 20,
                .memory_bytes = 1 << 20,
                .round_seconds = 0.001,
                .host_seconds = 0.005,
                .beyond_caches = 64 << 20,
                .tokens = 256},
      .find =
          [](int) {
            return CudaSupport{true, {}};
          },
      .make =
          [](ThreadPool* compute, int index) {
            SO_CHECK(compute, "a CPU device without threads");
            return make_cpu_device(*compute, index);
          }};
  return backend;
}

const Backend& cuda_backend() {
  static const Backend backend{
      .kind = DeviceKind::cuda,
      .own_memory = true,
      .own_processors = true,
      .libraries = cuda_libraries,
      // 8 bytes for a page of 4 KiB: 16.8 MB were seen on an H200 for each 8 GiB that was registered, in huge pages
      // too.
      .pinned_per_table_byte = 4096 / 8,
      .nccl = nccl_buffers,
      // The gradient of the projection is read and written once a chunk, so few and large ones.
      .loss_chunk = {.bytes = 1'250'000'000, .element_bytes = 2, .tile = 128, .least_rows = 128, .most_rows = 4096},
      // Matrix products long enough for a chip to come to the clock that it can keep.
      .probe = {.brief = false,
                .gemm_side = 8192,
                .gemm_seconds = 0.15,
                .brief_gemm_side = 8192,
                .brief_gemm_seconds = 0.02,
                .copy_bytes = std::size_t{1024} << 20,
                .link_bytes = 64 << 20,
                .memory_bytes = 256 << 20,
                .round_seconds = 0.01,
                .host_seconds = 0.3,
                .beyond_caches = 256 << 20,
                .tokens = 16384},
      .find = find_cuda,
      .make = [](ThreadPool*, int index) { return make_cuda_device(index); }};
  return backend;
}

const Backend& shared_cuda_backend() {
  static const Backend backend = [] {
    Backend shared = cuda_backend();
    shared.own_memory = false;
    return shared;
  }();
  return backend;
}

const Backend& backend_of(const Device& device) {
  if (device.kind() == DeviceKind::cpu) return cpu_backend();
  return device.shares_memory() ? shared_cuda_backend() : cuda_backend();
}

const Backend& backend_of_gpu(int index) { return gpu_shares_memory(index) ? shared_cuda_backend() : cuda_backend(); }

bool choose_cuda(int index) {
  const CudaSupport support = find_cuda(index);
  if (support.usable) return true;
  // What a driver makes, the second under Windows.
  std::error_code error;
  if (std::filesystem::exists("/dev/nvidiactl", error) || std::filesystem::exists("/dev/dxg", error))
    log_warning("this machine's GPU is not used: {}", support.reason);
  return false;
}

std::size_t page_table_bytes(const Backend& backend, std::size_t pinned) {
  const std::size_t per_byte = backend.pinned_per_table_byte;
  return per_byte > 0 ? (pinned + per_byte - 1) / per_byte : 0;
}

std::size_t held_own_memory(Device& device) {
  return backend_of(device).own_processors ? device.ledger().held(MemoryKind::device) : 0;
}

std::unique_ptr<Device> make_dry_device(const Backend& backend) {
  return make_dry_device(backend.kind, !backend.own_memory);
}

}  // namespace so
