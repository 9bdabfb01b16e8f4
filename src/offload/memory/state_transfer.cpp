#include "offload/memory/state_transfer.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "device/wait_on_exit.h"

namespace so {
namespace {

constexpr std::int64_t piece_elements = 1 << 16;  // widened at a time, within a core's cache

// body(piece) for the pieces of a part that is not fp32.
template <class Body>
void for_each_piece(const StatePart& part, const Body& body) {
  for (std::int64_t begin = 0; begin < part.size();) {
    const std::int64_t last = begin + piece_elements, end = last < part.size() ? part.cut_before(last) : part.size();
    body(Range{begin, end});
    begin = end;
  }
}

}  // namespace

void read_host_state(const StatePart& from, const ReadPiece& body) {
  if (from.values().dtype() == DType::f32) return body(0, from.values().span<const float>());
  std::vector<float> wide;
  for_each_piece(from, [&](Range piece) {
    wide.resize(static_cast<std::size_t>(piece.size()));
    from.slice(piece).decode(wide);
    body(piece.begin, wide);
  });
}

void write_host_state(const StatePart& to, Range written, const WritePiece& fill) {
  const auto size = [](Range range) { return static_cast<std::size_t>(range.size()); };
  if (to.values().dtype() == DType::f32)
    return fill(0, to.values().span<float>().subspan(static_cast<std::size_t>(written.begin), size(written)));
  std::vector<float> wide;
  for_each_piece(to, [&](Range piece) {
    const Range filled = common(piece, written);
    if (filled.size() <= 0) return;
    const StatePart part = to.slice(piece);
    wide.resize(size(piece));
    if (filled != piece) part.decode(wide);
    fill(filled.begin - written.begin,
         std::span(wide).subspan(static_cast<std::size_t>(filled.begin - piece.begin), size(filled)));
    part.encode(wide);
  });
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

std::vector<Range> StateTransfer::pieces_of(const StatePart& part) const {
  std::vector<Range> pieces;
  for (std::int64_t begin = 0; begin < part.size(); begin = pieces.back().end) {
    const std::int64_t last = begin + elements_;
    pieces.push_back({begin, last < part.size() ? part.cut_before(last) : part.size()});
    SO_CHECK(pieces.back().size() > 0, "a block is larger than {} elements", elements_);
  }
  return pieces;
}

StatePart StateTransfer::staged(const StatePart& piece, const Slot& slot) const {
  const std::size_t values = (piece.values().bytes() + sizeof(float) - 1) / sizeof(float);
  SO_CHECK(values * sizeof(float) + piece.scales().size_bytes() <= slot.memory.bytes(), "{} scales of {} codes",
           piece.scales().size(), piece.size());
  return piece.moved(slot.memory.data(), static_cast<float*>(slot.memory.data()) + values);
}

void StateTransfer::copy(const StatePart& to, const StatePart& from) {
  stream_->copy(to.values().data(), from.values().data(), from.values().bytes());
  if (from.has_codes()) stream_->copy(to.scales().data(), from.scales().data(), from.scales().size_bytes());
}

void StateTransfer::read(const StatePart& from, Event& current, const ReadPiece& body) {
  const std::lock_guard lock(mutex_);
  stream_->wait(current);
  const std::vector<Range> pieces = pieces_of(from);
  const auto fetch = [&](std::size_t i) {
    const StatePart piece = from.slice(pieces[i]);
    copy(staged(piece, slot(i)), piece);
    stream_->record(*slot(i).copied);
  };
  if (!pieces.empty()) fetch(0);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (i + 1 < pieces.size()) fetch(i + 1);
    slot(i).copied->synchronize();
    read_host_state(staged(from.slice(pieces[i]), slot(i)), [&](std::int64_t offset, std::span<const float> values) {
      body(pieces[i].begin + offset, values);
    });
  }
}

void StateTransfer::write(const StatePart& to, Range written, Event& current, const WritePiece& fill) {
  const std::lock_guard lock(mutex_);
  stream_->wait(current);
  const std::vector<Range> pieces = pieces_of(to);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Range filled = common(pieces[i], written);
    if (filled.size() <= 0) continue;
    slot(i).copied->synchronize();
    const StatePart piece = to.slice(pieces[i]), staging = staged(piece, slot(i));
    if (filled != pieces[i]) {  // there are others in its blocks
      copy(staging, piece);
      stream_->synchronize();
    }
    write_host_state(
        staging, {filled.begin - pieces[i].begin, filled.end - pieces[i].begin},
        [&](std::int64_t offset, std::span<float> values) { fill(filled.begin - written.begin + offset, values); });
    copy(piece, staging);
    stream_->record(*slot(i).copied);
  }
  stream_->synchronize();
}

}  // namespace so
