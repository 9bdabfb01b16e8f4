#include "offload/memory/host_link.h"

#include <algorithm>

#include "device/wait_on_exit.h"

namespace so {

namespace {

std::int64_t longest_on_host(std::span<const Bucket> buckets) {
  std::int64_t elements = 0;
  for (const Bucket& bucket : buckets)
    if (bucket.on_host()) elements = std::max(elements, bucket.own().size());
  return elements;
}

}  // namespace

HostLink::HostLink(Device& device, std::span<const Bucket> buckets, DType gradients, DType weights, CastSide cast,
                   bool fetched)
    : gradients_(cast == CastSide::device ? DType::f32 : gradients),
      weights_(cast == CastSide::device ? DType::f32 : weights),
      longest_(longest_on_host(buckets)),
      ops_(make_engine_ops(device)) {
  if (longest_ == 0) return;
  const auto bytes = [&](DType dtype) { return static_cast<std::size_t>(longest_) * size_of(dtype); };
  for (std::size_t i = 0; i <= ahead; ++i) {
    Slot& slot = slots_.emplace_back();
    if (fetched) slot.gradient = device.allocate(MemoryKind::pinned, bytes(gradients_), "gradient ring");
    slot.weights = device.allocate(MemoryKind::pinned, bytes(weights_), "weight ring");
    slot.weights_gone = device.create_event();
  }
  const auto open = [&](Way& way, const char* name, bool casts) {
    way.stream = device.create_stream(name);
    if (!casts) return;
    way.wide = device.allocate(MemoryKind::device, bytes(DType::f32), "casts");
  };
  open(to_host_, "to host", gradients_ != gradients);
  open(to_device_, "to device", weights_ != weights);
}

void HostLink::wait() const {
  for (const Way* way : {&to_host_, &to_device_})
    if (way->stream) wait_or_log(*way->stream, LogLevel::error);
}

void HostLink::fetch(void* to, const Tensor& gradient, Event& complete, Event& fetched) {
  if (!to_host_.wide) return store(to, gradient, complete, fetched);
  Stream& stream = *to_host_.stream;
  stream.wait(complete);
  const Tensor wide(to_host_.wide.data(), DType::f32, {gradient.size()});
  ops_->cast(stream, wide, gradient);
  stream.copy(to, wide.data(), wide.bytes());
  stream.record(fetched);
}

void HostLink::store(void* to, const Tensor& gradient, Event& complete, Event& stored) {
  Stream& stream = *to_host_.stream;
  stream.wait(complete);
  stream.copy(to, gradient.data(), gradient.bytes());
  stream.record(stored);
}

void HostLink::give(Slot& slot, const Tensor& weights, Event& arrived) {
  Stream& stream = *to_device_.stream;
  const Tensor wide(to_device_.wide.data(), DType::f32, {weights.size()});
  const Tensor& here = to_device_.wide ? wide : weights;
  stream.copy(here.data(), slot.weights.data(), here.bytes());
  stream.record(*slot.weights_gone);
  if (to_device_.wide) ops_->cast(stream, weights, wide);
  stream.record(arrived);
}

}  // namespace so
