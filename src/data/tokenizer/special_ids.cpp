#include "data/tokenizer/special_ids.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "data/tokenizer/json_reader.h"
#include "data/tokenizer/vocabulary.h"

namespace so {
namespace {

using Find = std::function<std::int32_t(std::string_view)>;

// "<|eos|>" or {"content": "<|eos|>", ...}
std::optional<std::int32_t> id_of_token(const JsonNode& node, const Find& find) {
  if (node.is_null()) return std::nullopt;
  const std::string_view token = node.is_object() ? node.at("content").string() : node.string();
  const std::int32_t id = find(token);
  if (id < 0) fail("{}: the token \"{}\" is not in tokenizer.json", node.where(), token);
  return id;
}

// An id or, for eos, a list of them: the first counts.
std::optional<std::int32_t> id_of_number(const JsonNode& node, const std::function<bool(std::int32_t)>& has_id) {
  if (node.is_null()) return std::nullopt;
  std::optional<std::int32_t> id;
  if (node.is_array()) {
    const JsonArray list = node.array();
    if (list.size() != 0) id = node.element(list.at(0), 0).id(Vocabulary::max_vocabulary);
  } else if (node.number() != -1) {  // a spelling of "none"
    id = node.id(Vocabulary::max_vocabulary);
  }
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
};
constexpr std::array roles = {Role{"bos_token", "bos_token_id", &SpecialIds::bos},
                              Role{"eos_token", "eos_token_id", &SpecialIds::eos},
                              Role{"pad_token", "pad_token_id", &SpecialIds::pad}};

}  // namespace

std::string read_text_file(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) fail("cannot open {}: {}", file.string(), std::strerror(errno));
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (in.bad()) fail("cannot read {}: {}", file.string(), std::strerror(errno));
  return text;
}

SpecialIds read_special_ids(const std::filesystem::path& directory, const Find& find,
                            const std::function<bool(std::int32_t)>& has_id) {
  SpecialIds ids;
  std::array<bool, roles.size()> decided{};
  for (const char* const name : {"tokenizer_config.json", "special_tokens_map.json", "generation_config.json"}) {
    const std::filesystem::path path = directory / name;
    if (!std::filesystem::exists(path)) continue;
    const std::string file = path.string();
    simdjson::dom::parser parser;
    const std::string text = read_text_file(path);
    const JsonNode root = parse_json(parser, text, file);
    const bool has_numbers = std::string_view(name) == "generation_config.json";
    for (std::size_t i = 0; i < roles.size(); ++i) {
      const auto node = root.find(has_numbers ? roles[i].id_key : roles[i].token_key);
      if (!node || decided[i]) continue;
      decided[i] = true;
      ids.*roles[i].id = has_numbers ? id_of_number(*node, has_id) : id_of_token(*node, find);
    }
    if (std::string_view(name) == "tokenizer_config.json") {
      const auto table = root.find("added_tokens_decoder");
      if (table && !table->is_null()) check_added_tokens(*table, find);
    }
  }
  return ids;
}

}  // namespace so
