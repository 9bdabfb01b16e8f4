// Checkpoints and models written and read by several ranks, which are threads: the files do not depend on the ranks,
// every number of ranks resumes them to the same state, and one rank's failure is that of all.
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <limits>
#include <mutex>
#include <thread>

#include "base/divergence_error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/engine_of_model.h"
#include "checkpoint/export.h"
#include "checkpoint/rank_files.h"
#include "io/own_files.h"
#include "support/errors.h"
#include "support/failing_call.h"
#include "support/jitter.h"
#include "support/label.h"
#include "support/on_gpu.h"
#include "support/thread_ranks.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;
using Snapshot = std::map<std::string, std::string>;

struct Case {
  const char* model;
  DType compute, moments;
  std::int64_t bucket;
};

// Tied embeddings, experts one by one and stacked, biases and norms shorter than a slice's alignment. With the large
// bucket a rank's slice has many parameters; with the small one a parameter has many slices.
const std::vector<Case> cases{
    {"qwen3-tied", DType::f32, DType::f32, 1024}, {"qwen3-tied", DType::bf16, DType::bf16, 1 << 20},
    {"qwen3-moe", DType::bf16, DType::f32, 4096}, {"gemma3-vision", DType::bf16, DType::f32, 2048},
    {"gpt-oss", DType::bf16, DType::bf16, 2048},  {"llama-bias", DType::f32, DType::bf16, 64},
    {"llama-bias", DType::bf16, DType::u8, 512},  {"qwen3-moe", DType::bf16, DType::u8, 4096}};

std::string name_of(const Case& c) {
  return fmt::format("{} in {}, moments in {}, buckets of {}", c.model, so::name_of(c.compute), so::name_of(c.moments),
                     c.bucket);
}

TrainerState ranks_state_at(std::int64_t step) {
  TrainerState state;
  state.step = state.updates = step;
  state.options = "{}";
  return state;
}

class OnRanks : public testing::Test {
 protected:
  void SetUp() override { SO_CPU_ONLY("collectives of ranks reach its memory alone"); }
  TemporaryDirectory temporary_;
};
using CheckpointsOnRanks = OnRanks;
using ExportOnRanks = OnRanks;

void save(EngineOfModel& model, const fs::path& output, std::int64_t step) {
  CheckpointWriter writer(model.engine(), model.files(), CheckpointDirectory(output), 0);
  writer.start(ranks_state_at(step));
  writer.wait();
}

// Returns an engine's state as it is whatever the ranks: this rank's slices, put together with the others'.
std::vector<EngineOfModel::Bits> whole(EngineOfModel& model, Communicator& ranks) {
  std::vector<EngineOfModel::Bits> all = model.bits();
  for (int p = 0; p < model.layout().count(); ++p) {
    const Range range = model.layout().range(p);
    const auto collect = [&](StateArray array, std::vector<std::uint32_t>& bits) {
      std::vector<double> values(static_cast<std::size_t>(range.size())), owners(values.size());
      model.engine().read_state(array, range, [&](std::int64_t begin, std::span<const float> part) {
        for (std::size_t i = 0; i < part.size(); ++i) {
          const auto at = static_cast<std::size_t>(begin - range.begin) + i;
          values[at] = std::bit_cast<std::uint32_t>(part[i]);
          owners[at] = 1;
        }
      });
      ranks.all_reduce_sum(values);
      ranks.all_reduce_sum(owners);
      EXPECT_EQ(owners, std::vector<double>(owners.size(), 1.0)) << "each element has one owner";
      bits.assign(values.begin(), values.end());
    };
    EngineOfModel::Bits& of = all[static_cast<std::size_t>(p)];
    collect(StateArray::master, of.master);
    collect(StateArray::first_moment, of.m);
    collect(StateArray::second_moment, of.v);
  }
  return all;
}

TEST_F(CheckpointsOnRanks, BytesDoNotDependOnTheRanks) {
  for (const Case& c : cases) {
    SCOPED_TRACE(name_of(c));
    Snapshot expected;
    for (const int size : {1, 2, 3, 4}) {
      const fs::path output = temporary_ / fmt::format("{}-{}-{}", c.model, so::name_of(c.compute), size);
      run_ranks(size, [&](Communicator& ranks) {
        EngineOfModel model(model_directory(c.model), &ranks, c.compute, c.moments, c.bucket);
        model.fill(1);
        save(model, output, 7);
        ranks.barrier();
      });
      const Snapshot found = snapshot(output);
      if (size == 1) expected = found;
      EXPECT_TRUE(found.contains("checkpoint-7/exp_avg.safetensors"));
      EXPECT_TRUE(found == expected) << size << " ranks";
    }
  }
}

