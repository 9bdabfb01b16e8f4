// The state of a run that a checkpoint records beside weights and optimizer state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "data/sampler.h"

namespace so {

// The best of a run's evaluations, and how long ago there was a gain. They are counted as transformers' Trainer and its
// EarlyStoppingCallback do: without the one before the first step.
struct EvaluationHistory {
  // Counts the evaluation after `step`, and returns whether it is the best so far. A loss that is not a number never
  // is.
  bool count(std::int64_t step, double loss, double threshold);

  std::optional<double> best_loss;
  std::int64_t best_step = 0;     // 0: there is none, or its checkpoint could not be saved
  std::int64_t without_gain = 0;  // evaluations, the last in a row, that were not better by more than the threshold
  std::int64_t last_step = 0;     // of the last that was counted; 0: none was
  std::uint64_t data_key = 0;     // as TrainerState::data_key, of the evaluation's records

  bool operator==(const EvaluationHistory&) const = default;
};

struct TrainerState {
  std::int64_t step = 0;           // optimizer steps taken, skipped ones included: what max_steps and file names count
  std::int64_t updates = 0;        // of them not skipped: what AdamW's bias correction and the schedule count
  SamplerState sampler;            // where the next step's data begins
  std::int64_t tokens = 0;         // non-padding tokens seen
  std::uint64_t data_key = 0;      // identifies training data, tokenizer and the options that shape examples
  std::string options;             // to_json() of the run's options
  std::int64_t warmup_steps = -1;  // of a run that was extended (run_length.h); -1: as its options say
  std::int64_t skipped_in_a_row = 0;                  // the last steps, if they were skipped
  std::optional<EvaluationHistory> evaluations = {};  // of a run that looks for the best of them
  bool only_model = false;                            // the checkpoint has no optimizer state: nothing resumes from it

  std::int64_t skipped() const { return step - updates; }
  // Whether the next step is an epoch's first.
  bool begins_epoch() const { return sampler.position == 0; }
};

// trainer_state.json. Reading throws Error naming the file and the key; untrusted text gives a state or an Error.
std::string to_json(const TrainerState& state);
TrainerState parse_trainer_state(std::string_view text, const std::string& source);
TrainerState read_trainer_state(const std::filesystem::path& file);

inline constexpr const char* trainer_state_file = "trainer_state.json";

}  // namespace so
