#include "options/run_file.h"

#include <fmt/format.h>
#include <yaml-cpp/emitter.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/terminal.h"

namespace so {
namespace {

constexpr std::uint64_t max_file_bytes = 1 << 20;
constexpr std::string_view own_options[] = {"config", "print_config"};

bool is_own(std::string_view option) {
  return std::find(std::begin(own_options), std::end(own_options), option) != std::end(own_options);
}

// Receives the document's events, and refuses all but one mapping of plain values and, where an option takes one, lists
// of them.
class RunFileEvents final : public YAML::EventHandler {
 public:
  RunFileEvents(std::string_view name, OptionsRef options, OptionOrigins& origins)
      : name_(name), options_(options), origins_(origins) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_if(anchor != YAML::NullAnchor, mark, "an anchor");
    if (in_list_) add_item(mark, "");
    if (in_list_) return;
    if (key_ == nullptr && in_mapping_) refuse(mark, "the name of an option is missing");
    if (in_mapping_) key_ = nullptr;
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { refuse_if(true, mark, "an alias"); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check(mark, tag, anchor);
    if (!in_mapping_) refuse(mark, "the file is one value, and should be options, as in \"lr: 2e-5\"");
    if (key_ == nullptr)
      take_key(mark, value);
    else if (in_list_)
      add_item(mark, value);
    else
      take_value(mark, tag, value);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    refuse_if(key_ == nullptr || !key_->is_list, mark, "a list");
    refuse_if(in_list_, mark, "a list of lists");
    check(mark, tag, anchor);
    in_list_ = true;
    list_.clear();
    list_begin_ = mark;
  }
  void OnSequenceEnd() override {
    if (list_.empty()) refuse(list_begin_, "{} is an empty list", key_->name);
    in_list_ = false;
    take_value(list_begin_, "", list_);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    check(mark, tag, anchor);
    refuse_if(in_mapping_, mark, "a mapping");
    in_mapping_ = true;
  }
  void OnMapEnd() override {}

 private:
  template <class... Args>
  [[noreturn]] void refuse(const YAML::Mark& mark, fmt::format_string<Args...> text, Args&&... args) const {
    fail("{}: {}", at(mark), fmt::format(text, std::forward<Args>(args)...));
  }
  void refuse_if(bool wrong, const YAML::Mark& mark, std::string_view what) const {
    if (!wrong) return;
    if (key_ != nullptr)
      refuse(mark, "{} is {}, and {}", key_->name, what,
             key_->is_list ? "its value is plain, or a list of plain values" : "the value of an option is plain");
    refuse(mark, "{} stands where the name of an option should", what);
  }
  void check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) const {
    refuse_if(anchor != YAML::NullAnchor, mark, "an anchor");
    refuse_if(!tag.empty() && tag != "?" && tag != "!", mark, "a tag");
  }
  std::string at(const YAML::Mark& mark) const { return fmt::format("{}:{}", name_, mark.line + 1); }

  void take_key(const YAML::Mark& mark, const std::string& name) {
    const OptionSpec* spec = options_.rows().find(name);
    if (spec == nullptr || spec->is_file_only) {
      std::string meant;
      try {
        meant = meant_option(options_.rows(), name, "");
      } catch (const Error& error) {
        refuse(mark, "{}", error.what());
      }
      refuse(mark, "unknown option {}{}", in_quotes(name), meant);
    }
    if (is_own(name)) refuse(mark, "{} belongs to the command line", name);
    const auto [first, is_new] = lines_.emplace(name, mark.line + 1);
    if (!is_new) refuse(mark, "{} is there twice, in line {} too", name, first->second);
    key_ = spec;
  }

  // On the command line items have commas between them.
  void add_item(const YAML::Mark& mark, const std::string& item) {
    if (item.empty()) refuse(mark, "an item of the list {} is empty", key_->name);
    if (item.find(',') != item.npos)
      refuse(mark, "{} in the list {} has a comma, and commas stand between items; write it as two items",
             in_quotes(item), key_->name);
    list_ += (list_.empty() ? "" : ",") + item;
  }

  // Python's spellings of true and false are YAML's too.
  void take_value(const YAML::Mark& mark, const std::string& tag, const std::string& value) {
    const OptionSpec& spec = *std::exchange(key_, nullptr);
    std::string text = value;
    if (spec.kind == OptionKind::boolean && tag == "?") {
      if (text == "True" || text == "TRUE") text = "true";
      if (text == "False" || text == "FALSE") text = "false";
    }
    const std::string where = fmt::format("{}: {}", at(mark), spec.name);
    assign(options_, origins_, spec, parse_value(spec, text, where), Origin::run_file, where);
  }

  const std::string_view name_;
  const OptionsRef options_;
  OptionOrigins& origins_;
  bool in_mapping_ = false;
  const OptionSpec* key_ = nullptr;  // whose value comes next
  bool in_list_ = false;
  std::string list_;  // its items so far
  YAML::Mark list_begin_;
  std::map<std::string, int, std::less<>> lines_;
};

std::string comment(const std::string& text) {
  constexpr std::size_t columns = 98;
  std::istringstream lines(wrapped(text, columns));
  std::string out;
  for (std::string line; std::getline(lines, line);) out += "# " + line + "\n";
  return out;
}

// Whether a file that holds this scalar gives back the text. The emitter puts U+FFFD for characters that YAML has none
// for.
bool reads_back(const std::string& scalar, const std::string& text) {
  try {
    return YAML::Load("- " + scalar)[0].Scalar() == text;
  } catch (const YAML::Exception&) {
    return false;
  }
}

// A value as YAML, in quotes where it must be.
std::string scalar(const OptionSpec& spec, const OptionValue& value) {
  const std::string text = to_string(value);
  if (spec.kind != OptionKind::text) return text;
  YAML::Emitter emitter;
  emitter << text;
  if (utf8_prefix(text) < text.size() || !emitter.good() || !reads_back(emitter.c_str(), text))
    fail(
        "--{}: {} has bytes that a YAML file cannot hold; give this option on the command line, and the others with "
        "--print_config",
        spec.name, in_quotes(printable_text(text)));
  return emitter.c_str();
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
  RunFileEvents events(name, options, origins);
  try {
    std::istringstream in{std::string(text)};
    YAML::Parser parser(in);
    parser.HandleNextDocument(events);
    if (parser) fail("{}: one document of options is read, and there is another behind \"---\"", name);
  } catch (const YAML::Exception& error) {
    fail("{}:{}: not YAML: {}", name, error.mark.line + 1, printable(error.msg));
  }
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
