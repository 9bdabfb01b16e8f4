#include "data/tokenizer/pipeline_json.h"

#include <algorithm>
#include <array>
#include <utility>

#include "data/tokenizer/json_stages.h"
#include "data/tokenizer/utf8.h"

namespace so {
namespace {

struct Pattern {
  std::string text;
  bool is_regex;
  std::string where;
};

Pattern read_pattern(const JsonNode& stage) {
  const JsonNode pattern = stage.at("pattern");
  pattern.allow_only({"Regex", "String"});
  const auto regex = pattern.find("Regex");
  const auto literal = pattern.find("String");
  if (regex.has_value() == literal.has_value()) fail("{} must have either \"Regex\" or \"String\"", pattern.where());
  Pattern result{std::string((regex ? *regex : *literal).string()), regex.has_value(), pattern.where()};
  if (result.text.empty()) fail("{}: the pattern is empty", result.where);
  return result;
}

std::string read_character(const JsonNode& node) {
  const std::string_view text = node.string();
  if (text.empty() || code_point_at(text, 0).length != text.size()) fail("{} must be one character", node.where());
  return std::string(text);
}

SplitBehavior behavior_of(const JsonNode& node) {
  const std::string_view name = node.string();
  if (name == "Removed") return SplitBehavior::Removed;
  if (name == "Isolated") return SplitBehavior::Isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::MergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::MergedWithNext;
  if (name == "Contiguous") return SplitBehavior::Contiguous;
  fail("{}: \"{}\" is none of Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous", node.where(), name);
}

SplitStep read_split(const JsonNode& node) {
  node.allow_only({"type", "pattern", "behavior", "invert"});
  Pattern pattern = read_pattern(node);
  return {std::move(pattern.text), pattern.is_regex, behavior_of(node.at("behavior")), node.flag("invert"),
          std::move(pattern.where)};
}

// Reads that of a pre-tokenizer or a decoder. Older files say "add_prefix_space" instead of "prepend_scheme".
MetaspaceStep read_metaspace(const JsonNode& node) {
  node.allow_only({"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"});
  constexpr std::array names = {"always", "first", "never"};
  MetaspaceStep step;
  step.replacement = read_character(node.at("replacement"));
  if (const auto scheme = node.find("prepend_scheme")) {
    const auto name = std::find(names.begin(), names.end(), scheme->string());
    if (name == names.end()) fail("{}: \"{}\" is none of always, first, never", scheme->where(), scheme->string());
    step.prepend = static_cast<MetaspaceStep::Prepend>(name - names.begin());
  }
  const auto prefix = node.find("add_prefix_space");
  if (is_set(prefix) && !prefix->boolean()) {
    if (node.find("prepend_scheme") && step.prepend != MetaspaceStep::Prepend::never)
      fail("{} is false, but the prepend_scheme is \"{}\"", prefix->where(), node.at("prepend_scheme").string());
    step.prepend = MetaspaceStep::Prepend::never;
  }
  if (const auto split = node.find("split"); is_set(split)) step.split = split->boolean();
  return step;
}

std::size_t read_count(const JsonNode& node) { return static_cast<std::size_t>(node.id(1 << 20)); }

}  // namespace

std::vector<NormalizeStep> read_normalizers(const JsonNode& node) {
  constexpr std::array<std::pair<std::string_view, NormalForm>, 4> forms = {
      {{"NFC", NormalForm::nfc}, {"NFD", NormalForm::nfd}, {"NFKC", NormalForm::nfkc}, {"NFKD", NormalForm::nfkd}}};
  std::vector<NormalizeStep> steps;
  for_each_stage(node, "normalizers", [&](const JsonNode& stage) {
    const std::string_view type = type_of(stage);
    const auto form = std::find_if(forms.begin(), forms.end(), [&](const auto& known) { return known.first == type; });
    NormalizeStep step{NormalizeStep::Kind::form};
    step.where = stage.where();
    if (form != forms.end()) {
      stage.allow_only({"type"});
      step.form = form->second;
    } else if (type == "Prepend") {
      stage.allow_only({"type", "prepend"});
      step.kind = NormalizeStep::Kind::prepend;
      step.content = stage.at("prepend").string();
    } else if (type == "Replace") {
      stage.allow_only({"type", "pattern", "content"});
      Pattern pattern = read_pattern(stage);
      step.kind = NormalizeStep::Kind::replace;
      step.pattern = std::move(pattern.text);
      step.is_regex = pattern.is_regex;
      step.where = std::move(pattern.where);
      step.content = stage.at("content").string();
    } else if (type == "Strip") {
      stage.allow_only({"type", "strip_left", "strip_right"});
      step.kind = NormalizeStep::Kind::strip;
      step.left = stage.flag("strip_left");
      step.right = stage.flag("strip_right");
    } else {
      refuse_type(stage, "NFC, NFD, NFKC, NFKD, Prepend, Replace or Strip");
    }
    steps.push_back(std::move(step));
  });
  return steps;
}

std::vector<PreTokenizeStep> read_pre_tokenizers(const JsonNode& node) {
  std::vector<PreTokenizeStep> steps;
  bool byte_level = false;
  for_each_stage(node, "pretokenizers", [&](const JsonNode& stage) {
    if (byte_level) fail("{}: a stage behind ByteLevel is not supported", stage.where());
    const std::string_view type = type_of(stage);
    if (type == "Split") {
      steps.emplace_back(read_split(stage));
    } else if (type == "Digits") {
      stage.allow_only({"type", "individual_digits"});
      const std::string_view pattern = stage.flag("individual_digits") ? each_digit_pattern : digit_runs_pattern;
      steps.emplace_back(SplitStep{std::string(pattern), true, SplitBehavior::Isolated, false, stage.where()});
    } else if (type == "Metaspace") {
      steps.emplace_back(read_metaspace(stage));
    } else if (type == "ByteLevel") {
      stage.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      steps.emplace_back(ByteLevelStep{stage.flag("add_prefix_space"), stage.flag("use_regex", true)});
      byte_level = true;
    } else {
      refuse_type(stage, "Split, Digits, Metaspace or ByteLevel");
    }
  });
  return steps;
}

std::vector<DecodeStep> read_decoders(const JsonNode& node) {
  constexpr double most_growth = 64;
  std::vector<DecodeStep> steps;
  bool fused = false;
  double growth = 1;
  for_each_stage(node, "decoders", [&](const JsonNode& stage) {
    const std::string_view type = type_of(stage);
    if (fused && type != "Strip" && type != "Fuse")
      fail("{}: a stage of type \"{}\" behind Fuse is not supported (Strip is)", stage.where(), type);
    DecodeStep step{DecodeStep::Kind::replace};
    if (type == "Replace") {
      stage.allow_only({"type", "pattern", "content"});
      Pattern pattern = read_pattern(stage);
      if (pattern.is_regex) fail("{}: a decoder's pattern must be a \"String\"", pattern.where);
      step.pattern = std::move(pattern.text);
      step.content = stage.at("content").string();
      growth *= std::max(1.0, static_cast<double>(step.content.size()) / static_cast<double>(step.pattern.size()));
      if (growth > most_growth)
        fail("{}: the decoder can make a text more than {} times as long; this program does not read such tokenizers",
             stage.where(), most_growth);
    } else if (type == "ByteFallback") {
      stage.allow_only({"type"});
      step.kind = DecodeStep::Kind::byte_fallback;
    } else if (type == "Fuse") {
      stage.allow_only({"type"});
      if (std::exchange(fused, true)) return;
      step.kind = DecodeStep::Kind::fuse;
    } else if (type == "Strip") {
      stage.allow_only({"type", "content", "start", "stop"});
      step.kind = DecodeStep::Kind::strip;
      step.pattern = read_character(stage.at("content"));
      step.count = read_count(stage.at("start"));
      if (read_count(stage.at("stop")) != 0)
        fail("{}.stop must be 0: stripping the end is not supported", stage.where());
    } else if (type == "Metaspace") {
      const MetaspaceStep metaspace = read_metaspace(stage);
      step.kind = DecodeStep::Kind::metaspace;
      step.pattern = metaspace.replacement;
      step.drop_first = metaspace.prepend != MetaspaceStep::Prepend::never;
    } else {
      refuse_type(stage, "Replace, ByteFallback, Fuse, Strip or Metaspace");
    }
    steps.push_back(std::move(step));
  });
  return steps;
}

// Without a decoder the library puts blanks between tokens. No byte-level model means that: the pre-tokenizer, which is
// ByteLevel, says how its words are undone.
void check_byte_level_decoder(const JsonNode& node) {
  int stages = 0;
  for_each_stage(node, "decoders", [&](const JsonNode& stage) {
    if (type_of(stage) != "ByteLevel") refuse_type(stage, "ByteLevel");
    ++stages;
  });
  if (stages != 1) fail("{} has {} ByteLevel stages instead of one", node.where(), stages);
}

}  // namespace so
