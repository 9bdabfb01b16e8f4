#include "offload/sequence_group.h"

#include <vector>

#include "base/error.h"

namespace so {
namespace {

void require_exchanges(const Device& device) {
  SO_CHECK(SequenceGroup::works_on(device), "a sequence split between ranks on {}", device.name());
}

}  // namespace

bool SequenceGroup::works_on(const Device& device) { return device.kind() == DeviceKind::cpu || !device.backed(); }

void SequenceGroup::all_to_all(Stream& stream, Tensor receive, std::span<const std::int64_t> receive_bytes, Tensor send,
                               std::span<const std::int64_t> send_bytes) {
  require_exchanges(stream.device());
  const std::span<std::byte> to(static_cast<std::byte*>(receive.data()), receive.bytes());
  const std::span<const std::byte> from(static_cast<const std::byte*>(send.data()), send.bytes());
  stream.host("all_to_all", [this, to, from, received = std::vector(receive_bytes.begin(), receive_bytes.end()),
                             sent = std::vector(send_bytes.begin(), send_bytes.end())] {
    group_->all_to_all(from, sent, to, received);
  });
}

void SequenceGroup::add_up(Stream& stream, Tensor values) {
  require_exchanges(stream.device());
  stream.host("all_reduce", [this, sum = values.span<float>()] { group_->all_reduce_sum(sum); });
}

}  // namespace so
