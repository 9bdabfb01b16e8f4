#include "data/tokenizer/piece_batches.h"

#include <utility>

namespace so {
namespace {

constexpr std::size_t batch_bytes = std::size_t{64} << 10;  // milliseconds of work
constexpr std::size_t batches_a_thread = 8;                 // so that threads end at about the same time

}  // namespace

PieceBatches::PieceBatches(ThreadPool& pool, Encode encode, std::vector<std::int32_t>& ids)
    : pool_(pool),
      encode_(std::move(encode)),
      ids_(ids),
      batches_(batches_a_thread * static_cast<std::size_t>(pool.size())) {}

void PieceBatches::add(std::string_view piece) {
  Batch& batch = batches_[filling_];
  batch.text += piece;
  batch.ends.push_back(batch.text.size());
  if (batch.text.size() < batch_bytes) return;
  if (++filling_ == batches_.size()) finish();
}

void PieceBatches::finish() {
  pool_.parallel_for(static_cast<std::int64_t>(batches_.size()), 1, [this](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) encode(batches_[static_cast<std::size_t>(i)]);
  });
  for (Batch& batch : batches_) {
    ids_.insert(ids_.end(), batch.ids.begin(), batch.ids.end());
    batch.text.clear();
    batch.ends.clear();
    batch.ids.clear();
  }
  filling_ = 0;
}

void PieceBatches::encode(Batch& batch) const {
  std::vector<std::string_view> pieces;
  pieces.reserve(batch.ends.size());
  std::size_t begin = 0;
  for (const std::size_t end : batch.ends) {
    pieces.push_back(std::string_view(batch.text).substr(begin, end - begin));
    begin = end;
  }
  encode_(pieces, batch.ids);
}

}  // namespace so
