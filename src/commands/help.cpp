// --help and --version.
#include <fmt/format.h>

#include "commands/support/parse.h"

namespace so {
namespace {

constexpr std::string_view exit_codes =
    "Exit codes:\n"
    "  0    done\n"
    "  1    the system failed (out of memory, disk full, output that cannot be written); verify found damage, or\n"
    "       doctor something wrong\n"
    "  2    something you can mend: an option, a file, a setting; the message is one line and says what\n"
    "  70   an error of the program itself; please report the message\n"
    "  130  stopped by Ctrl-C or a signal; train saves a checkpoint first (docs/running.md)\n";

}  // namespace

std::string usage(const Command& command) {
  std::string text = fmt::format("superoffload {}", command.name);
  for (const OptionSpec& spec : command.rows->specs())
    if (spec.is_required)
      text += (spec.name == command.bare ? " [--" + spec.name + "] " : " --" + spec.name + " ") + spec.value_name +
              (spec.name == command.bare && command.several_bare ? "..." : "");
  return text + " [options]";
}

std::string command_help(const Command& command) {
  std::string text = fmt::format("Usage: {}\n\n{}\n\n{}", usage(command), command.details, help_text(*command.rows));
  text += "\nA true|false option alone means true. Values may also be given as --option=value.\n\nExamples:\n";
  for (const std::string_view example : command.examples) text += fmt::format("  {}\n", example);
  return text + "\n" + std::string(exit_codes);
}

std::string group_help(std::string_view first) {
  std::string text;
  for (const Command& command : all_commands())
    if (command.name.starts_with(std::string(first) + " "))
      text += fmt::format("  {:<10}  {}\n", command.name, command.summary);
  if (text.empty()) return text;
  return fmt::format(
      "Usage: superoffload {} COMMAND [options]\n\nCommands:\n{}\n  superoffload COMMAND --help   options, "
      "defaults and examples of a command\n",
      first, text);
}

std::string program_help() {
  std::string text =
      "Usage: superoffload COMMAND [options]\n\n"
      "Full-parameter fine-tuning of Hugging Face language models whose training state does not fit the GPU.\n\n"
      "Commands:\n";
  for (const Command& command : all_commands()) text += fmt::format("  {:<10}  {}\n", command.name, command.summary);
  text +=
      "\n  superoffload COMMAND --help   options, defaults and examples of a command; superoffload help COMMAND\n"
      "  superoffload --version        version of the program; -V\n\n"
      "Results go to standard output, messages to standard error.\n\n";
  return text + std::string(exit_codes);
}

std::string program_version() { return "superoffload " SO_VERSION "\n"; }

}  // namespace so
