// Pieces of a long text that are encoded each by itself, by the threads of a pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"

namespace so {

class PieceBatches {
 public:
  // Appends the ids of pieces, in their order. Called by several threads at once.
  using Encode = std::function<void(const std::vector<std::string_view>& pieces, std::vector<std::int32_t>& ids)>;

  // Pieces are encoded, and their ids appended to `ids`, in the order in which they were added, some before finish().
  // finish() must be called, and neither call from inside a job of the pool. All must outlive it.
  PieceBatches(ThreadPool& pool, Encode encode, std::vector<std::int32_t>& ids);

  // The piece is copied.
  void add(std::string_view piece);
  void finish();

 private:
  struct Batch {
    std::string text;
    std::vector<std::size_t> ends;  // of pieces, in the text
    std::vector<std::int32_t> ids;
  };
  void encode(Batch& batch) const;

  ThreadPool& pool_;
  const Encode encode_;
  std::vector<std::int32_t>& ids_;
  std::vector<Batch> batches_;  // as many as are encoded at a time
  std::size_t filling_ = 0;     // the batch that pieces are added to
};

}  // namespace so
