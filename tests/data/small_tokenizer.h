// A tokenizer.json that tests change.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "data/tokenizer/byte_level.h"

namespace so::test {

using Json = nlohmann::ordered_json;

// The 256 bytes, "he" (256), and an end token (257).
inline Json small_tokenizer() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[spell_bytes(std::string(1, static_cast<char>(byte)))] = byte;
  vocab["he"] = 256;
  return Json::parse(R"({"version": "1.0", "truncation": null, "padding": null, "normalizer": null,
      "added_tokens": [{"id": 257, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
                        "normalized": false, "special": true}],
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
      "post_processor": null,
      "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
      "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": )" +
                     vocab.dump() + R"(, "merges": ["h e"]}})");
}

inline std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace so::test
