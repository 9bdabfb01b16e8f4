// A kind of device, as a value: how one is found and made, and what is known of it on machines that have none, for
// which plans are made too. What a caller would ask of the kind is a property here, so that nothing above device/, ops/
// and optim/ asks which kind it has; another vendor's devices are another value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "device/device.h"

namespace so {

// A host thread keeps no more than this on the CPU for its parts of bf16 products (ops/cpu/gemm.cpp).
inline constexpr std::size_t bf16_product_scratch = std::size_t{4} << 20;

struct Backend {
  // The rooms that implement a kind (device/, ops/ and optim/) select by this; no other room asks for it.
  DeviceKind kind;

  // Memory of kind `device` is the device's own. Else it is the host's: then there is nothing to move or to choose a
  // place for, and the host's limits hold for all of it.
  bool own_memory;
  // Its work runs on processors of its own, and leaves the host's cores to host work. Else no plan depends on measured
  // rates.
  bool own_processors;
  // A GPU without memory of its own: it shares the processor's.
  bool shares_memory() const { return own_processors && !own_memory; }

  // Memory that libraries take beside what is allocated through the device, some of it for each thread of the host.
  struct Reserve {
    MemoryKind kind;
    const char* name;
    std::size_t bytes;
    bool each_thread = false;
    bool of_bf16 = false;  // only where a model computes in bf16
  };
  std::span<const Reserve> libraries;
  // Pinned bytes for which the device needs one byte of its own memory, for page tables; 0: it needs none.
  std::size_t pinned_per_table_byte;
  std::span<const Reserve> nccl;  // beside them, if ranks use it

  // Logits that exist at a time: rows that fill `bytes`, at `element_bytes` each, in whole tiles, within bounds.
  struct LossChunk {
    std::int64_t bytes, element_bytes, tile, least_rows, most_rows;
  };
  LossChunk loss_chunk;

  // How much work it is measured with: enough to show its speed, and no more.
  struct Probe {
    bool brief;              // rates are never planned with: the least work will do
    std::int64_t gemm_side;  // of a large matrix product
    double gemm_seconds;
    std::int64_t brief_gemm_side;
    double brief_gemm_seconds;
    std::size_t copy_bytes;    // of copies whose bandwidth is shown
    std::size_t link_bytes;    // of copies across the link
    std::size_t memory_bytes;  // of copies within the device's memory, well above its caches
    double round_seconds;      // of a round of copies
    double host_seconds;       // of AdamW on the host
    std::size_t beyond_caches;
    std::int64_t tokens;  // of a layer whose ops are measured
  };
  Probe probe;

  // Whether make() would work, and a model can compute there. `index` is the device's number among the visible ones of
  // its kind.
  CudaSupport (*find)(int index);
  // `compute` is what a device spreads its work over that has no processors of its own; it must outlive the device.
  // Throws Error with a sentence.
  std::unique_ptr<Device> (*make)(ThreadPool* compute, int index);
};

const Backend& cpu_backend();
const Backend& cuda_backend();
const Backend& shared_cuda_backend();  // a GPU that shares the processor's memory
const Backend& backend_of(const Device& device);
// That of a GPU before a device is made of it; `index` is its number among the visible ones.
const Backend& backend_of_gpu(int index);

// Whether GPU `index` is to be used where the user leaves the choice. Where this machine has a GPU that cannot be used,
// the log says why.
bool choose_cuda(int index);

// The device's own memory for page tables of `pinned` bytes of pinned memory.
std::size_t page_table_bytes(const Backend& backend, std::size_t pinned);
// Bytes that are held on a device with processors of its own.
std::size_t held_own_memory(Device& device);
// A device like the backend's, with no memory behind it and streams that drop their work.
std::unique_ptr<Device> make_dry_device(const Backend& backend);

}  // namespace so
