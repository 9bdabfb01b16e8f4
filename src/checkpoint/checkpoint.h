// Checkpoints: written in the background while training goes on, read to resume.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/trainer_state.h"
#include "io/atomic_directory.h"
#include "io/checksums.h"
#include "ranks/communicator.h"

namespace so {

class ModelFiles;
class OffloadEngine;
class StateFiles;
class Stream;
class ThreadPool;

// A checkpoint directory holds a Hugging Face model (loadable as such), and by parameter, not by rank or bucket:
// exp_avg.safetensors and exp_avg_sq.safetensors (AdamW's moments as they are kept), master.safetensors (fp32 weights,
// unless the model's own are), and trainer_state.json. Frozen parameters are in the model alone. It appears whole or
// not at all. One of the model alone has neither moments nor master.safetensors, and its state says so.
//
// With several ranks each has a writer, all make the same calls, and all throw the same failure. Each rank writes its
// slices into the same files, whose bytes do not depend on the ranks; rank 0 does everything else.
class CheckpointWriter {
 public:
  // A collective of the engine's ranks. `keeps_best`: the checkpoint of the best evaluation stays, and save_total_limit
  // counts it, except that the last one stays beside it. `only_model`: checkpoints are of the model alone.
  CheckpointWriter(OffloadEngine& engine, const ModelFiles& source, CheckpointDirectory directory, int save_total_limit,
                   bool keeps_best = false, bool only_model = false);
  ~CheckpointWriter();  // waits; logs a failure that nobody asked for

  // The run was resumed from this step. What the directory has of steps beyond it is of another course, and is given
  // another name before the first checkpoint of this one. Throws Error if one of those is a link, which cannot be.
  void goes_on_from(std::int64_t step);

  // Begins to write checkpoint-<state.step> from the state as it is now and returns; a bucket's next update waits
  // until the bucket has been written. Waits for the save before, if it still runs. Throws what that one failed with;
  // what this one fails with, wait() throws.
  // The save fails if it would leave less than `room` bytes free, so that other files have their place. Rank 0's
  // `state` is the one that is written.
  void start(const TrainerState& state, std::uint64_t room = 0);
  // Waits until nothing is being written. Throws Error if the last save failed; earlier checkpoints are untouched.
  void wait();
  // Whether a checkpoint is being written.
  bool writing();

  // Bytes of one checkpoint's weights and optimizer state.
  std::uint64_t bytes() const;

 private:
  void end();
  void write(const TrainerState& state, std::uint64_t room);
  void write_own(StateFiles& files);
  // Completes the directory and gives it its name; rank 0 calls it.
  void commit(AtomicDirectory& directory, const TrainerState& state, Checksums checksums);
  void prune(const TrainerState& state);
  void show_progress();  // until the thread has written its checkpoint

  OffloadEngine& engine_;
  const ModelFiles& source_;
  const CheckpointDirectory directory_;
  const int save_total_limit_;
  const bool keeps_best_, only_model_;
  std::optional<std::int64_t> resumed_from_;   // until what lies beyond it has been set aside
  const std::unique_ptr<Communicator> ranks_;  // the saving thread's
  std::thread thread_;
  std::mutex mutex_;  // of what the thread has done
  std::condition_variable ended_;
  bool writing_ = false;
  std::int64_t written_elements_ = 0;
  std::exception_ptr error_;
};

// Fills the engine's optimizer state from a checkpoint, whoever owned it when that was written, and the weights on the
// device. `source` is the model that the run began with, from which its exports still copy what is not trained.
// `compute` is the model's stream. Throws Error naming the file and tensor if it is not one of this model and dtype. A
// collective of the engine's ranks, as many as there are now, which throw together (ranks/together.h): each reads its
// slices alone.
void load_checkpoint(const std::filesystem::path& checkpoint, const ModelFiles& source, OffloadEngine& engine,
                     Stream& compute, ThreadPool& pool);

}  // namespace so