SO_LABEL(sweep, "CheckpointsOnRanks.AnyNumberOfRanksResumesTheStateToTheBit");
TEST_F(CheckpointsOnRanks, AnyNumberOfRanksResumesTheStateToTheBit) {
  for (const Case& c : cases) {
    SCOPED_TRACE(name_of(c));
    std::vector<EngineOfModel::Bits> before;
    for (const int saved : {1, 2, 3, 4}) {
      const fs::path output = temporary_ / fmt::format("{}-{}-{}", c.model, so::name_of(c.compute), saved);
      run_ranks(saved, [&](Communicator& ranks) {
        EngineOfModel model(model_directory(c.model), &ranks, c.compute, c.moments, c.bucket);
        model.fill(1);
        save(model, output, 7);
        const auto state = whole(model, ranks);
        if (ranks.size() == 1) before = state;
        EXPECT_TRUE(state == before);
        ranks.barrier();
      });
      for (const int loaded : {1, 2, 3, 4})
        run_ranks(loaded, [&](Communicator& ranks) {
          EngineOfModel model(model_directory(c.model), &ranks, c.compute, c.moments, 960);
          model.load_checkpoint(output / "checkpoint-7");
          EXPECT_TRUE(whole(model, ranks) == before) << "of " << saved << " ranks on " << loaded;
          ranks.barrier();
        });
    }
  }
}

TEST_F(CheckpointsOnRanks, AModelIsReadInSlicesAndWhole) {
  for (const fs::path& directory :
       {model_directory("qwen3-tied"), model_directory("gpt-oss"), model_fixture("gpt-oss-mxfp4") / "mxfp4",
        model_directory("llama-sharded"), model_directory("qwen3-bf16-v4")})
    for (const DType compute : {DType::f32, DType::bf16}) {
      std::vector<EngineOfModel::Bits> expected;
      for (const int size : {1, 2, 4})
        run_ranks(size, [&](Communicator& ranks) {
          EngineOfModel model(directory, &ranks, compute, DType::f32, 2048);
          model.load();
          const auto state = whole(model, ranks);
          if (size == 1) expected = state;
          EXPECT_TRUE(state == expected) << directory << " on " << size << " ranks";
          ranks.barrier();
        });
    }
}

// With delays, so that ranks save at very different paces.
TEST_F(CheckpointsOnRanks, ASaveBesideAStepHoldsTheStateBeforeIt) {
  const Jitter jitter(5);
  run_ranks(3, [&](Communicator& ranks) {
    EngineOfModel model(model_directory("qwen3-moe"), &ranks, DType::bf16, DType::bf16);
    model.fill(2);
    const auto before = whole(model, ranks);
    {
      CheckpointWriter writer(model.engine(), model.files(), CheckpointDirectory(temporary_.path()), 0);
      writer.start(ranks_state_at(7));
      for (int step = 1; step <= 3; ++step) EXPECT_TRUE(model.step(0.5f, step).finite);
      writer.start(ranks_state_at(8));
      writer.wait();
    }
    const auto after = whole(model, ranks);
    EXPECT_FALSE(after == before);
    EngineOfModel other(model_directory("qwen3-moe"), &ranks, DType::bf16, DType::bf16);
    other.load_checkpoint(temporary_ / "checkpoint-7");
    EXPECT_TRUE(whole(other, ranks) == before);
    other.load_checkpoint(temporary_ / "checkpoint-8");
    EXPECT_TRUE(whole(other, ranks) == after);
    ranks.barrier();
  });
}

// Without the record of files, which names a file before it appears.
Snapshot saved_in(const fs::path& output) {
  Snapshot content = snapshot(output);
  content.erase(own_files_record);
  return content;
}

// Returns what every rank throws when `fault` has come over its thread and checkpoints with other state are saved, one
// where checkpoint-7 is, which must stay as it is. Empty: the fault cannot be made here.
template <class Fault>
std::string failure_of_save(const fs::path& output, const Fault& fault) {
  const Snapshot before = saved_in(output);
  std::mutex mutex;
  std::vector<std::string> messages;
  bool possible = true;
  run_ranks(3, [&](Communicator& ranks) {
    EngineOfModel model(model_directory("llama-bias"), &ranks, DType::bf16, DType::f32);
    model.fill(9);
    std::string message;
    {
      CheckpointWriter writer(model.engine(), model.files(), CheckpointDirectory(output), 1);
      if (!fault(ranks.rank(), model)) possible = false;
      for (const int step : {7, 8}) {
        writer.start(ranks_state_at(step));
        EXPECT_TRUE(model.step(0.5f, step).finite) << "updates go on";
        try {
          writer.wait();
        } catch (const Error& error) {
          message = error.what();
        } catch (const Divergence& divergence) {
          message = divergence.what();
        }
      }
    }
    const std::lock_guard lock(mutex);
    messages.push_back(message);
  });
  if (!possible) return {};
  EXPECT_EQ(messages, std::vector<std::string>(3, messages[0])) << "one sentence, the same on all";
  EXPECT_TRUE(saved_in(output) == before) << "nothing is left, and nothing is gone";
  return messages[0];
}

