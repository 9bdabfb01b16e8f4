#include "offload/memory/host_gradients.h"

#include "offload/memory/touch.h"

namespace so {

HostGradients::HostGradients(Device& device, ThreadPool& pool, std::span<const Bucket> buckets,
                             const UnitGradients& gradients, HostLink& link, bool moves)
    : gradients_(gradients), link_(link), moves_(moves), stored_(buckets.size()) {
  const auto bytes_of = [&](const Bucket& bucket) {
    return static_cast<std::size_t>(bucket.own().size()) * size_of(link.gradients());
  };
  std::size_t bytes = 0;
  for (const Bucket& bucket : buckets) {
    fetched_.push_back(bucket.on_host() ? device.create_event() : nullptr);
    if (bucket.on_host() && moves) bytes += bytes_of(bucket);
  }
  if (bytes == 0) return;
  store_ = device.allocate(MemoryKind::pinned, bytes, "gradients", zeros_by(pool));
  auto* to = static_cast<std::byte*>(store_.data());
  for (const Bucket& bucket : buckets)
    if (bucket.on_host()) to = (stored_[at(bucket)] = to) + bytes_of(bucket);
}

void HostGradients::bring_sum(const Bucket& bucket, Stream& stream) const {
  const Tensor gradient = on_device(bucket);
  stream.wait(fetched(bucket));
  stream.copy(gradient.data(), stored(bucket), gradient.bytes());
}

}  // namespace so
