// Options that name a repository of the Hugging Face hub in place of a path: "--model Qwen/Qwen3-0.6B".
#pragma once

#include "base/option_table.h"

namespace so {

// Gives each option whose row says so (OptionSpec::hub) the path of the snapshot in the Hugging Face cache that its
// text names; what exists here by that name is taken before. Throws Error, with the command that helps, for a
// repository that the cache lacks or has in part; with --download that command is run first, unless ranks have been
// started already
// (`ranks` > 1), of which each would run it. To be called once, before the command runs. `rank` 0 says what is said.
void use_hub_snapshots(OptionsRef options, int rank, int ranks);

}  // namespace so
