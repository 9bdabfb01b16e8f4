// Weights streamed from safetensors files: threads read ahead into a ring of pinned buffers and convert there, while
// the caller sends what has arrived to where it belongs. The model is never whole in host memory on the way.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/weight_piece.h"
#include "device/device.h"
#include "io/byte_codes.h"
#include "io/safetensors.h"

namespace so {

// The buffers, booked as "loading ring". One reader at a time uses them.
class LoadingRing {
 public:
  struct Slot {
    Buffer memory;
    std::unique_ptr<Event> free;  // recorded after the last work that uses the memory
  };

  // `slot_bytes`: a multiple of 4096. There are twice the slots that readers can fill at a time: pieces are given out
  // in order, so a reader that is ahead of another needs somewhere to go on. `packed_bytes`: of the largest quantised
  // matrix to be loaded; two are held as the files have them, booked as "loading packed", one being read while the
  // other is unpacked.
  LoadingRing(Device& device, std::size_t slot_bytes, std::size_t packed_bytes = 0);

  // The size of a slot for a model of `elements` elements: 2 MiB, where copies to a GPU come near their full speed (a
  // larger ring takes longer to pin than it saves); less for small models, whose ring stays at a sixteenth of their
  // bf16 weights.
  static std::size_t slot_bytes_for(std::int64_t elements);

  // Limits on reading threads: the first if tensors are read into the caller's memory, the second if all pass through
  // the ring. More threads would then take CPU time from the thread that sends the pieces on.
  static constexpr int max_readers = 16, max_readers_through_ring = 12;
  std::size_t size() const { return slots_.size(); }
  std::size_t slot_bytes() const { return slots_[0].memory.bytes(); }
  Slot& slot(std::size_t turn) { return slots_[turn % slots_.size()]; }
  static constexpr std::size_t packed_places = 2;
  std::span<std::byte> packed(std::size_t turn) {
    Buffer& place = packed_[turn % packed_places];
    return {static_cast<std::byte*>(place.data()), place.bytes()};
  }

 private:
  std::vector<Slot> slots_;
  std::array<Buffer, packed_places> packed_;
};

// The fate of the kernel's copy of a file. keep: another load of it, soon, is served from memory. drop: pages are given
// back right behind the reading, so that a model which is read once pushes nothing else out of memory.
enum class PageCache : std::uint8_t { keep, drop };

// Says whether a tensor that holds Inf or NaN is an Error or a warning; either names file and tensor.
enum class NonFinite : std::uint8_t { refuse, warn };

// The reader. One thread calls.
class ShardReader {
 public:
  // A tensor, of f32, bf16 or f16. Or one of codes (io/byte_codes.h), of F8_E4M3 or u8, of which elements are given out
  // as the numbers that they mean; or one in MXFP4 (io/mxfp4.h), which is two tensors of u8: `tensor` are its
  // blocks [matrices, rows, columns / 32, 16], `scales` [matrices, rows, columns / 32]; what is given out are its
  // elements as [matrices, columns, rows]. Files must outlive the reader.
  struct Request {
    const SafetensorsReader* file = nullptr;
    std::string tensor;
    std::int64_t at = 0;  // where the tensor's first element lies in the flat range of parameters
    WeightForms forms;    // none: the tensor is read, and that is all
    const SafetensorsReader* scales_file = nullptr;
    std::string scales;  // empty: the tensor is not quantised
    // The elements to be read, if not all; of a tensor that is not quantised.
    std::int64_t first = 0, last = all;  // [first, last)
    static constexpr std::int64_t all = -1;
    // The caller's memory for the elements to be read, of a tensor that is not quantised: a form with such memory is
    // made there, and does not pass through the ring. Readers write it ahead of the pieces that say so.
    float* wide_to = nullptr;
    bf16* narrow_to = nullptr;
    std::shared_ptr<const ByteCodes> codes;  // null: the tensor's elements are numbers

    const TensorInfo& info() const {
      const TensorInfo* const fp8 = codes ? file->find_fp8(tensor) : nullptr;
      return fp8 ? *fp8 : file->info(tensor);
    }
  };

  // Starts reading, in the order given, with at most `readers` threads. A quantised matrix is read once, whole, and
  // unpacked from there by all threads, while the next one is read.
  ShardReader(LoadingRing& ring, std::vector<Request> requests, int readers, PageCache cache,
              NonFinite non_finite = NonFinite::refuse);
  // Ends the reading, wherever it is. The pieces given out are no longer valid.
  ~ShardReader();
  ShardReader(const ShardReader&) = delete;
  ShardReader& operator=(const ShardReader&) = delete;

  // The next piece, in order; nothing after the last. Waits for it. A failure to read a piece is thrown here, when it
  // is that piece's turn: an Error that names file and tensor.
  std::optional<WeightPiece> next();
  // The memory of the piece given out last may be used again when the work now enqueued on `stream` has run. Between
  // two calls of next().
  void release(Stream& stream);

  // The bytes of the files that were given.
  std::uint64_t bytes_given() const;
  std::uint64_t total_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace so
