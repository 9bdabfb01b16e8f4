// Options of a model's parameters, in the form that the model takes.
#pragma once

#include <string>

#include "model/parameter_rules.h"
#include "offload/schedule/parameter_layout.h"
#include "options/train_options.h"

namespace so {

// Throws Error for a list that does not read as one. Names are checked where the rules meet a model
// (make_parameters()).
ParameterRules parameter_rules(const ParameterOptions& options);
// The rules of a training run have its learning rates too.
ParameterRules parameter_rules(const TrainOptions& options);

// A line that says how much of the model is frozen; empty if nothing is.
std::string frozen_line(const ParameterLayout& layout);

// A line that says how many parameters have which learning rate; empty if all have the same.
std::string lr_multiplier_line(const ParameterLayout& layout);

}  // namespace so
