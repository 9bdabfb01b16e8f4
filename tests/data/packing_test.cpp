#include "data/packing.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "data_test_util.h"
#include "support/paths.h"

namespace so {
namespace {

using Rows = std::vector<std::vector<std::int64_t>>;

Rows rows_of(const RowPlan& plan) {
  Rows rows;
  for (std::int64_t i = 0; i < plan.size(); ++i) rows.emplace_back(plan.row(i).begin(), plan.row(i).end());
  return rows;
}

Rows pack(const std::vector<std::int64_t>& lengths, std::vector<std::int64_t> order, std::int64_t row_length) {
  return rows_of(packed_rows(
      order, [&](std::int64_t d) { return lengths[static_cast<std::size_t>(d)]; }, row_length));
}

TEST(Packing, TakesTheOldestRowWithRoom) {
  // 6 opens row 0; 7 opens row 1; 4 fills row 0; 3 fills row 1; 9 opens row 2; 2 opens row 3; 1 fills row 2.
  EXPECT_EQ(pack({6, 7, 4, 3, 9, 2, 1}, {0, 1, 2, 3, 4, 5, 6}, 10), (Rows{{0, 2}, {1, 3}, {4, 6}, {5}}));
  EXPECT_EQ(pack({6, 7, 4, 3, 9, 2, 1}, {6, 5, 4, 3, 2, 1, 0}, 10), (Rows{{6, 5, 3, 2}, {4}, {1}, {0}}));
  EXPECT_EQ(pack({10, 10}, {0, 1}, 10), (Rows{{0}, {1}}));
  EXPECT_TRUE(pack({}, {}, 10).empty());
}

TEST(Packing, ClosesTheFullestRowWhenTheWindowIsFull) {
  // kOpenRows rows with 2 left, but row 5 with 1 left. The next document fits nowhere: row 5 closes. A document of 1
  // would have fitted row 5; it goes to row 0.
  std::vector<std::int64_t> lengths(kOpenRows, 8);
  lengths[5] = 9;
  lengths.insert(lengths.end(), {3, 2, 2, 1});
  std::vector<std::int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const Rows rows = pack(lengths, order, 10);
  ASSERT_EQ(rows.size(), kOpenRows + 1);
  const auto n = static_cast<std::int64_t>(kOpenRows);
  EXPECT_EQ(rows[0], (std::vector<std::int64_t>{0, n + 1}));
  EXPECT_EQ(rows[1], (std::vector<std::int64_t>{1, n + 2}));
  EXPECT_EQ(rows[2], (std::vector<std::int64_t>{2, n + 3}));
  EXPECT_EQ(rows[5], (std::vector<std::int64_t>{5}));
  EXPECT_EQ(rows[kOpenRows], (std::vector<std::int64_t>{n}));
}

TEST(Packing, IsTheDocumentedRule) {
  const auto fixture = nlohmann::json::parse(test::read_file(test::fixtures() + "/data/packing.json"));
  const auto lengths = fixture.at("lengths").get<std::vector<std::int64_t>>();
  std::vector<std::int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  EXPECT_EQ(pack(lengths, order, fixture.at("row_length")), fixture.at("rows").get<Rows>());
}

TEST(Packing, RefusesADocumentLongerThanARow) { EXPECT_THROW(pack({11}, {0}, 10), Bug); }

TEST(Packing, WithoutItADocumentIsARow) { EXPECT_EQ(rows_of(single_document_rows({2, 0, 1})), (Rows{{2}, {0}, {1}})); }

}  // namespace
}  // namespace so
