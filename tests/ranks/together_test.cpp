#include "ranks/together.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <new>

#include "base/divergence_error.h"
#include "base/error.h"
#include "support/thread_ranks.h"

namespace so {
namespace {

TEST(Together, GivesTheTextsOfAllRanks) {
  for (const int size : {1, 2, 4})
    test::run_ranks(size, [&](Communicator& ranks) {
      const std::vector<std::string> texts =
          gather_texts(ranks, [&] { return std::string(static_cast<std::size_t>(ranks.rank()), 'x'); });
      ASSERT_EQ(std::ssize(texts), size);
      for (int r = 0; r < size; ++r)
        EXPECT_EQ(texts[static_cast<std::size_t>(r)], std::string(static_cast<std::size_t>(r), 'x'));
    });
}

TEST(Together, OneRankMayDoItForAll) {
  std::atomic<int> calls{0};
  test::run_ranks(3, [&](Communicator& ranks) {
    EXPECT_EQ(on_first_rank(ranks,
                            [&] {
                              ++calls;
                              return std::string("made");
                            }),
              "made");
  });
  EXPECT_EQ(calls, 1);
}

// By rank, the kind and the message of what `body` has each rank throw. Collectives go on afterwards.
template <class Body>
std::vector<std::string> failures(int size, const Body& body) {
  std::vector<std::string> all(static_cast<std::size_t>(size));
  test::run_ranks(size, [&](Communicator& ranks) {
    std::string& own = all[static_cast<std::size_t>(ranks.rank())];
    try {
      together(ranks, [&] { body(ranks.rank()); });
    } catch (const Error& error) {
      own = std::string("Error ") + error.what();
      EXPECT_EQ(thrown_by_all(error), ranks.size() > 1);
    } catch (const Divergence& divergence) {
      own = std::string("Divergence ") + divergence.what();
      EXPECT_TRUE(thrown_by_all(divergence));
    } catch (const RankFailure& failure) {
      own = std::string("RankFailure ") + failure.what();
      EXPECT_FALSE(thrown_by_all(failure));
      EXPECT_EQ(failure.rank(), 1);
    } catch (const std::bad_alloc&) {
      own = "bad_alloc";
    }
    ranks.barrier();
  });
  return all;
}

TEST(Together, AFailureOfOneRankIsThrownByAll) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(failures(3,
                     [](int rank) {
                       if (rank == 1) fail("the disk is full");
                     }),
            Texts(3, "Error rank 1: the disk is full"));
  EXPECT_EQ(failures(3,
                     [](int rank) {
                       if (rank == 0) fail("no such directory");
                     }),
            Texts(3, "Error no such directory"));
  EXPECT_EQ(failures(3,
                     [](int rank) {
                       if (rank == 2) throw Divergence("not finite");
                     }),
            Texts(3, "Divergence rank 2: not finite"));
  const std::string gave_up = std::string("RankFailure rank 1 gave up: ") + std::bad_alloc().what();
  EXPECT_EQ(failures(3,
                     [](int rank) {
                       if (rank == 1) throw std::bad_alloc();
                     }),
            (Texts{gave_up, "bad_alloc", gave_up}));
}

TEST(Together, OfSeveralFailuresTheLowestRanksIsThrown) {
  EXPECT_EQ(failures(4,
                     [](int rank) {
                       if (rank > 0) fail("disk {} is full", rank);
                     }),
            std::vector<std::string>(4, "Error rank 1: disk 1 is full"));
  EXPECT_EQ(failures(4, [](int) { fail("no such directory"); }),
            std::vector<std::string>(4, "Error no such directory"));
}

TEST(Together, OneRankAloneThrowsWhatItThrew) {
  EXPECT_EQ(failures(1, [](int) { fail("the disk is full"); }), std::vector<std::string>{"Error the disk is full"});
}

// No rank that leaves early frees another that is still about to throw the same.
TEST(Together, NobodyAbortsForWhatAllThrow) {
  std::atomic<int> errors{0};
  for (int i = 0; i < 50; ++i)
    EXPECT_THROW(test::run_ranks(4,
                                 [&](Communicator& ranks) {
                                   try {
                                     together(ranks, [&] {
                                       if (ranks.rank() == 2) fail("the disk is full");
                                     });
                                   } catch (const Error&) {
                                     ++errors;
                                     throw;
                                   }
                                 }),
                 Error);
  EXPECT_EQ(errors, 4 * 50);
}

TEST(Together, ALongerTimeLimitHoldsForAWhile) {
  test::run_ranks(2, [&](Communicator& ranks) {
    const double before = ranks.time_limit();
    {
      const TimeLimitAtLeast longer(ranks, before + 5);
      EXPECT_EQ(ranks.time_limit(), before + 5);
      const TimeLimitAtLeast shorter(ranks, 1);
      EXPECT_EQ(ranks.time_limit(), before + 5);
    }
    EXPECT_EQ(ranks.time_limit(), before);
  });
}

}  // namespace
}  // namespace so
