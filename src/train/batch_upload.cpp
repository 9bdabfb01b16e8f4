#include "train/batch_upload.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace so {

// Five sections of int32: ids, targets, positions, cu_q, cu_k; the last two have at most one entry more than there are
// tokens.
BatchUpload::BatchUpload(Device& device, std::int64_t max_tokens)
    : max_tokens_(max_tokens), staged_(device.create_event()) {
  const auto bytes = static_cast<std::size_t>(5 * max_tokens + 2) * sizeof(std::int32_t);
  staging_ = device.allocate(MemoryKind::pinned, bytes, "batch");
  device_memory_ = device.allocate(MemoryKind::device, bytes, "batch");
  const auto loss_bytes = static_cast<std::size_t>(max_tokens) * sizeof(float);
  losses_staging_ = device.allocate(MemoryKind::pinned, loss_bytes, "losses");
  losses_memory_ = device.allocate(MemoryKind::device, loss_bytes, "losses");
  losses_ = Tensor(losses_memory_.data(), DType::f32, {max_tokens});
  tokens_ = max_tokens;
}

DeviceBatch BatchUpload::upload(Stream& stream, const MicroBatch& batch, std::span<const std::int32_t> cu_k) {
  SO_CHECK(batch.tokens >= 1 && batch.tokens <= max_tokens_, "{} tokens in a micro-batch of at most {}", batch.tokens,
           max_tokens_);
  tokens_ = batch.tokens;
  const std::int64_t n = tokens_, documents = batch.documents();
  auto* device = static_cast<std::int32_t*>(device_memory_.data());
  DeviceBatch result;
  result.ids = Tensor(device, DType::i32, {n});
  result.targets = Tensor(device + n, DType::i32, {n});
  result.positions = Tensor(device + 2 * n, DType::i32, {n});
  SO_CHECK(cu_k.size() == batch.cu_seqlens.size(), "{} key offsets of {} documents", cu_k.size(), documents);
  result.spans.cu_q = Tensor(device + 3 * n, DType::i32, {documents + 1});
  result.spans.cu_k = Tensor(device + 3 * n + documents + 1, DType::i32, {documents + 1});
  result.spans.documents = documents;

  staged_->synchronize();
  auto* staging = static_cast<std::int32_t*>(staging_.data());
  const auto put = [&](std::int64_t at, std::span<const std::int32_t> values) {
    std::memcpy(staging + at, values.data(), values.size_bytes());
  };
  put(0, batch.ids);
  put(n, batch.targets);
  put(2 * n, batch.positions);
  put(3 * n, batch.cu_seqlens);
  put(3 * n + documents + 1, cu_k);
  stream.copy(device, staging, static_cast<std::size_t>(3 * n + 2 * (documents + 1)) * sizeof(std::int32_t));
  stream.record(*staged_);
  for (std::int64_t d = 0; d < documents; ++d) {
    const auto i = static_cast<std::size_t>(d);
    result.spans.max_q = std::max<std::int64_t>(result.spans.max_q, batch.cu_seqlens[i + 1] - batch.cu_seqlens[i]);
    result.spans.max_k = std::max<std::int64_t>(result.spans.max_k, cu_k[i + 1] - cu_k[i]);
  }
  return result;
}

double BatchUpload::sum_losses(Stream& stream) {
  stream.copy(losses_staging_.data(), losses_memory_.data(), static_cast<std::size_t>(tokens_) * sizeof(float));
  stream.synchronize();
  double sum = 0;
  const auto* losses = static_cast<const float*>(losses_staging_.data());
  for (std::int64_t i = 0; i < tokens_; ++i) sum += losses[i];
  return sum;
}

}  // namespace so
