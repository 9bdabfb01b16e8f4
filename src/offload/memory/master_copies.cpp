#include "offload/memory/master_copies.h"

#include "base/error.h"
#include "device/wait_on_exit.h"

namespace so {

MasterCopies::MasterCopies(Device& device, std::int64_t elements)
    : ops_(make_engine_ops(device)), stream_(device.create_stream("masters")) {
  for (Slot& slot : slots_) {
    slot.memory = device.allocate(MemoryKind::device, device_bytes(elements) / slots, "masters on their way");
    slot.arrived = device.create_event();
    slot.used = device.create_event();
  }
}

MasterCopies::~MasterCopies() { wait_or_log(*stream_, LogLevel::error); }

void MasterCopies::cast(const Tensor& masters, const Tensor& weights, Stream& stream) {
  Slot& slot = slots_[turn_++ % slots_.size()];
  SO_CHECK(masters.bytes() <= slot.memory.bytes() && masters.size() == weights.size(), "{} masters for {} weights",
           masters.size(), weights.size());
  const Tensor there(slot.memory.data(), DType::f32, {masters.size()});
  stream_->wait(*slot.used);
  stream_->copy(there.data(), masters.data(), masters.bytes());
  stream_->record(*slot.arrived);
  stream.wait(*slot.arrived);
  if (weights.dtype() == DType::f32)
    stream.copy(weights.data(), there.data(), there.bytes());
  else
    ops_->cast(stream, weights, there);
  stream.record(*slot.used);
}

}  // namespace so
