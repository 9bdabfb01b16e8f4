#include "options/run_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <span>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/terminal.h"
#include "io/yaml_document.h"

namespace so {
namespace {

constexpr std::uint64_t max_file_bytes = 1 << 20;
constexpr std::string_view own_options[] = {"config", "print_config"};

bool is_own(std::string_view option) {
  return std::find(std::begin(own_options), std::end(own_options), option) != std::end(own_options);
}

// Sets options from a document: one mapping of plain values and, where an option takes one, lists of them.
class RunFileReader {
 public:
  RunFileReader(const YamlDocument& document, std::string_view name, OptionsRef options, OptionOrigins& origins)
      : document_(document), name_(name), options_(options), origins_(origins) {}

  void read() {
    const YamlNode& root = document_.at(document_.root);
    const int line = document_.root.line;
    if (root.kind == YamlNode::Kind::scalar) {
      if (is_null(root)) return;
      refuse(line, "the file is one value, and should be options, as in \"lr: 2e-5\"");
    }
    if (root.kind == YamlNode::Kind::list) refuse(line, "a list stands where the name of an option should");
    check_tag(root, line, "map", "a mapping");
    for (std::size_t i = 0; i + 1 < root.children.size(); i += 2) {
      if (asks_nothing(document_.at(root.children[i]), document_.at(root.children[i + 1]))) continue;
      const OptionSpec& spec = key(root.children[i]);
      take(spec, root.children[i + 1]);
    }
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(int line, fmt::format_string<Args...> text, Args&&... args) const {
    fail("{}: {}", at(line), fmt::format(text, std::forward<Args>(args)...));
  }
  [[noreturn]] void refuse_value(const OptionSpec& spec, int line, std::string_view what) const {
    refuse(line, "{} is {}, and {}", spec.name, what,
           spec.is_list ? "its value is plain, or a list of plain values" : "the value of an option is plain");
  }
  std::string at(int line) const { return fmt::format("{}:{}", name_, line); }

  static bool is_tag(const YamlNode& node, std::string_view core) {
    constexpr std::string_view prefix = "tag:yaml.org,2002:";
    return node.tag.size() == prefix.size() + core.size() && node.tag.substr(0, prefix.size()) == prefix &&
           node.tag.substr(prefix.size()) == core;
  }
  void check_tag(const YamlNode& node, int line, std::string_view core, std::string_view what) const {
    if (!node.tag.empty() && node.tag != "!" && !is_tag(node, core))
      refuse(line, "the tag {} on {} is not known", in_quotes(node.tag), what);
  }

  static bool is_null(const YamlNode& node) {
    if (is_tag(node, "null")) return true;
    if (!node.is_plain || !node.tag.empty()) return false;
    return node.text.empty() || node.text == "~" || node.text == "null" || node.text == "Null" || node.text == "NULL";
  }

  // Whether this is an option of an earlier version with a value that asks for nothing.
  bool asks_nothing(const YamlNode& name, const YamlNode& value) const {
    const std::span<const OptionRows::Absent> all = options_.rows().absent();
    const auto absent = std::find_if(all.begin(), all.end(), [&](const auto& a) { return a.name == name.text; });
    if (absent == all.end() || absent->idle_values.empty() || value.kind != YamlNode::Kind::scalar) return false;
    const auto& idle = absent->idle_values;
    return is_null(value) || std::find(idle.begin(), idle.end(), value.text) != idle.end();
  }

  const OptionSpec& key(YamlUse use) {
    const YamlNode& node = document_.at(use);
    if (node.kind != YamlNode::Kind::scalar)
      refuse(use.line, "a {} stands where the name of an option should",
             node.kind == YamlNode::Kind::list ? "list" : "mapping");
    if (is_null(node)) refuse(use.line, "the name of an option is missing");
    check_tag(node, use.line, "str", "a name");
    const std::string& name = node.text;
    const OptionSpec* spec = options_.rows().find_given(name);
    if (spec == nullptr || spec->is_file_only) {
      std::string meant;
      try {
        meant = meant_option(options_.rows(), name, "");
      } catch (const Error& error) {
        refuse(use.line, "{}", error.what());
      }
      refuse(use.line, "unknown option {}{}", in_quotes(name), meant);
    }
    if (is_own(name)) refuse(use.line, "{} belongs to the command line", name);
    const auto [first, is_new] = lines_.emplace(spec->name, use.line);
    if (!is_new) refuse(use.line, "{} is there twice, in line {} too", name, first->second);
    return *spec;
  }

  void take(const OptionSpec& spec, YamlUse use) {
    const YamlNode& node = document_.at(use);
    std::string text;
    if (node.kind == YamlNode::Kind::mapping) refuse_value(spec, use.line, "a mapping");
    if (node.kind == YamlNode::Kind::list) {
      if (!spec.is_list) refuse_value(spec, use.line, "a list");
      check_tag(node, use.line, "seq", "a list");
      if (node.children.empty()) refuse(use.line, "{} is an empty list", spec.name);
      for (const YamlUse child : node.children) text += (text.empty() ? "" : ",") + item(spec, child);
    } else {
      if (is_null(node)) return;
      text = value(spec, node, use.line);
    }
    const std::string where = fmt::format("{}: {}", at(use.line), spec.name);
    assign(options_, origins_, spec, parse_value(spec, text, where), Origin::run_file, where);
  }

  // On the command line items have commas between them.
  std::string item(const OptionSpec& spec, YamlUse use) const {
    const YamlNode& node = document_.at(use);
    if (node.kind != YamlNode::Kind::scalar)
      refuse_value(spec, use.line, node.kind == YamlNode::Kind::list ? "a list of lists" : "a mapping");
    if (is_null(node) || node.text.empty()) refuse(use.line, "an item of the list {} is empty", spec.name);
    if (node.text.find(',') != node.text.npos)
      refuse(use.line, "{} in the list {} has a comma, and commas stand between items; write it as two items",
             in_quotes(node.text), spec.name);
    return value(spec, node, use.line);
  }

  // As the command line takes it. YAML writes true and false in three ways, and whole numbers with a sign, in base 16
  // and in base 8 too.
  std::string value(const OptionSpec& spec, const YamlNode& node, int line) const {
    const bool is_text = spec.kind == OptionKind::text || spec.kind == OptionKind::choice;
    const bool fits = node.tag.empty() || node.tag == "!" || is_tag(node, "str") ||
                      (is_tag(node, "bool") && spec.kind == OptionKind::boolean) ||
                      (is_tag(node, "int") && spec.kind != OptionKind::boolean) ||
                      (is_tag(node, "float") && spec.kind != OptionKind::boolean);
    if (!fits) refuse(line, "{} has the tag {}, which is not for its values", spec.name, in_quotes(node.tag));
    const bool is_plain =
        (node.is_plain && node.tag.empty()) || is_tag(node, "bool") || is_tag(node, "int") || is_tag(node, "float");
    std::string text = node.text;
    if (is_text || !is_plain) return text;
    if (spec.kind == OptionKind::boolean) {
      if (text == "True" || text == "TRUE") return "true";
      if (text == "False" || text == "FALSE") return "false";
      return text;
    }
    if (text.size() > 1 && text[0] == '+' && text[1] != '-' && text[1] != '+') text.erase(0, 1);
    const std::string_view base = std::string_view(text).substr(0, 2);
    if (base == "0x" || base == "0o") {
      std::uint64_t number = 0;
      const auto [end, error] =
          std::from_chars(text.data() + 2, text.data() + text.size(), number, base == "0x" ? 16 : 8);
      if (error == std::errc() && end == text.data() + text.size()) return std::to_string(number);
    }
    return text;
  }

  const YamlDocument& document_;
  const std::string_view name_;
  const OptionsRef options_;
  OptionOrigins& origins_;
  std::map<std::string, int, std::less<>> lines_;
};

std::string comment(const std::string& text) {
  constexpr std::size_t columns = 98;
  std::istringstream lines(wrapped(text, columns));
  std::string out;
  for (std::string line; std::getline(lines, line);) out += "# " + line + "\n";
  return out;
}

// A value as YAML, in quotes where it must be.
std::string scalar(const OptionSpec& spec, const OptionValue& value) {
  const std::string text = to_string(value);
  if (spec.kind != OptionKind::text) return text;
  if (utf8_prefix(text) < text.size())
    fail(
        "--{}: {} has bytes that a YAML file cannot hold; give this option on the command line, and the others with "
        "--print_config",
        spec.name, in_quotes(printable_text(text)));
  return yaml_scalar(text);
}

// The option's line as it was not given.
std::string unset_line(const OptionSpec& spec) {
  const std::string text = to_string(spec.default_value);
  if (!text.empty()) return fmt::format("# {}: {}", spec.name, text);
  return fmt::format("# {}: {}", spec.name, spec.value_name.empty() ? "TEXT" : spec.value_name);
}

}  // namespace

void apply_run_text(std::string_view text, std::string_view name, OptionsRef options, OptionOrigins& origins) {
  if (const std::size_t good = utf8_prefix(text); good < text.size())
    fail("{}:{}: the file is not UTF-8, as YAML is; an option with such bytes belongs on the command line", name,
         1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(good), '\n'));
  const YamlDocument document = read_yaml(text, name);
  if (!document.is_empty) RunFileReader(document, name, options, origins).read();
}

void apply_run_file(const std::string& file, OptionsRef options, OptionOrigins& origins) {
  std::string text;
  try {
    text = read_text_file(file, max_file_bytes);
  } catch (const Error& error) {
    fail("{}; check --config", error.what());
  }
  apply_run_text(text, printable_path(file), options, origins);
}

std::string run_file_text(OptionsView options, const OptionOrigins& origins) {
  std::string out = "# Options of a run, for --config. A line that begins with # and a name is a default.\n", group;
  for (const OptionSpec& spec : options.rows().specs()) {
    if (spec.is_file_only || is_own(spec.name)) continue;
    if (spec.group != group) out += fmt::format("\n# ---- {}\n", spec.group);
    group = spec.group;
    std::string help = spec.help;
    if (spec.kind != OptionKind::text && spec.kind != OptionKind::boolean)
      help += fmt::format(" ({})", describe_values(spec));
    out += "\n" + comment(help + (spec.is_required ? "; required" : ""));
    if (origins.given(spec.name))
      out += fmt::format("{}: {}\n", spec.name, scalar(spec, options.get(spec)));
    else
      out += unset_line(spec) + "\n";
  }
  return out;
}

}  // namespace so
