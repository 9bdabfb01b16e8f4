// --help and --version.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/build_facts.h"
#include "base/terminal.h"
#include "commands/program/parse.h"

namespace so {
namespace {

// "  name      text", the text in a column of its own.
std::string described(std::string_view name, std::string_view text, std::size_t column, std::size_t columns) {
  std::string lines = filled(text, columns, column);
  return lines.replace(0, std::min(name.size() + 2, column), fmt::format("  {}", name));
}

std::string exit_codes(std::size_t columns) {
  std::string text = "Exit codes:\n";
  for (const auto& [code, meaning] : {std::pair<const char*, const char*>{"0", "done"},
                                      {"1",
                                       "the system failed (out of memory, disk full, output that cannot be written); "
                                       "verify found damage, or doctor something wrong"},
                                      {"2",
                                       "something you can mend: an option, a file, a setting; the message is one line "
                                       "and says what"},
                                      {"70", "an error of the program itself; please report the message"},
                                      {"130",
                                       "stopped by Ctrl-C or a signal; train saves a checkpoint first "
                                       "(docs/running.md)"}})
    text += described(code, meaning, 7, columns);
  return text;
}

std::string command_list(std::string_view first, std::size_t columns) {
  std::string text;
  for (const Command& command : all_commands())
    if (command.name.starts_with(first)) text += described(command.name, command.summary, 14, columns);
  return text;
}

}  // namespace

std::size_t help_columns() { return std::clamp<std::size_t>(stdout_columns(), 40, 120); }

std::string usage(const Command& command) {
  std::string text = fmt::format("superoffload {}", command.name);
  for (const OptionSpec& spec : command.rows->specs())
    if (spec.is_required)
      text += (spec.name == command.bare ? " [--" + spec.name + "] " : " --" + spec.name + " ") + spec.value_name +
              (spec.name == command.bare && command.several_bare ? "..." : "");
  return text + " [options]";
}

std::string example_lines(std::string_view example, std::size_t columns, std::string_view indent) {
  std::string text(indent);
  std::size_t used = indent.size();
  for (std::size_t begin = 0; begin < example.size();) {
    // An option stays with its value.
    const std::size_t end = std::min(example.find(" --", begin + 1), example.size());
    const std::string_view part = example.substr(begin, end - begin);
    if (used + part.size() + (end < example.size() ? 2 : 0) > columns && begin > 0) {
      text += fmt::format(" \\\n{}   ", indent);
      used = indent.size() + 3;
    }
    text += part;
    used += part.size();
    begin = end;
  }
  return text + '\n';
}

std::string command_help(const Command& command, std::size_t columns) {
  std::string text =
      filled("Usage: " + usage(command), columns) + '\n' + filled(command.details, columns) + '\n' +
      help_text(*command.rows, columns) + '\n' +
      filled("A true|false option alone means true. Values may also be given as --option=value.", columns) +
      "\nExamples:\n";
  for (const std::string_view example : command.examples) text += example_lines(example, columns, "  ");
  return text + "\n" + exit_codes(columns);
}

std::string group_help(std::string_view first, std::size_t columns) {
  const std::string commands = command_list(std::string(first) + " ", columns);
  if (commands.empty()) return commands;
  return fmt::format(
      "Usage: superoffload {} COMMAND [options]\n\nCommands:\n{}\n{}", first, commands,
      described("superoffload COMMAND --help", "options, defaults and examples of a command", 32, columns));
}

std::string program_help(std::size_t columns) {
  return "Usage: superoffload COMMAND [options]\n\n" +
         filled("Full-parameter fine-tuning of Hugging Face language models whose training state does not fit the GPU.",
                columns) +
         "\nCommands:\n" + command_list("", columns) + '\n' +
         described("superoffload COMMAND --help",
                   "options, defaults and examples of a command; superoffload help COMMAND", 32, columns) +
         described("superoffload --version", "version of the program; -V", 32, columns) + '\n' +
         filled("Results go to standard output, progress and messages to standard error.", columns) + '\n' +
         exit_codes(columns);
}

std::string program_version() { return fmt::format("superoffload {}\n{}\n", SO_VERSION, build_text()); }

}  // namespace so
