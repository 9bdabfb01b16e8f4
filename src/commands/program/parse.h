// The command line: argv to a command with its checked options. Runs nothing, reads nothing but a file of
// options and a DeepSpeed file, prints nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/option_table.h"
#include "commands/command.h"

namespace so {

struct ParsedCommand {
  const Command* command = nullptr;  // null: `text` is to be shown, for --help and its like
  std::string text;
  std::shared_ptr<void> options;  // the command's struct
  OptionOrigins origins;

  OptionsView view() const { return {*command->rows, options.get()}; }
  template <class S>
  const S& as() const {
    SO_CHECK(command && *command->type == typeid(S), "the options are of another command");
    return *static_cast<const S*>(options.get());
  }
};

// `arguments` without the program's name. `ranks`: number of data-parallel ranks, for the DeepSpeed file's
// train_batch_size. Throws Error for a line the program does not accept, with the nearest known name where there is
// one.
ParsedCommand parse_command_line(const std::vector<std::string>& arguments, int ranks = 1);

// argv[0] is the program's name.
ParsedCommand parse_command_line(int argc, const char* const* argv, int ranks = 1);

// Columns of the terminal behind standard output, 120 at most, or 80 where there is none: what the texts below fit.
std::size_t help_columns();

std::string usage(const Command& command);  // "superoffload train --model DIR --data FILE ... [options]"
// superoffload COMMAND --help
std::string command_help(const Command& command, std::size_t columns = help_columns());
// superoffload bench --help; empty if no commands begin so
std::string group_help(std::string_view first, std::size_t columns = help_columns());
std::string program_help(std::size_t columns = help_columns());  // superoffload --help
// A command line as a shell takes it, in lines of at most `columns` where its words permit.
std::string example_lines(std::string_view example, std::size_t columns, std::string_view indent = "");
std::string program_version();  // superoffload --version

}  // namespace so
