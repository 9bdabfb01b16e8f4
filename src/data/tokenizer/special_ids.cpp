#include "data/tokenizer/special_ids.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "data/tokenizer/json_reader.h"
#include "data/tokenizer/vocabulary.h"

namespace so {
namespace {

constexpr std::uint64_t max_special_file_bytes = 64'000'000;  // chat templates and a thousand added tokens

using Find = std::function<std::int32_t(std::string_view)>;

// "<|eos|>" or {"content": "<|eos|>", ...}. Of a token that nothing here needs, one that tokenizer.json does not have
// is none.
std::optional<std::int32_t> id_of_token(const JsonNode& node, const Find& find, bool needed) {
  if (node.is_null()) return std::nullopt;
  const std::string_view token = node.is_object() ? node.at("content").string() : node.string();
  const std::int32_t id = find(token);
  if (id < 0 && !needed) return std::nullopt;
  if (id < 0) fail("{}: the token \"{}\" is not in tokenizer.json", node.where(), printable(token));
  return id;
}

// An id or, for eos, a list of them: the first counts.
std::optional<std::int32_t> id_of_number(const JsonNode& node, const std::function<bool(std::int32_t)>& has_id,
                                         bool needed) {
  if (node.is_null()) return std::nullopt;
  std::optional<std::int32_t> id;
  if (node.is_array()) {
    const JsonArray list = node.array();
    if (list.size() != 0) id = node.element(list.at(0), 0).id(Vocabulary::max_vocabulary);
  } else if (node.number() != -1) {  // a spelling of "none"
    id = node.id(Vocabulary::max_vocabulary);
  }
  if (id && !needed && !has_id(*id)) return std::nullopt;
  if (id && !has_id(*id)) fail("{}: the id {} has no token in tokenizer.json", node.where(), *id);
  return id;
}

// transformers adds tokens that only this table has; ids would then depend on who reads the directory.
void check_added_tokens(const JsonNode& table, const Find& find) {
  for (const auto field : table.object()) {
    std::int32_t id = -1;
    const auto parsed = std::from_chars(field.key.data(), field.key.data() + field.key.size(), id);
    if (parsed.ec != std::errc() || parsed.ptr != field.key.data() + field.key.size())
      fail("{}: \"{}\" is not an id", table.where(), field.key);
    const JsonNode token(field.value, table.file(), "added_tokens_decoder." + std::string(field.key));
    const std::string_view content = token.at("content").string();
    if (const std::int32_t found = find(content); found != id) {
      fail("{}: the token \"{}\" {} in tokenizer.json; the two files do not belong together", token.where(), content,
           found < 0 ? std::string("is not") : "has id " + std::to_string(found));
    }
  }
}

struct Role {
  std::string_view token_key;
  std::string_view id_key;
  std::optional<std::int32_t> SpecialIds::*id;
  bool needed;  // training text ends with it
};
constexpr std::array roles = {Role{"bos_token", "bos_token_id", &SpecialIds::bos, false},
                              Role{"eos_token", "eos_token_id", &SpecialIds::eos, true},
                              Role{"pad_token", "pad_token_id", &SpecialIds::pad, false}};

}  // namespace

namespace {

// In config.json of a model of text and more they may stand with what else is the text model's.
std::optional<JsonNode> find_ends(const JsonNode& root) {
  constexpr auto key = "eos_token_id";
  if (const auto ends = root.find(key)) return ends;
  const auto text = root.find("text_config");
  return text && text->is_object() ? text->find(key) : std::nullopt;
}

// The ids at which generation ends: one, or a list of them. What is no id ends nothing.
std::vector<std::int32_t> ends_of(const JsonNode& node) {
  std::vector<std::int32_t> ends;
  const auto append = [&](JsonElement one) {
    std::int64_t id = -1;
    if (!one.get(id) && id >= 0 && id < Vocabulary::max_vocabulary) ends.push_back(static_cast<std::int32_t>(id));
  };
  if (node.is_array())
    for (const JsonElement element : node.array()) append(element);
  else
    append(node.element());
  return ends;
}

}  // namespace

namespace {

// Classes of which transformers leaves tokenizer.json as it is, and those that do so where it is a model on bytes.
// The others write the step that puts a blank before a text anew.
bool heeds_prefix_space(std::string_view name, bool on_bytes) {
  if (name.ends_with("Fast")) name.remove_suffix(4);
  constexpr std::array as_is = {"", "PreTrainedTokenizer", "TokenizersBackend", "Gemma", "GemmaTokenizer"};
  constexpr std::array on_characters = {"LlamaTokenizer", "CodeLlamaTokenizer"};
  const auto is_in = [name](const auto& names) { return std::find(names.begin(), names.end(), name) != names.end(); };
  return !is_in(as_is) && on_bytes != is_in(on_characters);
}

void read_class_settings(const JsonNode& root, bool on_bytes, SpecialIds& ids) {
  const auto flag = [&root](std::string_view key) -> std::optional<bool> {
    const auto node = root.find(key);
    if (!node || node->is_null()) return std::nullopt;
    return node->boolean();
  };
  ids.split_special_tokens = flag("split_special_tokens").value_or(false);
  const auto name = root.find("tokenizer_class");
  if (const auto blank = flag("add_prefix_space");
      blank && heeds_prefix_space(name && name->is_string() ? name->string() : std::string_view(), on_bytes))
    ids.add_prefix_space = blank;
}

}  // namespace

SpecialIds read_special_ids(const std::filesystem::path& directory, const Find& find,
                            const std::function<bool(std::int32_t)>& has_id, bool on_bytes) {
  SpecialIds ids;
  std::array<bool, roles.size()> decided{};
  bool ends_decided = false;
  for (const std::string_view name :
       {"tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "config.json"}) {
    const std::filesystem::path path = directory / name;
    if (!path_exists(path)) continue;
    const std::string file = printable_path(path);
    simdjson::dom::parser parser;
    const JsonNode root = parse_json(parser, read_text_file(path, max_special_file_bytes), file);
    const bool has_numbers = name == "generation_config.json" || name == "config.json";
    if (const auto ends = find_ends(root); has_numbers && ends && !std::exchange(ends_decided, true))
      ids.ends = ends_of(*ends);
    if (name == "config.json") continue;
    for (std::size_t i = 0; i < roles.size(); ++i) {
      const auto node = root.find(has_numbers ? roles[i].id_key : roles[i].token_key);
      if (!node || decided[i]) continue;
      decided[i] = true;
      ids.*roles[i].id =
          has_numbers ? id_of_number(*node, has_id, roles[i].needed) : id_of_token(*node, find, roles[i].needed);
    }
    if (name == "tokenizer_config.json") {
      read_class_settings(root, on_bytes, ids);
      const auto table = root.find("added_tokens_decoder");
      if (table && !table->is_null()) check_added_tokens(*table, find);
    }
  }
  if (ids.eos && std::find(ids.ends.begin(), ids.ends.end(), *ids.eos) == ids.ends.end()) ids.ends.push_back(*ids.eos);
  return ids;
}

}  // namespace so
