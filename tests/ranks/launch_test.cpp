#include "ranks/launch.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "base/error.h"
#include "ranks/local_launch.h"
#include "ranks/mpi_ranks.h"
#include "support/errors.h"
#include "support/files.h"

namespace so {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<Launch> launch_in(const Variables& variables) {
  return find_launch([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string refusal_of(const Variables& variables) {
  try {
    launch_in(variables);
    return "none";
  } catch (const Error& error) {
    return error.what();
  }
}

const Variables torchrun{{"RANK", "5"},         {"WORLD_SIZE", "8"},     {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"},
                         {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "29500"}};

TEST(Launch, IsNoneWithoutALauncher) {
  EXPECT_FALSE(launch_in({}));
  EXPECT_FALSE(launch_in({{"WORLD_SIZE", "4"}, {"SLURM_NTASKS", "4"}}));
  EXPECT_FALSE(launch_in({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "0"}}))
      << "a batch script, whose commands are no ranks";
}

TEST(Launch, IsFoundInTheVariablesOfEachLauncher) {
  const auto mpi = launch_in({{"OMPI_COMM_WORLD_RANK", "3"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  ASSERT_TRUE(mpi);
  EXPECT_EQ(mpi->launcher, Launcher::open_mpi);
  EXPECT_EQ(mpi->rank, 3);
  EXPECT_EQ(mpi->size, 4);
  EXPECT_EQ(mpi->local_rank, 1);
  EXPECT_EQ(mpi->local_size, 2);
  const auto slurm = launch_in({{"SLURM_PROCID", "6"}, {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_LOCALID", "2"}});
  ASSERT_TRUE(slurm);
  EXPECT_EQ(slurm->launcher, Launcher::slurm);
  EXPECT_EQ(slurm->rank, 6);
  EXPECT_EQ(slurm->local_rank, 2);
  const auto pmi =
      launch_in({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  ASSERT_TRUE(pmi);
  EXPECT_EQ(pmi->launcher, Launcher::pmi);
  const auto torch = launch_in(torchrun);
  ASSERT_TRUE(torch);
  EXPECT_EQ(torch->launcher, Launcher::torchrun);
  EXPECT_EQ(torch->rank, 5);
  EXPECT_EQ(torch->local_size, 4);
  EXPECT_EQ(torch->master_address, "n0");
  EXPECT_EQ(torch->master_port, 29500);
}

TEST(Launch, TheInnerLauncherCounts) {
  Variables both = torchrun;
  both.insert({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_LOCALID", "0"}});
  EXPECT_EQ(launch_in(both)->launcher, Launcher::torchrun);
}

TEST(Launch, RefusesWhatContradictsItselfAndNamesTheVariables) {
  const auto with = [](const char* name, const char* value) {
    Variables changed = torchrun;
    changed[name] = value;
    return refusal_of(changed);
  };
  const auto without = [](const char* name) {
    Variables changed = torchrun;
    changed.erase(name);
    return refusal_of(changed);
  };
  EXPECT_EQ(with("RANK", "8"),
            "RANK=8 and WORLD_SIZE=8 contradict each other: ranks count from 0, so the first must be less");
  EXPECT_EQ(with("LOCAL_RANK", "4"),
            "LOCAL_RANK=4 and LOCAL_WORLD_SIZE=4 contradict each other: ranks count from 0, so the first must be less");
  EXPECT_EQ(with("LOCAL_WORLD_SIZE", "9"),
            "LOCAL_WORLD_SIZE=9 and WORLD_SIZE=8 contradict each other: a host has no more ranks than there are");
  EXPECT_EQ(with("RANK", "0"),
            "LOCAL_RANK=1 and RANK=0 contradict each other: ranks of a host count in the order of all ranks");
  EXPECT_EQ(with("RANK", "-1"), "RANK=-1, as torchrun sets it, is no count: start the ranks again, or unset it");
  EXPECT_EQ(with("RANK", "1x"), "RANK=1x, as torchrun sets it, is no count: start the ranks again, or unset it");
  EXPECT_EQ(with("RANK", ""), "RANK=, as torchrun sets it, is no count: start the ranks again, or unset it");
  EXPECT_EQ(without("WORLD_SIZE"),
            "RANK is set, as torchrun sets it, but WORLD_SIZE is not: start all ranks with torchrun, or unset RANK");
  EXPECT_EQ(without("LOCAL_RANK"),
            "RANK is set, as torchrun sets it, but LOCAL_RANK is not: start all ranks with torchrun, or unset RANK");
  EXPECT_EQ(without("MASTER_ADDR"), "RANK is set, as torchrun sets it, but MASTER_ADDR, where rank 0 listens, is not");
  EXPECT_EQ(without("MASTER_PORT"),
            "RANK is set, as torchrun sets it, but MASTER_PORT is not: start all ranks with torchrun, or unset RANK");
}

// An empty entry of PATH means the working directory, which may be that of somebody else's data.
TEST(LocalLaunch, RunsNoMpirunOfTheWorkingDirectory) {
  if (!have_mpi()) GTEST_SKIP() << "this build has no MPI";
  namespace fs = std::filesystem;
  const test::TemporaryDirectory temporary;
  const fs::path started_in = fs::current_path();
  const std::string path = std::getenv("PATH");
  std::ofstream(temporary / "mpirun") << "#!/bin/sh\ntouch ran\n";
  fs::permissions(temporary / "mpirun", fs::perms::owner_all);
  fs::current_path(temporary.path());
  for (const char* entries : {":", ".", ""}) {
    ::setenv("PATH", entries, 1);
    test::expect_in(test::refusal([] { run_local_ranks(2, {"version"}); }), {"mpirun, which is not found"});
  }
  ::setenv("PATH", path.c_str(), 1);
  fs::current_path(started_in);
  EXPECT_FALSE(fs::exists(temporary / "ran"));
}

}  // namespace
}  // namespace so
