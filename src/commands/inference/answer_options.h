// The options that say how the tokens of an answer are chosen.
#pragma once

#include <cstdint>
#include <optional>

#include "base/option_table.h"
#include "model/sampling.h"

namespace so {

struct AnswerOptions {
  std::optional<double> temperature;  // unset: greedy
  std::optional<int> top_k;           // unset: all
  double top_p = 1;
  std::int64_t seed = 42;
};

SamplingOptions sampling_of(const AnswerOptions& options);

const OptionTable<AnswerOptions>& answer_rows();

}  // namespace so
