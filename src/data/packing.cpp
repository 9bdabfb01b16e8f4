#include "data/packing.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace so {

RowPlan single_document_rows(std::vector<std::int64_t> order) {
  RowPlan plan;
  plan.documents = std::move(order);
  plan.begin.resize(plan.documents.size() + 1);
  std::iota(plan.begin.begin(), plan.begin.end(), std::int64_t{0});
  return plan;
}

RowPlan packed_rows(std::span<const std::int64_t> order, const std::function<std::int64_t(std::int64_t)>& length,
                    std::int64_t row_length) {
  struct OpenRow {
    std::int64_t row, room;
  };
  std::vector<OpenRow> open;  // oldest first
  std::vector<std::int64_t> row_of(order.size());
  RowPlan plan;  // begin[r + 1] counts the documents of row r at first
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::int64_t tokens = length(order[i]);
    SO_CHECK(tokens >= 1 && tokens <= row_length, "document {} of {} tokens, rows of {}", order[i], tokens, row_length);
    auto slot = std::find_if(open.begin(), open.end(), [&](const OpenRow& o) { return o.room >= tokens; });
    if (slot == open.end()) {
      if (open.size() == kOpenRows)
        open.erase(std::min_element(open.begin(), open.end(),
                                    [](const OpenRow& a, const OpenRow& b) { return a.room < b.room; }));
      open.push_back({plan.size(), row_length});
      plan.begin.push_back(0);
      slot = open.end() - 1;
    }
    row_of[i] = slot->row;
    ++plan.begin[static_cast<std::size_t>(slot->row) + 1];
    slot->room -= tokens;
    if (slot->room == 0) open.erase(slot);
  }

  std::partial_sum(plan.begin.begin(), plan.begin.end(), plan.begin.begin());
  plan.documents.resize(order.size());
  std::vector<std::int64_t> next(plan.begin.begin(), plan.begin.end() - 1);
  for (std::size_t i = 0; i < order.size(); ++i)
    plan.documents[static_cast<std::size_t>(next[static_cast<std::size_t>(row_of[i])]++)] = order[i];
  return plan;
}

}  // namespace so
