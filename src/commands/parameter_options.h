// Options of a model's parameters, in the form that the model takes.
#pragma once

#include <string>

#include "model/parameter_rules.h"
#include "offload/schedule/parameter_layout.h"
#include "options/option_groups.h"

namespace so {

// Throws Error for a list with an empty pattern. Names are checked where the rules meet a model (make_parameters()).
ParameterRules parameter_rules(const ParameterOptions& options);

// A line that says how much of the model is frozen; empty if nothing is.
std::string frozen_line(const ParameterLayout& layout);

}  // namespace so
