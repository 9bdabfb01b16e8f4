#include "offload/memory/staging_ring.h"

#include "device/wait_on_exit.h"

namespace so {

StagingRing::StagingRing(Device& device, std::int64_t elements, DType gradients, DType weights, CastSide cast,
                         bool fetched)
    : gradients_(cast == CastSide::device ? DType::f32 : gradients),
      weights_(cast == CastSide::device ? DType::f32 : weights),
      ops_(make_engine_ops(device)) {
  if (elements == 0) return;
  const auto bytes = [&](DType dtype) { return static_cast<std::size_t>(elements) * size_of(dtype); };
  for (std::size_t i = 0; i <= ahead; ++i) {
    Slot slot;
    if (fetched) slot.gradient = device.allocate(MemoryKind::pinned, bytes(gradients_), "gradient ring");
    slot.weights = device.allocate(MemoryKind::pinned, bytes(weights_), "weight ring");
    slot.weights_gone = device.create_event();
    slots_.push_back(std::move(slot));
  }
  const auto open = [&](Way& way, const char* name, bool casts) {
    way.stream = device.create_stream(name);
    if (!casts) return;
    way.wide = device.allocate(MemoryKind::device, bytes(DType::f32), "casts");
  };
  open(to_host_, "to host", gradients_ != gradients);
  open(to_device_, "to device", weights_ != weights);
}

StagingRing::~StagingRing() {
  for (const Way* way : {&to_host_, &to_device_})
    if (way->stream) wait_or_log(*way->stream, LogLevel::error);
}

void StagingRing::fetch(void* to, Tensor gradient, Event& complete, Event& fetched) {
  Stream& stream = *to_host_.stream;
  stream.wait(complete);
  if (to_host_.wide) {
    const Tensor wide(to_host_.wide.data(), DType::f32, {gradient.size()});
    ops_->cast(stream, wide, gradient);
    stream.copy(to, wide.data(), wide.bytes());
  } else {
    stream.copy(to, gradient.data(), gradient.bytes());
  }
  stream.record(fetched);
}

void StagingRing::store(void* to, const Tensor& gradient, Event& complete, Event& stored) {
  Stream& stream = *to_host_.stream;
  stream.wait(complete);
  stream.copy(to, gradient.data(), gradient.bytes());
  stream.record(stored);
}

void StagingRing::give(Slot& slot, Tensor weights, Event& arrived) {
  Stream& stream = *to_device_.stream;
  if (to_device_.wide) {
    const Tensor wide(to_device_.wide.data(), DType::f32, {weights.size()});
    stream.copy(wide.data(), slot.weights.data(), wide.bytes());
    stream.record(*slot.weights_gone);
    ops_->cast(stream, weights, wide);
  } else {
    stream.copy(weights.data(), slot.weights.data(), weights.bytes());
    stream.record(*slot.weights_gone);
  }
  stream.record(arrived);
}

}  // namespace so