TEST_F(CheckpointsOnRanks, OneRanksFailureIsThatOfAllAndChangesNothing) {
  const fs::path output = temporary_ / "out";
  {
    EngineOfModel model(model_directory("llama-bias"), DType::bf16);
    model.fill(1);
    save(model, output, 7);
  }
  const auto on = [](int failing, unsigned call, unsigned error) {
    return [=](int rank, EngineOfModel&) { return rank != failing || fail_call(call, error); };
  };
  const std::string first = failure_of_save(output, on(2, SYS_pwrite64, ENOSPC));
  if (first.empty()) GTEST_SKIP() << "no system call can be made to fail here (seccomp)";
  expect_in(first, {"rank 2: no space left on ", "checkpoint-8.tmp-"});
  expect_in(failure_of_save(output, on(1, SYS_fsync, EIO)), {"rank 1: cannot write ", "Input/output error"});
  expect_in(failure_of_save(output, on(0, SYS_pwrite64, ENOSPC)), {"no space left on "});
  expect_in(failure_of_save(output, on(0, SYS_renameat2, EIO)),
            {"cannot rename ", "checkpoint-8", "Input/output error"});
  expect_in(failure_of_save(output, on(1, SYS_openat, EACCES)), {"rank 1: cannot open ", "choose a directory"});
}

TEST_F(CheckpointsOnRanks, WhatIsNotFiniteOnOneRankIsNotSavedByAny) {
  const fs::path output = temporary_ / "out";
  {
    EngineOfModel model(model_directory("llama-bias"), DType::bf16);
    model.fill(1);
    save(model, output, 7);
  }
  const auto make_infinite = [](int rank, EngineOfModel& model) {
    if (rank != 1) return true;
    const Range own = model.engine().own_ranges().back();
    model.engine().write_state(
        StateArray::second_moment, {own.begin, own.begin + 1},
        [](std::int64_t, std::span<float> values) { values[0] = std::numeric_limits<float>::infinity(); });
    return true;
  };
  expect_in(failure_of_save(output, make_infinite), {"rank 1: ", "checkpoint-8", "second moment", "not finite"});
}

TEST_F(CheckpointsOnRanks, ARankThatGivesUpEndsTheSaveOfAll) {
  const fs::path output = temporary_ / "out";
  {
    EngineOfModel model(model_directory("llama-bias"), DType::bf16);
    model.fill(1);
    save(model, output, 7);
  }
  const Snapshot before = saved_in(output);
  std::atomic<int> saving{0};
  run_ranks(3, [&](Communicator& ranks) {
    EngineOfModel model(model_directory("llama-bias"), &ranks, DType::bf16, DType::f32);
    model.fill(9);
    CheckpointWriter writer(model.engine(), model.files(), CheckpointDirectory(output), 0);
    if (ranks.rank() == 1) {
      while (saving < 2) std::this_thread::yield();
      return ranks.abort("its device was lost");
    }
    writer.start(ranks_state_at(8));
    ++saving;
    try {
      writer.wait();
      ADD_FAILURE() << "saved without rank 1";
    } catch (const RankFailure& failure) {
      EXPECT_STREQ(failure.what(), "rank 1 gave up: its device was lost");
    }
  });
  EXPECT_TRUE(saved_in(output) == before);
}

TEST_F(CheckpointsOnRanks, OneRankThatCannotReadIsNamedToAll) {
  {
    EngineOfModel model(model_directory("llama-bias"), DType::bf16);
    model.fill(1);
    save(model, temporary_.path(), 7);
  }
  std::vector<std::string> messages(3);
  bool possible = true;
  run_ranks(3, [&](Communicator& ranks) {
    EngineOfModel model(model_directory("llama-bias"), &ranks, DType::bf16, DType::f32);
    if (ranks.rank() == 1 && !fail_call(SYS_pread64, EIO)) possible = false;
    ranks.barrier();  // all see whether it is
    messages[static_cast<std::size_t>(ranks.rank())] =
        possible ? refusal([&] { model.load_checkpoint(temporary_ / "checkpoint-7"); }) : "";
    ranks.barrier();
  });
  if (!possible) GTEST_SKIP() << "no system call can be made to fail here (seccomp)";
  expect_in(messages[0], {"rank 1: cannot read ", "checkpoint-7", "Input/output error"});
  EXPECT_EQ(messages, std::vector<std::string>(3, messages[0]));
}

