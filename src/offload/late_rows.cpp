#include "offload/late_rows.h"

#include <algorithm>

#include "base/error.h"
#include "device/wait_on_exit.h"

namespace so {
namespace {

constexpr std::int64_t piece_elements = 2 << 20;  // the host works on a piece for as long as the link on the next

std::int64_t rows_of_piece(const Tensor& table) {
  return std::clamp(piece_elements / table.dim(1), std::int64_t{1}, table.dim(0));
}

}  // namespace

LateRows::LateRows(Device& device, HostOptimizer& host, Range parameter, Tensor table, Tensor gradients)
    : host_(host),
      parameter_(parameter),
      table_(table),
      gradients_(gradients),
      width_(table.dim(1)),
      piece_(rows_of_piece(table)),
      ops_(make_engine_ops(device)),
      stream_(device.create_stream("embedding rows")),
      arrived_(device.create_event()) {
  const auto bytes = [&](DType dtype) { return static_cast<std::size_t>(piece_ * width_) * size_of(dtype); };
  for (Slot& slot : slots_) {
    for (const auto& [kind, rows, gradient, weights] :
         {std::tuple(MemoryKind::device, &slot.rows, &slot.gradients, &slot.weights),
          std::tuple(MemoryKind::pinned, &slot.rows_here, &slot.gradients_here, &slot.weights_here)}) {
      *rows = device.allocate(kind, static_cast<std::size_t>(piece_) * sizeof(std::int32_t), "embedding rows");
      *gradient = device.allocate(kind, bytes(gradients.dtype()), "embedding rows");
      *weights = device.allocate(kind, bytes(table.dtype()), "embedding rows");
    }
    slot.gradients_came = device.create_event();
    slot.written = device.create_event();
  }
}

LateRows::~LateRows() { wait_or_log(*stream_, LogLevel::error); }

Tensor LateRows::part(const Buffer& memory, DType dtype, const Slot& slot) const {
  return {memory.data(), dtype, {static_cast<std::int64_t>(slot.numbers.size()), width_}};
}

Tensor LateRows::numbers(const Slot& slot) {
  return {slot.rows.data(), DType::i32, {static_cast<std::int64_t>(slot.numbers.size())}};
}

void LateRows::bring(std::span<const std::int32_t> rows, Event& complete, Stream& stream) {
  wanted_.assign(static_cast<std::size_t>(table_.dim(0)), 0);
  for (const std::int32_t row : rows) {
    SO_CHECK(row >= 0 && row < table_.dim(0), "row {} of {}", row, table_.dim(0));
    wanted_[static_cast<std::size_t>(row)] = 1;
  }
  distinct_.clear();
  for (std::size_t row = 0; row < wanted_.size(); ++row)
    if (wanted_[row] != 0) distinct_.push_back(static_cast<std::int32_t>(row));

  stream_->wait(complete);
  host_.require_late_weights(*stream_);
  const auto count = distinct_.size(), piece = static_cast<std::size_t>(piece_);
  brought_ += static_cast<std::int64_t>(count);
  const auto fetch_from = [&](std::size_t first) {
    if (first < count)
      fetch(slots_[first / piece % slots_.size()], std::span(distinct_).subspan(first, std::min(piece, count - first)));
  };
  fetch_from(0);
  for (std::size_t first = 0; first < count; first += piece) {
    fetch_from(first + piece);
    give(slots_[first / piece % slots_.size()]);
  }
  stream_->record(*arrived_);
  stream.wait(*arrived_);
}

void LateRows::fetch(Slot& slot, std::span<const std::int32_t> rows) {
  slot.written->synchronize();
  slot.numbers.assign(rows.begin(), rows.end());
  std::copy(rows.begin(), rows.end(), static_cast<std::int32_t*>(slot.rows_here.data()));
  stream_->copy(slot.rows.data(), slot.rows_here.data(), rows.size_bytes());
  const Tensor gradients = part(slot.gradients, gradients_.dtype(), slot);
  ops_->gather_rows(*stream_, gradients, gradients_, numbers(slot));
  stream_->copy(slot.gradients_here.data(), gradients.data(), gradients.bytes());
  stream_->record(*slot.gradients_came);
}

void LateRows::give(Slot& slot) {
  slot.gradients_came->synchronize();
  const Tensor weights = part(slot.weights_here, table_.dtype(), slot);
  const bool previewed = host_.preview_rows(parameter_, width_, slot.numbers,
                                            part(slot.gradients_here, gradients_.dtype(), slot), weights);
  SO_CHECK(previewed, "rows of an embedding that is being updated");
  stream_->copy(slot.weights.data(), weights.data(), weights.bytes());
  ops_->scatter_rows(*stream_, table_, part(slot.weights, table_.dtype(), slot), numbers(slot));
  stream_->record(*slot.written);
}

}  // namespace so
