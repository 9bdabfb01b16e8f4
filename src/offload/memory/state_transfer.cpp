#include "offload/memory/state_transfer.h"

#include <algorithm>
#include <vector>

#include "base/bf16_arrays.h"
#include "device/wait_on_exit.h"

namespace so {
namespace {

constexpr std::size_t piece_elements = std::size_t{1} << 16;  // widened at a time, within a core's cache

}  // namespace

void read_host_state(Tensor from, const ReadPiece& body) {
  if (from.dtype() == DType::f32) return body(0, from.span<const float>());
  const std::span<const bf16> all = from.span<const bf16>();
  std::vector<float> wide;
  for (std::size_t begin = 0; begin < all.size(); begin += piece_elements) {
    const std::span<const bf16> piece = all.subspan(begin, std::min(piece_elements, all.size() - begin));
    wide.resize(piece.size());
    widen_bf16(piece.data(), wide.data(), piece.size());
    body(static_cast<std::int64_t>(begin), wide);
  }
}

void write_host_state(Tensor to, const WritePiece& fill) {
  if (to.dtype() == DType::f32) return fill(0, to.span<float>());
  const std::span<bf16> all = to.span<bf16>();
  std::vector<float> wide;
  for (std::size_t begin = 0; begin < all.size(); begin += piece_elements) {
    const std::span<bf16> piece = all.subspan(begin, std::min(piece_elements, all.size() - begin));
    wide.resize(piece.size());
    fill(static_cast<std::int64_t>(begin), wide);
    round_to_bf16(wide.data(), piece.data(), piece.size());
  }
}

StateTransfer::StateTransfer(Device& device, std::int64_t elements)
    : elements_(elements), stream_(device.create_stream("state")) {
  for (Slot& slot : slots_) {
    slot.memory =
        device.allocate(MemoryKind::pinned, static_cast<std::size_t>(elements) * sizeof(float), "state staging");
    slot.copied = device.create_event();
  }
}

StateTransfer::~StateTransfer() { wait_or_log(*stream_, LogLevel::error); }

Tensor StateTransfer::piece_of(const Tensor& array, std::int64_t piece) const {
  const std::int64_t begin = piece * elements_;
  return {static_cast<std::byte*>(array.data()) + static_cast<std::size_t>(begin) * size_of(array.dtype()),
          array.dtype(),
          {std::min(elements_, array.size() - begin)}};
}

Tensor StateTransfer::staged(const Tensor& array, std::int64_t piece) const {
  return {slots_[static_cast<std::size_t>(piece % 2)].memory.data(), array.dtype(), {piece_of(array, piece).size()}};
}

void StateTransfer::read(Tensor from, Event& current, const ReadPiece& body) {
  const std::lock_guard lock(mutex_);
  stream_->wait(current);
  const std::int64_t pieces = (from.size() + elements_ - 1) / elements_;
  const auto fetch = [&](std::int64_t piece) {
    const Tensor part = piece_of(from, piece);
    stream_->copy(staged(from, piece).data(), part.data(), part.bytes());
    stream_->record(*slot(piece).copied);
  };
  if (pieces > 0) fetch(0);
  for (std::int64_t piece = 0; piece < pieces; ++piece) {
    if (piece + 1 < pieces) fetch(piece + 1);
    slot(piece).copied->synchronize();
    read_host_state(staged(from, piece), [&](std::int64_t offset, std::span<const float> values) {
      body(piece * elements_ + offset, values);
    });
  }
}

void StateTransfer::write(Tensor to, Event& current, const WritePiece& fill) {
  const std::lock_guard lock(mutex_);
  stream_->wait(current);
  for (std::int64_t piece = 0; piece * elements_ < to.size(); ++piece) {
    slot(piece).copied->synchronize();
    const Tensor staging = staged(to, piece);
    write_host_state(staging,
                     [&](std::int64_t offset, std::span<float> values) { fill(piece * elements_ + offset, values); });
    stream_->copy(piece_of(to, piece).data(), staging.data(), staging.bytes());
    stream_->record(*slot(piece).copied);
  }
  stream_->synchronize();
}

}  // namespace so