TEST_F(ExportOnRanks, BytesDoNotDependOnTheRanks) {
  for (const char* name : {"qwen3-tied", "gpt-oss", "llama-sharded", "gemma3-vision"})
    for (const DType compute : {DType::f32, DType::bf16}) {
      Snapshot expected;
      for (const int size : {1, 2, 4}) {
        const fs::path output = temporary_ / fmt::format("{}-{}-{}", name, so::name_of(compute), size);
        run_ranks(size, [&](Communicator& ranks) {
          EngineOfModel model(model_directory(name), &ranks, compute, DType::f32, 2048);
          model.fill(3);
          export_model(model.engine(), model.files(), output, 20'000);
          ranks.barrier();
        });
        const Snapshot found = snapshot(output);
        if (size == 1) expected = found;
        EXPECT_TRUE(found.contains("model.safetensors.index.json"));
        EXPECT_TRUE(found == expected) << name << " on " << size << " ranks";
      }
    }
}

TEST_F(ExportOnRanks, OneRanksFailureLeavesTheEarlierModel) {
  const fs::path output = temporary_ / "out";
  const auto export_on = [&](Communicator* ranks, unsigned seed, bool& possible) {
    EngineOfModel model(model_directory("qwen3-tied"), ranks, DType::f32, DType::f32);
    model.fill(seed);
    if (ranks && ranks->rank() == 1 && !fail_call(SYS_pwrite64, EIO)) possible = false;
    export_model(model.engine(), model.files(), output);
  };
  bool possible = true;
  export_on(nullptr, 1, possible);
  const Snapshot before = snapshot(output);
  std::vector<std::string> messages(3);
  run_ranks(3, [&](Communicator& ranks) {
    messages[static_cast<std::size_t>(ranks.rank())] = refusal([&] { export_on(&ranks, 2, possible); });
  });
  if (!possible) GTEST_SKIP() << "no system call can be made to fail here (seccomp)";
  expect_in(messages[0], {"rank 1: cannot write ", "Input/output error"});
  EXPECT_EQ(messages, std::vector<std::string>(3, messages[0]));
  EXPECT_TRUE(snapshot(output) == before);
}

TEST(SharedDirectory, OneThatARankDoesNotSeeIsRefused) {
  const TemporaryDirectory temporary;
  EXPECT_NO_THROW(require_shared(temporary.path()));
  expect_in(refusal([&] { require_shared(temporary / "checkpoint-7.tmp-1"); }),
            {"checkpoint-7.tmp-1 is not there", "rank 0", "a file system they share"});
}

TEST_F(CheckpointsOnRanks, AFileOfAnotherSizeThanWasWrittenIsRefusedByAll) {
  write_file(temporary_ / "a", "12345");
  write_file(temporary_ / "b", "1234");
  std::vector<std::string> messages(2);
  run_ranks(2, [&](Communicator& ranks) {
    const auto of = [&](const std::map<std::string, std::uint64_t>& files) {
      return checksums_by_ranks(ranks, temporary_.path(), files);
    };
    EXPECT_EQ(of({{"a", 5}, {"b", 4}}).at("b"), checksum_of_file(temporary_ / "b"));
    messages[static_cast<std::size_t>(ranks.rank())] = refusal([&] { of({{"a", 6}, {"b", 4}}); });
  });
  expect_in(messages[0], {(temporary_ / "a").string(), "has 5 bytes where 6 were written"});
  EXPECT_EQ(messages[1], messages[0]);
}

TEST(ReadersOfFiles, ShareTheBytes) {
  const std::map<std::string, std::uint64_t> files{{"a", 100}, {"b", 100}, {"c", 60}, {"d", 50}, {"e", 10}};
  EXPECT_EQ(readers_of(files, 1), (std::map<std::string, int>{{"a", 0}, {"b", 0}, {"c", 0}, {"d", 0}, {"e", 0}}));
  EXPECT_EQ(readers_of(files, 3), (std::map<std::string, int>{{"a", 0}, {"b", 1}, {"c", 2}, {"d", 2}, {"e", 0}}));
  EXPECT_EQ(readers_of({{"a", 1}}, 4), (std::map<std::string, int>{{"a", 0}}));
}

}  // namespace
}  // namespace so::test
