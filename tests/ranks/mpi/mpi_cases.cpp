// Tests of ranks that are processes; mpirun starts it (run.sh).
//
// usage: test_mpi_ranks cases            every collective; exit code 0 if all is well
//        test_mpi_ranks lost|gives_up|misfit   a failure: each rank prints what the others' error says, and goes on to
//                                              its end without MPI's, so mpirun's exit code says nothing
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "ranks/collective_cases.h"
#include "ranks/mpi_ranks.h"

namespace so {
namespace {

std::unique_ptr<Communicator> ranks;

class MpiRanks : public testing::TestWithParam<test::CollectiveCase> {};

TEST_P(MpiRanks, Do) { GetParam().second(*ranks); }

INSTANTIATE_TEST_SUITE_P(WhatCommunicatorsDo, MpiRanks, testing::ValuesIn(test::collective_cases),
                         [](const auto& one) { return std::string(one.param.first); });

// Long beside what MPI sends before the receiver asks for it.
TEST(MpiRanksMore, LongMessages) {
  const std::int64_t each = std::int64_t{1} << 20;
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks->size()), each);
  const std::vector<double> own(static_cast<std::size_t>(each), ranks->rank());
  std::vector<double> all(own.size() * counts.size(), -1.0);
  ranks->all_gather(std::span<const double>(own), counts, std::span(all));
  for (std::size_t i = 0; i < all.size(); i += 4097)
    ASSERT_EQ(all[i], static_cast<double>(i / static_cast<std::size_t>(each)));
}

// The message that this rank's next barrier throws.
std::string failure_of_a_barrier() {
  try {
    ranks->barrier();
    return "nothing";
  } catch (const RankFailure& failure) {
    return fmt::format("failure of rank {}: {}", failure.rank(), failure.what());
  } catch (const Bug& bug) {
    return fmt::format("bug: {}", bug.what());
  }
}

int fail_on_purpose(const std::string& kind) {
  ranks->set_time_limit(kind == "lost" ? 1 : 60);
  const bool last = ranks->rank() + 1 == ranks->size();
  std::string text;
  if (kind == "lost" && last) {
    std::this_thread::sleep_for(std::chrono::seconds(3));
    text = failure_of_a_barrier();  // it comes too late, and is told so
  } else if (kind == "gives_up" && last) {
    ranks->abort("no space left on device");
    text = failure_of_a_barrier();
  } else if (kind == "misfit" && last) {
    std::vector<double> values(100);
    try {
      ranks->all_reduce_sum(values);
    } catch (const std::exception& error) {
      text = error.what();
    }
  } else {
    text = failure_of_a_barrier();
  }
  std::printf("rank %d has seen: %s\n", ranks->rank(), text.c_str());
  std::fflush(stdout);
  std::this_thread::sleep_for(std::chrono::seconds(4));  // a rank that ends takes the others with it
  _exit(0);
}

}  // namespace
}  // namespace so

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  so::ranks = so::make_mpi_ranks(60);
  const std::string kind = argc > 1 ? argv[1] : "cases";
  if (kind != "cases") return so::fail_on_purpose(kind);
  if (so::ranks->rank() != 0) {  // one report is enough; the others fail by their exit codes
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
  }
  const int code = RUN_ALL_TESTS();
  so::ranks.reset();
  return code;
}
