#include "commands/shell_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/terminal.h"
#include "commands/program/parse.h"

namespace so {
namespace {

struct Replacement {
  char c;
  std::string_view by;
};
std::string replaced(std::string_view text, std::initializer_list<Replacement> replacements) {
  std::string out;
  for (const char c : text) {
    const auto found = std::find_if(replacements.begin(), replacements.end(), [c](const auto& r) { return r.c == c; });
    if (found == replacements.end())
      out += c;
    else
      out += found->by;
  }
  return out;
}

// The first words of the commands, each once, and the words that may follow it.
std::vector<std::pair<std::string, std::vector<std::string>>> first_words() {
  std::vector<std::pair<std::string, std::vector<std::string>>> all;
  for (const Command& command : all_commands()) {
    const std::size_t space = command.name.find(' ');
    const std::string first(command.name.substr(0, space));
    if (all.empty() || all.back().first != first) all.push_back({first, {}});
    if (space != std::string_view::npos) all.back().second.emplace_back(command.name.substr(space + 1));
  }
  return all;
}

bool names_a(std::string_view kind, const OptionSpec& spec) { return spec.value_name.find(kind) != std::string::npos; }

std::vector<std::string> values_of(const OptionSpec& spec) {
  if (spec.kind == OptionKind::boolean) return {"true", "false"};
  return spec.choices;
}

// ------------------------------------------------------------------------------------------------------------- bash

// The bash command that lists what may stand as the option's value; empty: any text.
std::string bash_values(const OptionSpec& spec) {
  if (const auto values = values_of(spec); !values.empty()) return fmt::format("-W '{}'", fmt::join(values, " "));
  const std::string known = spec.known.empty() ? "" : fmt::format(" -W '{}'", fmt::join(spec.known, " "));
  if (names_a("DIR", spec)) return "-d" + known;
  if (names_a("FILE", spec)) return "-f" + known;
  return {};
}

std::string bash_case(const Command& command) {
  std::string out = fmt::format("    '{}')\n      options='--help", command.name);
  for (const OptionSpec& spec : command.rows->specs())
    if (!spec.is_file_only) out += " --" + spec.name;
  out += "'\n";
  if (!command.bare.empty()) out += fmt::format("      values=\"{}\"\n", bash_values(command.rows->at(command.bare)));
  out += "      case $previous in\n";
  for (const OptionSpec& spec : command.rows->specs())
    if (!spec.is_file_only)
      out += fmt::format("        --{}) values=\"{}\" asked=1 ;;\n", spec.name, bash_values(spec));
  return out + "      esac\n      ;;\n";
}

// -------------------------------------------------------------------------------------------------------------- zsh

std::string in_single_quotes(std::string_view text) { return "'" + replaced(text, {{'\'', "'\\''"}}) + "'"; }

std::string zsh_action(const OptionSpec& spec) {
  if (const auto values = values_of(spec); !values.empty()) return fmt::format("({})", fmt::join(values, " "));
  const std::string files = names_a("DIR", spec) ? "_files -/" : names_a("FILE", spec) ? "_files" : " ";
  if (spec.known.empty()) return files;
  return fmt::format("{{compadd -- {}; {}}}", fmt::join(spec.known, " "), files);
}

std::string zsh_specification(const OptionSpec& spec) {
  const std::string help =
      replaced(spec.help, {{'\\', "\\\\"}, {'[', "\\["}, {']', "\\]"}, {':', "\\:"}, {'`', "\\`"}, {'$', "\\$"}});
  const std::string name = spec.value_name.empty() ? "value" : spec.value_name;
  return in_single_quotes(
      fmt::format("--{}=[{}]{}{}:{}", spec.name, help, spec.bare_value ? "::" : ":", name, zsh_action(spec)));
}

std::string zsh_case(const Command& command) {
  std::string out = fmt::format("    '{}')\n      _arguments", command.name);
  for (const OptionSpec& spec : command.rows->specs())
    if (!spec.is_file_only) out += " \\\n        " + zsh_specification(spec);
  if (!command.bare.empty()) {
    const OptionSpec& bare = command.rows->at(command.bare);
    out += " \\\n        " +
           in_single_quotes(fmt::format("{}:{}:{}", command.several_bare ? "*" : "1", bare.name, zsh_action(bare)));
  }
  return out + " \\\n        '--help[how it is used]'\n      ;;\n";
}

// An entry of _describe's list: a name and its description.
std::string zsh_description(std::string_view name, std::string_view what) {
  return "    " + in_single_quotes(fmt::format("{}:{}", name, replaced(what, {{':', "\\:"}}))) + "\n";
}

// ------------------------------------------------------------------------------------------------------------- roff

std::string roff(std::string_view text) {
  std::string out;
  bool at_begin = true;
  for (const char c : text) {
    if (at_begin && (c == '.' || c == '\'')) out += "\\&";
    at_begin = c == '\n';
    out += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
  }
  return out;
}

// Text as it stands, in lines of its own.
std::string roff_lines(std::string_view text) { return ".nf\n" + roff(text) + "\n.fi\n"; }

std::string roff_option(const OptionSpec& spec) {
  const std::string line = replaced(option_synopsis(spec), {{'\n', " "}});
  const std::size_t space = std::min(line.find(' '), line.size());
  return fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", roff(line.substr(0, space)), roff(line.substr(space)),
                     roff(option_meaning(spec)));
}

std::string roff_command(const Command& command) {
  std::string out = fmt::format(".SS {}\n{}.PP\n{}", roff(command.name), roff_lines(usage(command)),
                                roff_lines(filled(command.details, 78)));
  std::string group;
  for (const OptionSpec& spec : command.rows->specs()) {
    if (spec.group != group) out += fmt::format(".PP\n{}:\n", roff(spec.group));
    group = spec.group;
    out += roff_option(spec);
  }
  out += ".PP\nExamples:\n.nf\n";
  for (const std::string_view example : command.examples) out += roff(example_lines(example, 78));
  return out + ".fi\n";
}

}  // namespace

