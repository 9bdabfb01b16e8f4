// The way of master weights that the host owns to the device, where they are rounded to weights: for weights that have
// no memory of their own (ResidencyKind::gathered_from_masters).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/tensor.h"
#include "device/device.h"
#include "optim/engine_ops.h"

namespace so {

class MasterCopies {
 public:
  // For copies of at most `elements` at a time. Device memory for two of them, booked as "masters on their way".
  static constexpr std::size_t slots = 2;
  static constexpr std::size_t device_bytes(std::int64_t elements) {
    return slots * static_cast<std::size_t>(elements) * sizeof(float);
  }
  MasterCopies(Device& device, std::int64_t elements);
  // Waits for copies under way.
  ~MasterCopies();
  MasterCopies(const MasterCopies&) = delete;
  MasterCopies& operator=(const MasterCopies&) = delete;

  // Enqueues: `masters`, fp32 in pinned memory, come to the device on a stream of their own, and become `weights`, fp32
  // or bf16 of the same number, on `stream`. The copy waits for neither what is on `stream` nor what uses `weights`,
  // so it is under way before they are free. One thread at a time.
  void cast(const Tensor& masters, const Tensor& weights, Stream& stream);
  // Waits until no masters are read any more.
  void wait() { stream_->synchronize(); }

 private:
  struct Slot {
    Buffer memory;
    std::unique_ptr<Event> arrived, used;
  };
  const std::unique_ptr<EngineOps> ops_;
  std::array<Slot, slots> slots_;
  std::size_t turn_ = 0;
  std::unique_ptr<Stream> stream_;  // last: its work uses the others
};

}  // namespace so
