#include "offload/state_transfer.h"

#include <algorithm>
#include <exception>

#include "base/log.h"

namespace so {

StateTransfer::StateTransfer(Device& device, std::int64_t elements)
    : elements_(elements), stream_(device.create_stream("state")) {
  for (Slot& slot : slots_) {
    slot.memory =
        device.allocate(MemoryKind::pinned, static_cast<std::size_t>(elements) * sizeof(float), "state staging");
    slot.copied = device.create_event();
  }
}

StateTransfer::~StateTransfer() {
  try {
    stream_->synchronize();
  } catch (const std::exception& error) {
    log_error("{}: {}", stream_->name(), error.what());
  }
}

void StateTransfer::read(const float* from, std::int64_t count, Event& current,
                         const std::function<void(std::int64_t, std::span<const float>)>& body) {
  stream_->wait(current);
  const std::int64_t pieces = (count + elements_ - 1) / elements_;
  const auto slot_of = [&](std::int64_t piece) -> Slot& { return slots_[static_cast<std::size_t>(piece % 2)]; };
  const auto size_of_piece = [&](std::int64_t piece) {
    return static_cast<std::size_t>(std::min(elements_, count - piece * elements_));
  };
  const auto fetch = [&](std::int64_t piece) {
    stream_->copy(slot_of(piece).memory.data(), from + piece * elements_, size_of_piece(piece) * sizeof(float));
    stream_->record(*slot_of(piece).copied);
  };
  if (pieces > 0) fetch(0);
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    if (piece + 1 < pieces) fetch(piece + 1);
    slot_of(piece).copied->synchronize();
    body(piece * elements_, {static_cast<const float*>(slot_of(piece).memory.data()), size_of_piece(piece)});
  }
}

void StateTransfer::write(float* to, std::int64_t count, Event& current,
                          const std::function<void(std::int64_t, std::span<float>)>& fill) {
  stream_->wait(current);
  for (std::int64_t piece = 0; piece * elements_ < count; ++piece) {
    Slot& slot = slots_[static_cast<std::size_t>(piece % 2)];
    const std::span<float> values{static_cast<float*>(slot.memory.data()),
                                  static_cast<std::size_t>(std::min(elements_, count - piece * elements_))};
    slot.copied->synchronize();
    fill(piece * elements_, values);
    stream_->copy(to + piece * elements_, values.data(), values.size_bytes());
    stream_->record(*slot.copied);
  }
  stream_->synchronize();
}

}  // namespace so
