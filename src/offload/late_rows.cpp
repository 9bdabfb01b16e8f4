#include "offload/late_rows.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "device/wait_on_exit.h"

namespace so {
namespace {

// The host works on a piece of so many for about as long as either way of the link does on another.
constexpr std::int64_t piece_elements = 2 << 20;

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
      gradients_come_(device.create_stream("embedding rows to host")),
      weights_go_(device.create_stream("embedding rows to device")),
      arrived_(device.create_event()) {
  const auto bytes = [&](DType dtype) { return static_cast<std::size_t>(piece_ * width_) * size_of(dtype); };
  for (Slot& slot : slots_) {
    for (const auto& [kind, gradient, weights] :
         {std::tuple(MemoryKind::device, &slot.gradients, &slot.weights),
          std::tuple(MemoryKind::pinned, &slot.gradients_here, &slot.weights_here)}) {
      *gradient = device.allocate(kind, bytes(gradients.dtype()), "embedding rows");
      *weights = device.allocate(kind, bytes(table.dtype()), "embedding rows");
    }
    slot.gradients_came = device.create_event();
    slot.written = device.create_event();
  }
  const auto rows_bytes = static_cast<std::size_t>(table.dim(0)) * sizeof(std::int32_t);
  rows_ = device.allocate(MemoryKind::device, rows_bytes, "embedding rows");
  rows_here_ = device.allocate(MemoryKind::pinned, rows_bytes, "embedding rows");
}

LateRows::~LateRows() {
  for (Stream* stream : {gradients_come_.get(), weights_go_.get()}) wait_or_log(*stream, LogLevel::error);
}

Tensor LateRows::part(const Buffer& memory, DType dtype, const Slot& slot) const {
  return {memory.data(), dtype, {static_cast<std::int64_t>(slot.numbers.size()), width_}};
}

void LateRows::bring(std::span<const std::int32_t> rows, Event& complete, Stream& stream) {
  wanted_.assign(static_cast<std::size_t>(table_.dim(0)), 0);
  for (const std::int32_t row : rows) {
    SO_CHECK(row >= 0 && row < table_.dim(0), "row {} of {}", row, table_.dim(0));
    wanted_[static_cast<std::size_t>(row)] = 1;
  }
  auto* const distinct = static_cast<std::int32_t*>(rows_here_.data());
  std::size_t count = 0;
  for (std::size_t row = 0; row < wanted_.size(); ++row)
    if (wanted_[row] != 0) distinct[count++] = static_cast<std::int32_t>(row);
  brought_ += static_cast<std::int64_t>(count);

  gradients_come_->wait(complete);
  host_.require_late_weights(*weights_go_);
  gradients_come_->copy(rows_.data(), distinct, count * sizeof(std::int32_t));
  const auto piece = static_cast<std::size_t>(piece_);
  const std::size_t pieces = (count + piece - 1) / piece;
  const auto slot = [&](std::size_t i) -> Slot& { return slots_[i % slots_.size()]; };
  const auto fetch_piece = [&](std::size_t i) {
    if (i < pieces) fetch(slot(i), i * piece, std::min(piece, count - i * piece));
  };
  fetch_piece(0);
  fetch_piece(1);
  // A piece is begun before the one before it is waited for, so that no thread waits between the two.
  for (std::size_t i = 0; i < pieces; ++i) {
    begin(slot(i));
    if (i > 0) give(slot(i - 1));
    fetch_piece(i + 2);
  }
  if (pieces > 0) give(slot(pieces - 1));
  weights_go_->record(*arrived_);
  stream.wait(*arrived_);
}

void LateRows::fetch(Slot& slot, std::size_t first, std::size_t count) {
  slot.written->synchronize();
  const auto* const rows = static_cast<const std::int32_t*>(rows_here_.data()) + first;
  slot.numbers.assign(rows, rows + count);
  slot.on_device =
      Tensor(static_cast<std::int32_t*>(rows_.data()) + first, DType::i32, {static_cast<std::int64_t>(count)});
  const Tensor gradients = part(slot.gradients, gradients_.dtype(), slot);
  ops_->gather_rows(*gradients_come_, gradients, gradients_, slot.on_device);
  gradients_come_->copy(slot.gradients_here.data(), gradients.data(), gradients.bytes());
  gradients_come_->record(*slot.gradients_came);
}

void LateRows::begin(Slot& slot) {
  slot.gradients_came->synchronize();
  std::optional<ThreadPool::Job> job =
      host_.begin_rows(parameter_, width_, slot.numbers, part(slot.gradients_here, gradients_.dtype(), slot),
                       part(slot.weights_here, table_.dtype(), slot));
  SO_CHECK(job.has_value(), "rows of an embedding that is being updated");
  slot.job = std::move(*job);
}

void LateRows::give(Slot& slot) {
  host_.finish_rows(std::move(slot.job));
  const Tensor weights = part(slot.weights_here, table_.dtype(), slot);
  weights_go_->copy(slot.weights.data(), weights.data(), weights.bytes());
  ops_->scatter_rows(*weights_go_, table_, part(slot.weights, table_.dtype(), slot), slot.on_device);
  weights_go_->record(*slot.written);
}

}  // namespace so