std::string bash_completion() {
  std::string out = R"sh(# bash completion of superoffload: eval "$(superoffload completion bash)"
_superoffload() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}
  local options='' values='' asked='' first=2
  # "--option=value" comes as three words.
  if [[ $current == = ]]; then
    current=''
  elif [[ $previous == = ]]; then
    previous=${COMP_WORDS[COMP_CWORD - 2]}
  fi
)sh";
  std::string names, groups;
  for (const auto& [first, seconds] : first_words()) {
    names += first + " ";
    if (!seconds.empty())
      groups += fmt::format("    {}) names='{}' first=3 command+=\" ${{COMP_WORDS[2]}}\" ;;\n", first,
                            fmt::join(seconds, " "));
  }
  out += fmt::format("  local names='{}help --help --version'\n", names);
  out += "  if ((COMP_CWORD > 1)); then\n    case $command in\n";
  out += fmt::format("    help) names='{}' first=3 ;;\n", names.substr(0, names.size() - 1)) + groups;
  out += R"sh(    esac
  fi
  if ((COMP_CWORD < first)); then
    mapfile -t COMPREPLY < <(compgen -W "$names" -- "$current")
    return
  fi
  case $command in
)sh";
  for (const Command& command : all_commands()) out += bash_case(command);
  out += R"sh(  esac
  if [[ $current == -* || -z $asked$values ]]; then
    values="-W '$options'"
  elif [[ $values == -[df]* ]]; then
    compopt -o filenames 2>/dev/null
  fi
  COMPREPLY=()
  [[ -z $values ]] || mapfile -t COMPREPLY < <(eval compgen "$values" -- '"$current"')
}
complete -F _superoffload superoffload
)sh";
  return out;
}

std::string zsh_completion() {
  std::string out = "#compdef superoffload\n_superoffload() {\n  local -a names=(\n", groups;
  for (const auto& [first, seconds] : first_words()) {
    if (seconds.empty()) {
      out += zsh_description(first, find_command(first)->summary);
      continue;
    }
    out += zsh_description(first, fmt::format("{}", fmt::join(seconds, ", ")));
    groups += fmt::format("  if [[ $words[2] == {} ]]; then\n    names=(\n", first);
    for (const std::string& second : seconds)
      groups += "  " + zsh_description(second, find_command(first + " " + second)->summary);
    groups += R"sh(    )
    if ((CURRENT == 3)); then
      _describe command names
      return
    fi
    words=("$words[1]" "$words[2] $words[3]" "${(@)words[4,-1]}")
    ((CURRENT--))
  fi
)sh";
  }
  out += zsh_description("help", "how a command is used");
  out += R"sh(  )
  if ((CURRENT == 2)); then
    _describe command names
    return
  fi
)sh" + groups +
         R"sh(  local command=$words[2]
  words=("${(@)words[2,-1]}")
  ((CURRENT--))
  case $command in
    help) _describe command names ;;
)sh";
  for (const Command& command : all_commands()) out += zsh_case(command);
  return out + R"sh(  esac
}
if [[ $funcstack[1] == _superoffload ]]; then
  _superoffload "$@"
else
  compdef _superoffload superoffload
fi
)sh";
}

std::string manual_page() {
  std::string out = fmt::format(
      ".TH SUPEROFFLOAD 1 \"\" \"superoffload {}\" \"User Commands\"\n.SH NAME\nsuperoffload \\- full\\-parameter "
      "fine\\-tuning of Hugging Face language models\n.SH SYNOPSIS\n.B superoffload\n.I COMMAND\n[options]\n",
      roff(SO_VERSION));
  out += ".SH DESCRIPTION\n" + roff_lines(program_help(78)) + ".SH COMMANDS\n";
  for (const Command& command : all_commands()) out += roff_command(command);
  return out;
}

}  // namespace so
