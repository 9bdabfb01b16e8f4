#include "ranks/agreement.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/thread_ranks.h"

namespace so {
namespace {

// What each rank throws, by rank.
std::vector<std::string> refusals(const std::vector<RankFacts>& facts) {
  std::vector<std::string> said(facts.size());
  test::run_ranks(static_cast<int>(facts.size()), [&](Communicator& ranks) {
    const auto rank = static_cast<std::size_t>(ranks.rank());
    try {
      require_agreement(ranks, facts[rank], "start them alike");
    } catch (const Error& error) {
      said[rank] = error.what();
    }
  });
  return said;
}

TEST(Agreement, OfEqualFacts) {
  const RankFacts facts{{"--lr", "1e-05"}, {"the data", ""}, {"--model", "a b"}};
  EXPECT_EQ(refusals({facts}), std::vector<std::string>(1));
  EXPECT_EQ(refusals({facts, facts, facts}), std::vector<std::string>(3));
}

TEST(Agreement, EveryRankSaysWhoDiffersInWhat) {
  const RankFacts facts{{"--lr", "1e-05"}, {"the data", ""}}, other{{"--lr", "1e-05"}, {"the data", "x"}};
  EXPECT_EQ(refusals({facts, facts, other}),
            std::vector<std::string>(3, "rank 2 differs from rank 0 in the data: x, not ; start them alike"));
  EXPECT_EQ(refusals({other, facts}),
            std::vector<std::string>(2, "rank 1 differs from rank 0 in the data: , not x; start them alike"));
}

TEST(Agreement, OfAnotherVersionsFacts) {
  const RankFacts facts{{"--lr", "1e-05"}, {"--new", "1"}}, older{{"--lr", "1e-05"}},
      newer{{"--lr", "1e-05"}, {"--new", "1"}, {"--newer", "2"}};
  EXPECT_EQ(refusals({facts, older}),
            std::vector<std::string>(2, "rank 1 differs from rank 0 in --new: unknown to it, not 1; start them alike"));
  EXPECT_EQ(refusals({facts, newer}),
            std::vector<std::string>(2, "rank 1 differs from rank 0 in what it knows of the run; start them alike"));
}

}  // namespace
}  // namespace so
