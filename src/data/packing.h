// Rows: which documents share a row of a micro-batch.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace so {

// Row i holds documents[begin[i]] .. documents[begin[i+1]-1], one after the other.
struct RowPlan {
  std::vector<std::int64_t> documents;
  std::vector<std::int64_t> begin{0};

  std::int64_t size() const { return static_cast<std::int64_t>(begin.size()) - 1; }
  std::span<const std::int64_t> row(std::int64_t i) const {
    const auto first = static_cast<std::size_t>(begin[static_cast<std::size_t>(i)]);
    const auto last = static_cast<std::size_t>(begin[static_cast<std::size_t>(i) + 1]);
    return std::span(documents).subspan(first, last - first);
  }
};

// One document a row, in the given order.
RowPlan single_document_rows(std::vector<std::int64_t> order);

// Rows open at once while packing: how far a document may move from its place in the order.
inline constexpr std::size_t kOpenRows = 64;

// Rows of at most row_length tokens, each of whole documents. First fit over a bounded window: documents are taken in
// the given order, each goes into the oldest open row that has room for it, else into a new one; a row closes when it
// is full, and when kOpenRows are open and none has room the fullest closes (of equals the oldest). Rows keep the order
// in which they were opened, documents in a row theirs. A function of the lengths alone, so the same everywhere.
// length(document) is in [1, row_length].
RowPlan packed_rows(std::span<const std::int64_t> order, const std::function<std::int64_t(std::int64_t)>& length,
                    std::int64_t row_length);

}  // namespace so
