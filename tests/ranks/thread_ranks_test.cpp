#include "ranks/thread_ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/error.h"
#include "ranks/collective_cases.h"
#include "ranks/waiting.h"
#include "support/jitter.h"
#include "support/thread_ranks.h"

namespace so {
namespace {

TEST(ThreadRanks, DoWhatCommunicatorsDo) {
  for (const int size : {1, 2, 3, 4, 7})
    for (const auto& [name, body] : test::collective_cases) {
      SCOPED_TRACE(testing::Message() << name << " on " << size << " ranks");
      test::run_ranks(size, body);
    }
}

TEST(ThreadRanks, DelaysChangeNothing) {
  const test::Jitter jitter(3);
  test::run_ranks(4, test::a_long_run_repeats_to_the_bit);
  test::run_ranks(3, test::duplicates_do_not_meet);
  EXPECT_GT(test::Jitter::slept(), 0);
}

// Calls body on the communicator of each thread, and gives what the RankFailure says that it throws, by rank.
template <class Body>
std::vector<std::string> failures(int size, double time_limit, int lost, const Body& body) {
  std::vector<std::string> texts(static_cast<std::size_t>(size));
  test::run_ranks(
      size,
      [&](Communicator& ranks) {
        try {
          body(ranks);
        } catch (const RankFailure& failure) {
          texts[static_cast<std::size_t>(ranks.rank())] = failure.what();
          EXPECT_EQ(failure.rank(), lost);
          EXPECT_THROW(ranks.barrier(), RankFailure) << "nothing can follow";
        }
      },
      time_limit);
  return texts;
}

TEST(ThreadRanks, ALostRankIsNamedToAllThatWait) {
  const std::vector<std::string> texts = failures(4, 0.2, 2, [](Communicator& ranks) {
    ranks.barrier();
    if (ranks.rank() == 2) return;
    std::vector<float> values(10);
    ranks.all_reduce_sum(values);
    ADD_FAILURE() << "an all_reduce without rank 2";
  });
  const std::string expected = "lost rank 2: no answer within 0.2 s, where the other ranks wait (all_gather)";
  EXPECT_EQ(texts, (std::vector<std::string>{expected, expected, "", expected}));
}

TEST(ThreadRanks, ATimeLimitIsOneForAllDuplicates) {
  test::run_ranks(2, [](Communicator& ranks) {
    const auto other = ranks.duplicate();
    other->set_least_time_limit(7);
    ranks.set_time_limit(5);
    EXPECT_EQ(ranks.time_limit(), 5);
    EXPECT_EQ(other->time_limit(), 7) << "this one alone waits longer";
    other->set_time_limit(9);
    EXPECT_EQ(ranks.time_limit(), 9);
    EXPECT_EQ(other->duplicate()->time_limit(), 9);
  });
}

// Without that this waits for a minute.
TEST(ThreadRanks, WhoWaitsFollowsAChangeOfTheLimit) {
  const std::vector<std::string> texts = failures(2, 60, 1, [](Communicator& ranks) {
    const auto other = ranks.duplicate();
    if (ranks.rank() == 1) return;
    const std::jthread changes([&] { ranks.set_time_limit(0.1); });
    other->barrier();
    ADD_FAILURE() << "a barrier without rank 1";
  });
  EXPECT_EQ(texts[0], "lost rank 1: no answer within 0.1 s, where the other ranks wait (barrier)");
}

TEST(RankWait, DoesNotCountTheTimeThatItsOwnRankWasStopped) {
  const auto ranks = make_thread_ranks(1, 1.5);
  RankWait waiting(*ranks[0]);
  std::this_thread::sleep_for(std::chrono::seconds(2));  // as if stopped: nobody looks
  EXPECT_FALSE(waiting.over());
  ranks[0]->set_time_limit(1);
  EXPECT_TRUE(waiting.over());
}

TEST(ThreadRanks, SeveralLostRanksAreNamed) {
  const std::vector<std::string> texts = failures(4, 0.1, 1, [](Communicator& ranks) {
    if (ranks.rank() == 0) ranks.barrier();
  });
  EXPECT_EQ(texts[0], "lost ranks 1, 2 and 3: no answer within 0.1 s, where the other ranks wait (barrier)");
}

// A failure in a group frees the other groups, and names the rank that the run knows.
TEST(ThreadRanks, AGroupsFailureIsEveryones) {
  const std::vector<std::string> texts = failures(4, 60, 3, [](Communicator& ranks) {
    const auto group = ranks.split(2);
    if (ranks.rank() == 3) group->abort("no space left on device");
    if (ranks.rank() == 1) ranks.barrier();  // on the way to another collective of all
    group->barrier();
    ranks.barrier();
  });
  for (const std::string& text : texts) EXPECT_EQ(text, "rank 3 gave up: no space left on device");
}

// Long before the time limit, and on duplicates too.
TEST(ThreadRanks, ARankThatGivesUpFreesTheOthers) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<std::string> texts = failures(4, 60, 1, [](Communicator& ranks) {
    const auto other = ranks.duplicate();
    if (ranks.rank() == 1) {
      ranks.abort("no space left on device");
      ranks.abort("a second reason, which nobody needs");
    }
    (ranks.rank() == 3 ? *other : ranks).barrier();
    ADD_FAILURE() << "a barrier without rank 1";
  });
  EXPECT_EQ(texts, std::vector<std::string>(4, "rank 1 gave up: no space left on device"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

// Memory of a rank that leaves a failed exchange may go at once; the thread sanitizer and the address sanitizer watch.
TEST(ThreadRanks, NobodyReadsTheMemoryOfARankThatLeft) {
  const test::Jitter jitter(5);
  for (int i = 0; i < 20; ++i) {
    std::atomic<int> freed = 0;
    test::run_ranks(4, [&](Communicator& ranks) {
      try {
        for (int round = 0;; ++round) {
          std::vector<float> values(5000, 1.0f);
          if (ranks.rank() == 3 && round == i) ranks.abort("enough");
          ranks.all_reduce_sum(values);
        }
      } catch (const RankFailure&) {
        ++freed;
      }
    });
    EXPECT_EQ(freed, 4);
  }
}

TEST(ThreadRanks, CallsThatDoNotFitTogetherAreABug) {
  try {
    test::run_ranks(2, [](Communicator& ranks) {
      std::vector<double> values(ranks.rank() == 0 ? 3 : 4);
      ranks.all_reduce_sum(values);
    });
    FAIL() << "3 and 4 values were added";
  } catch (const Bug& bug) {
    EXPECT_NE(std::string(bug.what()).find("bytes (all_gather), where rank"), std::string::npos) << bug.what();
  }
  EXPECT_THROW(test::run_ranks(2,
                               [](Communicator& ranks) {
                                 std::byte byte{};
                                 if (ranks.rank() == 0) ranks.barrier();
                                 if (ranks.rank() == 1) ranks.broadcast(std::span(&byte, 1), 1);
                               }),
               Bug);
}

TEST(ThreadRanks, CountsMustAddUp) {
  std::vector<float> values(10), own(5);
  const std::vector<std::int64_t> short_of{5, 4}, other{4, 6};
  test::run_ranks(2, [&](Communicator& ranks) {
    EXPECT_THROW(ranks.reduce_scatter_sum(values, short_of, own), Bug);
    EXPECT_THROW(ranks.reduce_scatter_sum(values, other, own), Bug);
    EXPECT_THROW(ranks.reduce_scatter_sum(values, std::vector<std::int64_t>{10}, own), Bug);
    EXPECT_THROW(ranks.broadcast({}, 2), Bug);
  });
}

}  // namespace
}  // namespace so
