// How long a run is, and how one that was resumed may be extended.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "checkpoint/trainer_state.h"
#include "data/batches.h"
#include "options/train_options.h"

namespace so {

struct RunLength {
  std::int64_t steps = 0;
  // In an extended run these are the first run's: an extension does not go back to warming up.
  std::int64_t warmup_steps = 0;
  std::optional<std::int64_t> changed_from = {};  // the steps the run had when its checkpoint was saved, if others
  bool records_warmup = false;                    // these are not what a checkpoint's options say

  // One line for the log; empty if the run has the steps that it had.
  std::string change_text(LrScheduleKind schedule) const;
  // One line for the log; empty if the learning rate comes to its highest before the run ends.
  std::string long_warmup_text() const;
};

// `resumed` is null for a run from the beginning. Throws Error naming `state_file` if the run had more steps before,
// and
// --allow_changed does not say that they may change, or has gone beyond them.
RunLength run_length(const LoopOptions& options, const BatchIterator& batches, const TrainerState* resumed,
                     const std::string& state_file);

// Returns `asked`. If it splits a step's rows otherwise than `record` over ranks and micro-batches, it gets the
// record's split where that may be: a run may resume on other ranks with the same micro-batches, and with others of the
// same rows in all if --allow_changed says so, since sums over them may round otherwise. Throws Error naming
// `state_file` where it may not be.
TrainOptions with_recorded_split(const TrainOptions& asked, const std::string& record, const std::string& state_file);

// The length that `record` (TrainerState::options) names; `asked` if that is no record.
LengthOptions recorded_length(const LengthOptions& asked, const std::string& record);

}  // namespace so
