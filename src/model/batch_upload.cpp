#include "model/batch_upload.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace so {

// Six sections of int32: ids, targets, positions, cu_q, cu_k, the rows with a target; cu_q and cu_k have at most one
// entry more than there are tokens, those of all slices.
BatchUpload::BatchUpload(Device& device, std::int64_t max_tokens, std::int64_t max_sequence, RopeRows rope)
    : max_tokens_(max_tokens),
      max_documents_(std::max(max_tokens, max_sequence)),
      rope_(rope),
      staged_(device.create_event()) {
  const auto bytes = static_cast<std::size_t>(4 * max_tokens + 2 * (max_documents_ + 1)) * sizeof(std::int32_t);
  staging_ = device.allocate(MemoryKind::pinned, bytes, "batch");
  device_memory_ = device.allocate(MemoryKind::device, bytes, "batch");
  const auto loss_bytes = static_cast<std::size_t>(max_tokens) * sizeof(float);
  for (Returning& slot : returning_) {
    slot.staging = device.allocate(MemoryKind::pinned, loss_bytes, "losses");
    slot.here = device.create_event();
  }
  losses_memory_ = device.allocate(MemoryKind::device, loss_bytes, "losses");
  losses_ = Tensor(losses_memory_.data(), DType::f32, {max_tokens});
  tokens_ = max_tokens;
}

DeviceBatch BatchUpload::views(std::int64_t tokens, std::int64_t documents) {
  SO_CHECK(tokens >= 1 && tokens <= max_tokens_, "{} tokens in a micro-batch of at most {}", tokens, max_tokens_);
  SO_CHECK(documents <= max_documents_, "{} documents of at most {}", documents, max_documents_);
  tokens_ = tokens;
  auto* device = static_cast<std::int32_t*>(device_memory_.data());
  DeviceBatch result;
  result.ids = Tensor(device, DType::i32, {tokens});
  result.targets = Tensor(device + tokens, DType::i32, {tokens});
  result.positions = Tensor(device + 2 * tokens, DType::i32, {tokens});
  result.spans.cu_q = Tensor(device + 3 * tokens, DType::i32, {documents + 1});
  result.spans.cu_k = Tensor(device + 3 * tokens + documents + 1, DType::i32, {documents + 1});
  result.spans.documents = documents;
  return result;
}

DeviceBatch BatchUpload::largest(std::int64_t tokens, std::int64_t documents, std::int64_t longest,
                                 std::int64_t sequence) {
  DeviceBatch batch = views(tokens, documents);
  batch.sequence_tokens = sequence;
  batch.spans.max_q = batch.spans.max_k = std::min(batch.all_tokens(), longest);
  return batch;
}

void BatchUpload::add_rope_rows(const MicroBatch& batch, std::int64_t text_tokens,
                                std::span<std::int32_t> positions) const {
  if (!rope_.differ()) return;
  for (std::size_t d = 0; d + 1 < batch.cu_seqlens.size(); ++d) {
    const std::int64_t from = batch.cu_seqlens[d] - batch.sequence_begin,
                       to = batch.cu_seqlens[d + 1] - batch.sequence_begin;
    const auto first = static_cast<std::int32_t>(rope_.first(text_tokens > 0 ? text_tokens : to - from));
    if (first == 0) continue;
    for (std::int64_t i = std::max<std::int64_t>(from, 0); i < std::min(to, batch.tokens); ++i)
      positions[static_cast<std::size_t>(i)] += first;
  }
}

DeviceBatch BatchUpload::upload(Stream& stream, const MicroBatch& batch, std::span<const std::int32_t> cu_k,
                                std::int64_t text_tokens) {
  const std::int64_t n = batch.tokens, documents = batch.documents();
  DeviceBatch result = views(n, documents);
  SO_CHECK(cu_k.size() == batch.cu_seqlens.size(), "{} key offsets of {} documents", cu_k.size(), documents);

  staged_->synchronize();
  auto* staging = static_cast<std::int32_t*>(staging_.data());
  const auto put = [&](std::int64_t at, std::span<const std::int32_t> values) {
    std::memcpy(staging + at, values.data(), values.size_bytes());
  };
  put(0, batch.ids);
  put(n, batch.targets);
  put(2 * n, batch.positions);
  add_rope_rows(batch, text_tokens, {staging + 2 * n, static_cast<std::size_t>(n)});
  put(3 * n, batch.cu_seqlens);
  put(3 * n + documents + 1, cu_k);
  const std::int64_t rows_at = 3 * n + 2 * (documents + 1);
  std::int64_t trained = 0;
  for (std::int64_t i = 0; i < n; ++i)
    if (batch.targets[static_cast<std::size_t>(i)] >= 0) staging[rows_at + trained++] = static_cast<std::int32_t>(i);
  result.loss_rows = Tensor(static_cast<std::int32_t*>(device_memory_.data()) + rows_at, DType::i32, {trained});
  result.sequence_tokens = batch.sequence_tokens;
  result.trained = result.is_slice() ? batch.sequence_trained : trained;
  result.spans.starts = {staging + 3 * n, static_cast<std::size_t>(documents + 1)};
  stream.copy(device_memory_.data(), staging, static_cast<std::size_t>(rows_at + trained) * sizeof(std::int32_t));
  stream.record(*staged_);
  for (std::int64_t d = 0; d < documents; ++d) {
    const auto i = static_cast<std::size_t>(d);
    result.spans.max_q = std::max<std::int64_t>(result.spans.max_q, batch.cu_seqlens[i + 1] - batch.cu_seqlens[i]);
    result.spans.max_k = std::max<std::int64_t>(result.spans.max_k, cu_k[i + 1] - cu_k[i]);
  }
  return result;
}

void BatchUpload::send_losses(Stream& stream) {
  SO_CHECK(sent_ - received_ < 2, "losses of a third batch on their way");
  Returning& slot = returning_[static_cast<std::size_t>(sent_++ % 2)];
  slot.tokens = tokens_;
  stream.copy(slot.staging.data(), losses_memory_.data(), static_cast<std::size_t>(tokens_) * sizeof(float));
  stream.record(*slot.here);
}

double BatchUpload::receive_losses() {
  SO_CHECK(received_ < sent_, "no losses are on their way");
  Returning& slot = returning_[static_cast<std::size_t>(received_++ % 2)];
  slot.here->synchronize();
  double sum = 0;
  const auto* losses = static_cast<const float*>(slot.staging.data());
  for (std::int64_t i = 0; i < slot.tokens; ++i) sum += losses[i];
  return sum;
}

}  // namespace so
