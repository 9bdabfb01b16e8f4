#include "data/sample_prompts.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/json_tree.h"
#include "data/chat/conversation.h"
#include "data/example.h"
#include "data/records.h"
#include "data/tokenizer/utf8.h"

namespace so {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t max_file_bytes = 16 << 20;
constexpr std::string_view blank = " \t\r\n";

// An empty answer where a prompt stands alone, so that the record is one of those that are trained on; a "prompt" that
// is a list of messages is a conversation.
std::string as_record(std::string_view text) {
  Json record = json_tree<Json>(text);
  if (!record.is_object() || record.contains("messages") || record.contains("conversations")) return std::string(text);
  if (record.contains("instruction")) {
    record["output"] = "";
  } else if (record.contains("prompt") && record["prompt"].is_array()) {
    record["messages"] = record["prompt"];
    record.erase("prompt");
  } else if (record.contains("prompt")) {
    record["completion"] = "";
  }
  return record.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool ends_with_answer(std::string_view conversation) {
  const Json record = json_tree<Json>(conversation);
  if (!record.is_object()) return false;
  const auto turns = record.contains("messages") ? record.find("messages") : record.find("conversations");
  if (turns == record.end() || !turns->is_array() || turns->empty() || !turns->back().is_object()) return false;
  const Json& last = turns->back();
  const auto speaker = last.contains("role") ? last.find("role") : last.find("from");
  return speaker != last.end() && (*speaker == "assistant" || *speaker == "gpt" || *speaker == "model");
}

class PromptReader {
 public:
  PromptReader(const std::filesystem::path& file, const ModelEncoder& encoder)
      : name_(file.string()), encoder_(encoder), parser_(name_, encoder.vocabulary_size()) {}

  SamplePrompt of_text(std::string where, std::string text, bool adds_special_tokens = true) const {
    SamplePrompt prompt{std::move(where), std::move(text), {}};
    try {
      prompt.ids = encoder_.encode(prompt.text, adds_special_tokens);
    } catch (const Error& error) {
      fail("{}: {}", prompt.where, error.what());
    }
    if (prompt.ids.empty()) fail("{}: the prompt holds no token; give some text", prompt.where);
    return prompt;
  }

  SamplePrompt of_record(RawRecord raw) {
    const std::string where = location_of(name_, raw), completed = as_record(raw.json);
    raw.json = completed;
    const Record record = parser_.parse(raw);
    if (const auto* text = std::get_if<TextRecord>(&record)) return of_text(where, text->text);
    if (const auto* alpaca = std::get_if<AlpacaRecord>(&record)) return of_text(where, alpaca_prompt(*alpaca));
    if (const auto* prompt = std::get_if<PromptRecord>(&record))
      return of_conversation(where, conversation_record({{"user", prompt->prompt}}));
    const auto* chat = std::get_if<ChatRecord>(&record);
    if (chat == nullptr)
      fail("{}: a {} record is no prompt; give \"messages\", \"prompt\", \"instruction\" or \"text\"", where,
           name_of(format_of(record)));
    if (ends_with_answer(chat->json))
      fail("{}: the conversation ends with an answer, and what is generated is the next turn; remove its last message",
           where);
    return of_conversation(where, std::string(chat->json));
  }

 private:
  SamplePrompt of_conversation(const std::string& where, const std::string& record) {
    try {
      if (!renderer_) renderer_.emplace(encoder_.chat_template());
      return of_text(where, conversation_text(*renderer_, record), false);
    } catch (const Error& error) {
      fail("{}: {}", where, error.what());
    }
  }

  const std::string name_;
  const ModelEncoder& encoder_;
  RecordParser parser_;
  std::optional<ChatRenderer> renderer_;  // once there is a conversation
};

}  // namespace

std::vector<SamplePrompt> read_sample_prompts(const std::filesystem::path& file, const ModelEncoder& encoder) {
  const std::string all = read_text_file(file, max_file_bytes);
  const std::string_view content = without_mark(all);
  if (!is_valid_utf8(content)) fail("--sample_prompts {}: the file is no UTF-8", printable_path(file));
  std::vector<SamplePrompt> prompts;
  PromptReader reader(file, encoder);
  const std::size_t first = content.find_first_not_of(blank);
  if (first != content.npos && (content[first] == '{' || content[first] == '[')) {
    RecordReader records(file.string(), content);
    for (RawRecord raw; records.next(raw);) prompts.push_back(reader.of_record(raw));
  } else {
    std::int64_t line = 0;
    for (std::size_t begin = 0; begin < content.size();) {
      const std::size_t end = std::min(content.find('\n', begin), content.size());
      std::string text(content.substr(begin, end - begin));
      if (text.ends_with('\r')) text.pop_back();
      ++line;
      begin = end + 1;
      if (text.find_first_not_of(blank) == text.npos) continue;
      prompts.push_back(reader.of_text(fmt::format("{}:{}", file.string(), line), std::move(text)));
    }
  }
  if (prompts.empty()) fail("--sample_prompts {}: the file holds no prompt", printable_path(file));
  return prompts;
}

}  // namespace so
