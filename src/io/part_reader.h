// Internal to ShardReader: parts of tensors read from files, and made into what was asked for.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "io/mxfp4.h"
#include "io/shard_reader.h"

namespace so {

// Elements of a request's tensor, as they are given out.
struct TensorPart {
  std::size_t request = 0;
  std::size_t begin = 0, size = 0;
};

// One matrix of a request's tensor in MXFP4, in memory.
struct PackedMatrix {
  std::size_t request = 0, index = 0;  // of the request's tensor
  Mxfp4Matrix matrix;                  // in `place`, its scales behind its blocks
  std::span<std::byte> place;
};

// Threads may call for different parts and chunks at a time.
class PartReader {
 public:
  using Request = ShardReader::Request;

  // `slot_bytes`: of the memory that read() and unpack() are given, for parts of at most elements_at_once().
  PartReader(std::span<const Request> requests, std::size_t slot_bytes, PageCache cache, NonFinite non_finite);

  std::size_t elements_at_once(std::size_t request) const { return layouts_[request].elements; }
  // Reads and converts a part of a plain tensor.
  WeightPiece read(const TensorPart& part, void* slot) const;

  // A packed matrix is read in chunks, in any order.
  static std::size_t chunks_of(const Mxfp4Matrix& matrix);
  void read_chunk(const PackedMatrix& packed, std::size_t chunk) const;
  // Makes a part of a matrix that has been read.
  WeightPiece unpack(const TensorPart& part, const Mxfp4Matrix& matrix, void* slot) const;

 private:
  // A piece of a slot's memory: fp32 first, then two-byte elements (the file's, or bf16 made in place of fp16), each
  // only if it passes through the slot.
  struct SlotLayout {
    SlotLayout(const Request& request, std::size_t slot_bytes);
    float* wide(void* slot) const { return static_cast<float*>(slot); }
    bf16* narrow(void* slot) const {
      return static_cast<bf16*>(static_cast<void*>(static_cast<float*>(slot) + (has_wide ? elements : 0)));
    }

    bool has_wide = false, has_narrow = false;
    std::size_t elements = 0;  // that a slot has room for
  };

  void read_some(const TensorPart& part, float* wide, bf16* narrow) const;
  void read_codes(const TensorPart& part, float* wide, bf16* narrow) const;
  void judge(const TensorPart& part, const float* wide, const bf16* narrow) const;
  void judge(const TensorPart& part, const void* values, DType stored) const;
  void read_bytes(const SafetensorsReader& file, const std::string& tensor, std::uint64_t offset,
                  std::span<std::byte> to) const;
  void drop(const SafetensorsReader& file, const std::string& tensor, std::uint64_t offset, std::size_t bytes) const;

  const std::span<const Request> requests_;
  const PageCache cache_;
  const NonFinite non_finite_;
  const std::unique_ptr<std::atomic_flag[]> warned_;  // by request
  std::vector<SlotLayout> layouts_;                   // by request
};

}  // namespace so
