// The files beside tokenizer.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace so {

struct SpecialIds {
  std::optional<std::int32_t> bos;
  std::optional<std::int32_t> eos;
  std::optional<std::int32_t> pad;
  std::vector<std::int32_t> ends;  // generation stops at any of them: eos and what generation_config.json lists

  // Of tokenizer_config.json, as transformers reads it beside a tokenizer.json.
  bool split_special_tokens = false;  // special tokens inside texts are ordinary text
  // Where the tokenizer's class has its say about a blank before a text; where it has none this is empty.
  std::optional<bool> add_prefix_space;
};

// Reads tokenizer_config.json, special_tokens_map.json, generation_config.json and config.json, each optional, as told
// in tokenizer.h. `find`: a token's id, -1 if there is none; a token without one is an Error. `has_id`: whether an id
// has a token. `on_bytes`: of which kind tokenizer.json's model is.
SpecialIds read_special_ids(const std::filesystem::path& directory,
                            const std::function<std::int32_t(std::string_view)>& find,
                            const std::function<bool(std::int32_t)>& has_id, bool on_bytes);

}  // namespace so
