// The state of a run that a checkpoint records beside weights and optimizer state.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "data/sampler.h"

namespace so {

struct TrainerState {
  std::int64_t step = 0;           // optimizer steps taken, skipped ones included: what max_steps and file names count
  std::int64_t updates = 0;        // of them not skipped: what AdamW's bias correction and the schedule count
  SamplerState sampler;            // where the next step's data begins
  std::int64_t tokens = 0;         // non-padding tokens seen
  std::uint64_t data_key = 0;      // identifies training data, tokenizer and the options that shape examples
  std::string options;             // to_json() of the run's options
  std::int64_t warmup_steps = -1;  // of a run that was extended (run_length.h); -1: as its options say
  std::int64_t skipped_in_a_row = 0;  // the last steps, if they were skipped

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
