// Micro-batches on their way to the device.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "data/batches.h"
#include "device/device.h"
#include "model/decoder/decoder.h"
#include "model/rope.h"

namespace so {

// Pinned staging and device memory for one micro-batch, or the slice of one, and for its losses coming back. One
// thread.
class BatchUpload {
 public:
  // `max_sequence`: the most tokens of all slices of a micro-batch together, if batches are slices; no more than
  // max_tokens: they are whole. `rope`: where documents find the rows of their positions.
  BatchUpload(Device& device, std::int64_t max_tokens, std::int64_t max_sequence = 0, RopeRows rope = {});

  // Enqueues the copies and returns views that hold until the next upload() on the same stream. Waits, if it must,
  // until the staging memory of the previous call is free.
  DeviceBatch upload(Stream& stream, const MicroBatch& batch) { return upload(stream, batch, batch.cu_seqlens, 0); }
  // With a KV cache, documents have more keys than queries: cu_k as in AttentionSpans. A text that is read in
  // pieces has `text_tokens` in the end, by which its rotation goes.
  DeviceBatch upload(Stream& stream, const MicroBatch& batch, std::span<const std::int32_t> cu_k,
                     std::int64_t text_tokens);

  // The views of a batch that nobody has filled in, for dry runs: of `documents` documents, the longest of `longest`
  // tokens or all there are. `sequence`: the tokens of all slices, if it is one.
  DeviceBatch largest(std::int64_t tokens, std::int64_t documents, std::int64_t longest, std::int64_t sequence = 0);

  // f32 [tokens] on the device, for the losses of the batch uploaded last.
  Tensor losses() const { return losses_.rows(0, tokens_); }
  // Enqueues their copy to the host. At most two batches' losses may be on their way, so that the device has the next
  // batch to work on while the host waits for those of the last.
  void send_losses(Stream& stream);
  // Waits for the losses sent first and not received yet and returns their sum, added up in order in double.
  double receive_losses();
  // Sends and receives them.
  double sum_losses(Stream& stream) {
    send_losses(stream);
    return receive_losses();
  }

 private:
  // Turns the positions of a batch's documents into rows of the RoPE table.
  void add_rope_rows(const MicroBatch& batch, std::int64_t text_tokens, std::span<std::int32_t> positions) const;
  // Becomes the batch of losses().
  DeviceBatch views(std::int64_t tokens, std::int64_t documents);

  std::int64_t max_tokens_, max_documents_, tokens_ = 0;
  const RopeRows rope_;
  Buffer staging_, device_memory_, losses_memory_;
  Tensor losses_;
  std::unique_ptr<Event> staged_;
  struct Returning {
    Buffer staging;
    std::int64_t tokens = 0;
    std::unique_ptr<Event> here;
  };
  std::array<Returning, 2> returning_;
  std::int64_t sent_ = 0, received_ = 0;  // batches
};

}  // namespace so
