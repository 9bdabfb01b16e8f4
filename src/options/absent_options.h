// Options of other programs for which there is none here.
#pragma once

#include "base/option_table.h"

namespace so {

// Tells the rows of `train` which options of TRL, transformers, axolotl and LLaMA-Factory it lacks, and why.
void add_absent_options(OptionRows& rows);

}  // namespace so
