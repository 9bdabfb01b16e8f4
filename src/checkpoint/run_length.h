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
  std::optional<std::int64_t> extended_from = {};  // the steps the run had when its checkpoint was saved

  // One line for the log; empty if the run was not extended.
  std::string extension_text(LrScheduleKind schedule) const;
  // One line for the log; empty if the learning rate comes to its highest before the run ends.
  std::string long_warmup_text() const;
};

// Throws Error unless a benchmark's warm-up and measured steps are no more than `steps`.
void require_steps_to_measure(const TrainOptions& options, std::int64_t steps);

// `resumed` is null for a run from the beginning. Throws Error naming `state_file` if the run had more steps before.
RunLength run_length(const LoopOptions& options, const BatchIterator& batches, const TrainerState* resumed,
                     const std::string& state_file);

// Returns `asked`. If its number of ranks differs from that in `record`, but a step has as many micro-batches over all
// ranks, it gets the record's numbers of ranks and of micro-batches a rank: a run may resume on other ranks. Throws
// Error naming `state_file` if a step would have another number of micro-batches.
TrainOptions with_recorded_ranks(const TrainOptions& asked, const std::string& record, const std::string& state_file);

// The length as `record` (TrainerState::options) has it; `asked` if that is no record.
LengthOptions recorded_length(const LengthOptions& asked, const std::string& record);

}  // namespace so
