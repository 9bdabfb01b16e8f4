// The command line: argv to a checked options struct. Runs nothing, reads nothing but a DeepSpeed file, prints nothing.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/options.h"
#include "options/command_options.h"
#include "options/file_options.h"
#include "options/train_options.h"

namespace so {

struct ShowText {  // --help, --version
  std::string text;
};

struct ParsedCommand {
  std::variant<ShowText, TrainOptions, InitOptions, EvalOptions, GenerateOptions, TokenizeOptions, PlanOptions,
               ProfileOptions, VerifyOptions, CacheOptions, BenchStepOptions, BenchOpsOptions, BenchLoadOptions>
      options;
  OptionOrigins origins;
};

// `arguments` without the program's name. `ranks`: number of data-parallel ranks, for the DeepSpeed file's
// train_batch_size. Throws Error for a line the program does not accept, with the nearest known name where there is
// one.
ParsedCommand parse_command_line(const std::vector<std::string>& arguments, int ranks = 1);

// argv[0] is the program's name.
ParsedCommand parse_command_line(int argc, const char* const* argv, int ranks = 1);

// The declaration in a command's file. `parse` is given the values by option name, in the order of the line.
struct Command {
  std::string_view name;     // one word, or two: "bench step"
  std::string_view summary;  // one line
  std::string_view details;  // paragraphs for --help
  std::vector<std::string_view> examples;
  const OptionRows* rows;
  ParsedCommand (*finish)(const std::vector<std::pair<std::string, std::string>>& values, int ranks);
  std::string_view bare = {};  // the option whose value may stand alone: "verify DIR"; empty: none
};

// Each in a file of its name.
const Command& train_command();
const Command& init_command();
const Command& eval_command();
const Command& generate_command();
const Command& tokenize_command();
const Command& plan_command();
const Command& profile_command();
const Command& verify_command();
const Command& cache_command();
const Command& bench_step_command();
const Command& bench_ops_command();
const Command& bench_load_command();

std::vector<const Command*> all_commands();
std::string usage(const Command& command);         // "superoffload train --model DIR --data FILE ... [options]"
std::string command_help(const Command& command);  // superoffload COMMAND --help
std::string program_help();                        // superoffload --help
std::string program_version();                     // superoffload --version

// Puts the values of the line into `options`.
void assign_values(OptionsRef options, OptionOrigins& origins,
                   const std::vector<std::pair<std::string, std::string>>& values);

}  // namespace so
