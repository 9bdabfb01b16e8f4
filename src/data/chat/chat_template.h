// A model's chat template, as transformers finds it in a model directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace so {

// Reference: what transformers' AutoTokenizer passes to a template. Templates are Jinja; chat_renderer.h renders them.
struct ChatTemplate {
  std::string text;
  std::optional<std::string> tool_text;  // for conversations with tools, where the model has one of its own
  std::string source;                    // the file, for messages
  std::vector<std::pair<std::string, std::string>> variables;  // bos_token, eos_token, ...: the named special tokens
  std::vector<std::string> special_tokens;                     // of which one may end a turn
  std::vector<std::string> stop_tokens;                        // at which generation stops
  std::optional<std::string> now;  // what strftime_now tells instead of the time, as 2026-01-31T12:00:00; for tests

  // Changes with whatever may change the rendered text, but for the time.
  std::uint64_t fingerprint() const;
};

// The templates of chat_template.jinja and additional_chat_templates/*.jinja, else those of "chat_template" in
// tokenizer_config.json, a text or a list of named ones; of named ones "default", and "tool_use" where there are tools.
// Nothing if the directory has none. The lists of tokens are the caller's to fill. Throws Error naming file and key.
std::optional<ChatTemplate> find_chat_template(const std::filesystem::path& directory);

// What --chat_template gives instead.
struct GivenTemplate {
  ChatTemplate chat;
  bool is_own = false;              // one of the program's: a document's first token has to be put before it
  std::vector<std::string> tokens;  // special ones that it needs; the last of them ends a turn
};

// `value`: a file of Jinja, or "chatml" or "alpaca", which are the program's own. The named tokens are still the
// directory's. Throws Error naming the option.
GivenTemplate given_chat_template(const std::string& value, const std::filesystem::path& directory);

}  // namespace so
