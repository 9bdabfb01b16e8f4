#include "offload/staging_ring.h"

#include <exception>

#include "base/log.h"

namespace so {
StagingRing::StagingRing(Device& device, std::int64_t elements, const UnitArray* gradients, DType weights) {
  if (elements == 0) return;
  const auto bytes = [&](DType dtype) { return static_cast<std::size_t>(elements) * size_of(dtype); };
  for (std::size_t i = 0; i <= ahead; ++i) {
    Slot slot;
    if (gradients) slot.gradient = device.allocate(MemoryKind::pinned, bytes(gradients->dtype()), "gradient ring");
    slot.weights = device.allocate(MemoryKind::pinned, bytes(weights), "weight ring");
    slot.gradient_here = device.create_event();
    slot.weights_gone = device.create_event();
    slots_.push_back(std::move(slot));
  }
  to_host_ = device.create_stream("to host");
  to_device_ = device.create_stream("to device");
}

StagingRing::~StagingRing() {
  for (Stream* stream : {to_host_.get(), to_device_.get()}) {
    if (!stream) continue;
    try {
      stream->synchronize();
    } catch (const std::exception& error) {
      log_error("{}: {}", stream->name(), error.what());
    }
  }
}

void StagingRing::fetch(Slot& slot, const void* gradient, std::size_t bytes, Event& complete, Event& fetched) {
  to_host_->wait(complete);
  to_host_->copy(slot.gradient.data(), gradient, bytes);
  to_host_->record(*slot.gradient_here);
  to_host_->record(fetched);
}

void StagingRing::wait(Slot& slot) {
  slot.gradient_here->synchronize();
  slot.weights_gone->synchronize();
}

void StagingRing::give(Slot& slot, void* weights, std::size_t bytes, Event& arrived) {
  to_device_->copy(weights, slot.weights.data(), bytes);
  to_device_->record(*slot.weights_gone);
  to_device_->record(arrived);
}

void StagingRing::finish_giving() { to_device_->synchronize(); }

}  // namespace so
