#include "commands/program/parse.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "options/run_file.h"

namespace so {
namespace {

using Values = std::vector<std::pair<std::string, std::string>>;

[[noreturn]] void refuse_command(const std::vector<std::string>& extras) {
  std::vector<std::string> names;
  for (const Command& command : all_commands()) names.emplace_back(command.name);
  const std::string all = join(names, ", ");
  if (extras.empty()) fail("a command is missing: give one of {} (superoffload --help)", all);
  const std::string near = nearest_name(extras.front(), names);
  fail("unknown {} {}; {}", extras.front().rfind("-", 0) == 0 ? "option" : "command", in_quotes(extras.front()),
       near.empty() ? "the commands are " + all : fmt::format("did you mean {}?", near));
}

// The command that the line begins with, whose one or two words become one. Null if the line begins with an option or
// has no word.
const Command* take_command(std::vector<std::string>& words) {
  if (words.empty() || words.front().rfind("-", 0) == 0) return nullptr;
  if (const Command* command = find_command(words.front())) return command;
  std::vector<std::string> seconds;
  for (const Command& command : all_commands())
    if (command.name.rfind(words.front() + " ", 0) == 0) seconds.emplace_back(command.name);
  if (seconds.empty()) refuse_command({words.front()});
  const std::string second = words.size() < 2 ? "" : words[1];
  const Command* command = find_command(words.front() + " " + second);
  if (command == nullptr)
    fail("{} {}: give one of {} (superoffload --help)", words.front(),
         second.empty() || second.rfind("-", 0) == 0 ? "is not a command alone" : "has no " + in_quotes(second),
         join(seconds, ", "));
  words.erase(words.begin());
  words.front() = command->name;
  return command;
}

bool asks_for_help(const std::string& word) { return word == "--help" || word == "-h"; }

// The help that "help", "help COMMAND", "bench --help" and "help bench" ask for; empty if the line is none of these.
std::string asked_help(std::vector<std::string> words) {
  if (words.empty()) return {};
  const bool first = words.front() == "help";
  if (first) words.erase(words.begin());
  if (first && (words.empty() || asks_for_help(words.front()))) return program_help();
  if (words.size() == 1 || (words.size() == 2 && asks_for_help(words[1])))
    if (std::string text = group_help(words.front()); !text.empty() && (first || words.size() == 2)) return text;
  if (!first) return {};
  const Command* command = take_command(words);
  if (command == nullptr) refuse_command(words);
  return command_help(*command);
}

// Returns the name by which CLI11 knows the command.
std::string subcommand_name(const Command& command) {
  std::string name(command.name);
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

// Brings a command's arguments to the one form "--name value": an alias becomes the name, an option that may stand
// alone gets its value, and an option whose value is missing is refused here, since CLI11 would take the next option
// for it ("--model --data x",
// "--prompt= --json").
std::vector<std::string> normalized(const std::vector<std::string>& arguments, const Command& command) {
  const auto spec_of = [&](const std::string& word) -> const OptionSpec* {
    if (word.rfind("--", 0) != 0) return nullptr;
    const OptionSpec* spec = command.rows->find_given(std::string_view(word).substr(2));
    return spec != nullptr && !spec->is_file_only ? spec : nullptr;
  };
  std::vector<std::string> out;
  bool bare_taken = command.bare.empty();
  std::size_t bare_value = 0;  // where it stands in `out`; 0: nowhere
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const std::size_t equals = word.find('=');
    if (const OptionSpec* spec = equals == std::string::npos ? nullptr : spec_of(word.substr(0, equals))) {
      out.insert(out.end(), {"--" + spec->name, word.substr(equals + 1)});
      continue;
    }
    if (!word.starts_with("-") && bare_value > 0 && command.several_bare) {
      out[bare_value] += "," + word;
      continue;
    }
    if (!word.starts_with("-") && !std::exchange(bare_taken, true)) {
      bare_value = out.size() + 1;
      out.insert(out.end(), {"--" + std::string(command.bare), word});
      continue;
    }
    const OptionSpec* spec = spec_of(word);
    out.push_back(spec == nullptr ? word : "--" + spec->name);
    if (spec == nullptr) continue;
    const bool last = i + 1 == arguments.size();
    if (spec->bare_value && (last || arguments[i + 1].rfind("--", 0) == 0)) {
      out.push_back(*spec->bare_value);
    } else if (last || spec_of(arguments[i + 1]) != nullptr) {
      fail("{} needs a value{}", word,
           last ? "" : fmt::format(", and the next word is the option {}", arguments[i + 1]));
    } else {
      out.push_back(arguments[++i]);
    }
  }
  return out;
}

[[noreturn]] void refuse_unknown(const Command& command, const std::string& word) {
  if (word.rfind("-", 0) != 0)
    fail("unexpected argument {}: values belong to an option (superoffload {} --help)", in_quotes(word), command.name);
  const std::size_t dashes = std::min(word.find_first_not_of('-'), word.size());
  const std::string name = word.substr(dashes, word.find('=') - dashes);
  const std::string meant = meant_option(*command.rows, name, "--");
  fail("unknown option {}{}", in_quotes(word),
       meant.empty() ? fmt::format("; superoffload {} --help lists the options", command.name) : meant);
}

void assign_values(OptionsRef options, OptionOrigins& origins, const Values& values) {
  for (const auto& [name, text] : values) {
    const OptionSpec& spec = options.rows().at(name);
    assign(options, origins, spec, parse_value(spec, text, "--" + name), Origin::command_line, "");
  }
}

}  // namespace

ParsedCommand parse_command_line(const std::vector<std::string>& arguments, int ranks) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  app.require_subcommand(0, 1);
  const CLI::Option* help = app.add_flag("-h,--help");
  const CLI::Option* version = app.add_flag("-V,--version");
  struct Bound {
    const Command* command;
    const CLI::App* app;
    const CLI::Option* help;
    std::vector<std::pair<const OptionSpec*, const CLI::Option*>> options;
  };
  std::vector<Bound> bound;
  for (const Command& command : all_commands()) {
    CLI::App* sub = app.add_subcommand(subcommand_name(command));
    sub->set_help_flag();
    sub->allow_extras();
    Bound b{&command, sub, sub->add_flag("-h,--help"), {}};
    for (const OptionSpec& spec : command.rows->specs()) {
      if (spec.is_file_only) continue;
      CLI::Option* option =
          sub->add_option("--" + spec.name, CLI::callback_t([](const CLI::results_t&) { return true; }));
      b.options.emplace_back(&spec, option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll));
    }
    bound.push_back(std::move(b));
  }

  std::vector<std::string> words = arguments;
  if (std::string text = asked_help(words); !text.empty()) return {.text = std::move(text)};
  if (const Command* named = take_command(words)) {
    const std::vector<std::string> rest(words.begin() + 1, words.end());
    if (std::any_of(rest.begin(), rest.end(), asks_for_help)) return {.text = command_help(*named)};
    words = {subcommand_name(*named)};
    for (std::string& word : normalized(rest, *named)) words.push_back(std::move(word));
  }
  std::reverse(words.begin(), words.end());  // as CLI11 wants a vector
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    fail("{} (superoffload --help)", error.what());
  }
  if (help->count() > 0) return {.text = program_help()};
  if (version->count() > 0) return {.text = program_version()};
  for (const Bound& b : bound) {
    if (!b.app->parsed()) continue;
    if (const auto extras = b.app->remaining(); !extras.empty()) refuse_unknown(*b.command, extras.front());
    Values values;
    for (const auto& [spec, option] : b.options) {
      if (option->results().size() > 1)
        fail("--{} is given {} times; give it once", spec->name, option->results().size());
      if (!option->results().empty()) values.emplace_back(spec->name, option->results().front());
    }
    ParsedCommand result{.command = b.command, .options = b.command->make_options()};
    const OptionsRef options(*b.command->rows, result.options.get());
    assign_values(options, result.origins, values);
    if (b.command->asked_file) {
      const RunFileOptions& asked = b.command->asked_file(result.options.get());
      if (asked.config) apply_run_file(*asked.config, options, result.origins);
      if (asked.print_config) return {.text = run_file_text(options, result.origins)};
    }
    b.command->complete(result.options.get(), result.origins, ranks);
    return result;
  }
  refuse_command(app.remaining());
}

ParsedCommand parse_command_line(int argc, const char* const* argv, int ranks) {
  return parse_command_line(std::vector<std::string>(argv + std::min(argc, 1), argv + argc), ranks);
}

}  // namespace so
