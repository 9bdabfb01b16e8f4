// The options of a run in a YAML file: one mapping from the names of options to their values.
//
//   model: Qwen3-0.6B
//   data: alpaca.json
//   lr: 2e-5
//
// A value means what it means on the command line, which wins over the file; the file wins over a DeepSpeed file. null
// leaves an option as it is; an alias is what its anchor marks. What is no YAML, lists where an option takes none,
// mappings within the mapping, options that are named twice and options that the command does not have are Errors that
// name file and line.
#pragma once

#include <string>
#include <string_view>

#include "base/option_table.h"

namespace so {

// Reads `file` and sets what the command line has not set. Files beyond 1 MiB are refused. Throws Error naming file and
// line.
void apply_run_file(const std::string& file, OptionsRef options, OptionOrigins& origins);

// The same for a text, which must be UTF-8; `name` stands for the file in messages.
void apply_run_text(std::string_view text, std::string_view name, OptionsRef options, OptionOrigins& origins);

// Such a file with every option and its meaning: those that were given with their values, the others as comments with
// their defaults. apply_run_text() reads it to the same options. Throws Error for a text that YAML cannot hold, as one
// that is not UTF-8.
std::string run_file_text(OptionsView options, const OptionOrigins& origins);

}  // namespace so
