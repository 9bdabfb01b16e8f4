// Steps of full rows without data, as `bench step` times and `plan` plans them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/spec.h"
#include "plan/memory/training_shape.h"
#include "plan/plan_question.h"

namespace so {

// Refuses more tokens than can be counted. Rows longer than the model's limit, which `origin` states, are as good as
// others to plan and to time; says what training on them takes.
void require_rows(std::int64_t rows, std::int64_t length, const DecoderSpec& spec, const std::string& origin);

// Where each row begins, and the last ends: rows + 1 offsets.
std::vector<std::int32_t> row_offsets(std::int64_t rows, std::int64_t length);

// The sizes of such a step.
TrainingShape row_shape(const PlanKnobs& knobs);
// An upper bound of the sizes for any data, cut to rows of `max_length` tokens.
TrainingShape largest_shape(const PlanKnobs& knobs, bool evaluates);

}  // namespace so
