// Options of other programs, and of earlier versions of this one, for which there is none here.
#pragma once

#include "base/option_table.h"

namespace so {

// Tells the rows of `train` which options of TRL, transformers, axolotl, LLaMA-Factory and earlier versions it lacks,
// and why.
void add_absent_options(OptionRows& rows);

}  // namespace so
