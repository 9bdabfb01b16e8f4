#include "offload/memory/master_copies.h"

#include <algorithm>
#include <exception>
#include <vector>

#include "base/error.h"
#include "device/wait_on_exit.h"

namespace so {

MasterCopies::MasterCopies(Device& device, std::int64_t elements)
    : ops_(make_engine_ops(device)), piece_(piece_of(elements)), stream_(device.create_stream("masters")) {
  for (Slot& slot : slots_) {
    slot.memory = device.allocate(MemoryKind::device, device_bytes(elements) / slots, "masters on their way");
    slot.arrived = device.create_event();
    slot.used = device.create_event();
  }
}

MasterCopies::~MasterCopies() {
  wait_or_log(*stream_, LogLevel::error);
  try {
    for (const Slot& slot : slots_) slot.used->synchronize();
  } catch (const std::exception&) {  // whoever waits for the weights has been told
  }
}

void MasterCopies::cast(std::span<const Part> unit, Stream& stream) {
  Slot* slot = nullptr;   // that a piece is copied to
  std::int64_t held = 0;  // elements in it
  std::vector<DeviceCast> casts;
  std::vector<DeviceCopy> copies;  // of weights in fp32
  const auto finish_piece = [&] {
    if (slot == nullptr) return;
    stream_->record(*slot->arrived);
    stream.wait(*slot->arrived);
    ops_->copy(stream, copies);
    ops_->cast(stream, casts);
    stream.record(*slot->used);
    slot = nullptr;
    copies.clear();
    casts.clear();
  };
  for (const auto& [masters, weights] : unit) {
    SO_CHECK(masters.size() == weights.size(), "{} masters for {} weights", masters.size(), weights.size());
    const auto* from = static_cast<const std::byte*>(masters.data());
    auto* to = static_cast<std::byte*>(weights.data());
    for (std::int64_t left = masters.size(), n = 0; left > 0; left -= n) {
      if (slot == nullptr) {
        slot = &slots_[turn_++ % slots_.size()];
        held = 0;
        stream_->wait(*slot->used);
      }
      n = std::min(left, piece_ - held);
      const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(float);
      std::byte* const there =
          static_cast<std::byte*>(slot->memory.data()) + static_cast<std::size_t>(held) * sizeof(float);
      stream_->copy(there, from, bytes);
      if (weights.dtype() == DType::f32)
        copies.push_back({to, there, bytes});
      else
        casts.push_back({Tensor(to, weights.dtype(), {n}), Tensor(there, DType::f32, {n})});
      from += bytes;
      to += static_cast<std::size_t>(n) * size_of(weights.dtype());
      held += n;
      if (held == piece_) finish_piece();
    }
  }
  finish_piece();
}

}  // namespace so
