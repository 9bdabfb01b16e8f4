#include "data/chat/chat_record.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"
#include "data/record_keys.h"

namespace so {
namespace {

namespace dom = simdjson::dom;

// The last value of a key, as in Python.
std::optional<dom::element> find(const dom::object& object, std::string_view wanted) {
  std::optional<dom::element> found;
  for (const auto& [key, value] : object)
    if (key == wanted) found = value;
  return found;
}

std::optional<std::string_view> text_of(const std::optional<dom::element>& value) {
  std::string_view text;
  if (!value || value->get_string().get(text) != simdjson::SUCCESS) return std::nullopt;
  return text;
}

void require_plain_text(std::string_view text, std::string_view where) {
  if (text.find('\0') != std::string_view::npos) fail("{} holds a NUL character (\\u0000); remove it", where);
  if (text.find(half_pair) != std::string_view::npos)
    fail("{} holds half of a surrogate pair (\\ud800 to \\udfff); remove it", where);
}

void check_part(const dom::element& part, std::string_view where) {
  std::string_view plain;
  if (part.get_string().get(plain) == simdjson::SUCCESS) return require_plain_text(plain, where);
  dom::object object;
  if (part.get_object().get(object) != simdjson::SUCCESS)
    fail("{} has a part that is neither a text nor an object", where);
  const auto type = text_of(find(object, "type"));
  const auto text = text_of(find(object, "text"));
  if (type && *type != "text" && *type != "input_text" && *type != "output_text")
    fail("{} has a part of type \"{}\"; only text is trained on: remove the part, or the record", where,
         printable(*type, 40));
  for (const std::string_view key :
       {"image", "images", "image_url", "video", "video_url", "audio", "audio_url", "input_audio"})
    if (const auto other = find(object, key); other && !says_nothing(*other))
      fail("{} has a part with \"{}\"; only text is trained on: remove the part, or the record", where, key);
  if (!text) fail("{} has a part without \"text\"", where);
  require_plain_text(*text, where);
}

void check_content(const dom::element& content, const std::string& where) {
  dom::array parts;
  if (const auto text = text_of(content)) return require_plain_text(*text, where);
  if (content.get_array().get(parts) != simdjson::SUCCESS)
    fail("{} must be a string or a list of text parts {{\"type\": \"text\", \"text\": ...}}", where);
  for (const dom::element part : parts) check_part(part, where);
}

// OpenAI's form of a call before "tool_calls".
void check_function_call(const dom::element& call, const std::string& where) {
  dom::object function;
  if (call.get_object().get(function) != simdjson::SUCCESS || !text_of(find(function, "name")))
    fail("{}: \"function_call\" must be an object {{\"name\": ..., \"arguments\": ...}}", where);
}

void check_calls(const dom::element& calls, const std::string& where) {
  dom::array list;
  if (calls.get_array().get(list) != simdjson::SUCCESS) fail("{} must be a list of calls", where);
  for (const dom::element call : list) {
    dom::object object, function;
    if (call.get_object().get(object) != simdjson::SUCCESS) fail("{} must be a list of objects", where);
    const auto inner = find(object, "function");
    if (!inner)
      function = object;
    else if (inner->get_object().get(function) != simdjson::SUCCESS)
      fail("{}: \"function\" must be an object {{\"name\": ..., \"arguments\": ...}}", where);
    if (!text_of(find(function, "name"))) fail("{}: a call has no \"name\"", where);
  }
}

constexpr std::array<std::string_view, 9> sharegpt_roles = {"human",     "user",   "gpt",  "chatgpt",    "model",
                                                            "assistant", "system", "tool", "observation"};

void check_sharegpt(const dom::object& message, const std::string& where) {
  const auto from = text_of(find(message, "from"));
  if (!from) fail("{}: \"from\" must be a string", where);
  if (std::find(sharegpt_roles.begin(), sharegpt_roles.end(), *from) == sharegpt_roles.end())
    fail(
        "{} is from \"{}\"; known are human, gpt, system and observation (and their other names user, chatgpt, model, "
        "assistant, tool). Calls of functions are read from \"messages\" with \"tool_calls\"",
        where, printable(*from, 40));
  const auto value = find(message, "value");
  if (!value) fail("{} has no \"value\"", where);
  check_content(*value, where + ": \"value\"");
}

void check_message(const dom::object& message, const std::string& where) {
  const auto role = find(message, "role");
  if (!role && find(message, "from")) return check_sharegpt(message, where);
  if (!role) fail("{} has neither \"role\" (with \"content\") nor \"from\" (with \"value\")", where);
  const auto name = text_of(role);
  if (!name || name->empty()) fail("{}: \"role\" must be a string, as \"user\" or \"assistant\"", where);
  if (*name == "tool_call" || *name == "function_call")
    fail("{} has the role \"{}\"; calls of functions are read from \"tool_calls\" of a message of the assistant", where,
         *name);
  const auto calls = find(message, "tool_calls");
  const bool has_calls = calls && !calls->is_null();
  if (has_calls) check_calls(*calls, where + ": \"tool_calls\"");
  const auto call = find(message, "function_call");
  const bool has_call = call && !says_nothing(*call);
  if (has_call) check_function_call(*call, where);
  if (has_call && has_calls && !says_nothing(*calls))
    fail("{} has \"tool_calls\" and \"function_call\", the older form of one; remove the latter", where);
  if (const auto content = find(message, "content"); content && !content->is_null())
    check_content(*content, where + ": \"content\"");
  else if (!has_calls && !has_call)
    fail("{} has no \"content\"", where);
  for (const std::string_view key : {"reasoning_content", "thinking", "reasoning"})
    if (const auto text = find(message, key); text && !text->is_null() && !text->is_string())
      fail("{}: \"{}\" must be a string", where, key);
}

struct Foreign {
  std::vector<std::string_view> keys;  // that such a record has
  std::string_view filter;             // of jq, which makes a known record of it
  std::string_view remark = "convert the file";
};

const std::vector<Foreign>& foreign_records() {
  static const std::vector<Foreign> known = {
      // LLaMA-Factory's Alpaca, with what the Alpaca prompt has no place for.
      {{"instruction", "output"},
       "{messages: ([.system // \"\" | select(. != \"\") | {role: \"system\", content: .}] + [.history // [] | .[] | "
       "{role: \"user\", content: .[0]}, {role: \"assistant\", content: .[1]}] + [{role: \"user\", content: "
       "([.instruction, .input // \"\"] | map(select(. != \"\")) | join(\"\\n\"))}, {role: \"assistant\", content: "
       ".output}])}"},
      {{"instruction", "response"}, R"({instruction, input: (.context // .input // ""), output: .response})"},
      {{"instruction", "completion"}, "{instruction, output: .completion}"},
      {{"chosen", "rejected"},
       "{messages: (if .chosen | type == \"array\" then .chosen else [{role: \"user\", content: .prompt}, "
       "{role: \"assistant\", content: .chosen}] end)}",
       "these are preferences, and there is no preference training (DPO, ORPO) here. To train on the chosen answers "
       "alone, as on any others, convert the file"},
      {{"prompt", "response"}, "{prompt, completion: .response}"},
      {{"prompt", "answer"}, "{prompt, completion: .answer}"},
      {{"prompt", "output"}, "{prompt, completion: .output}"},
      {{"question", "answer"},
       "{messages: [{role: \"user\", content: .question}, {role: \"assistant\", content: .answer}]}"},
      {{"question", "response"},
       "{messages: [{role: \"user\", content: .question}, {role: \"assistant\", content: .response}]}"},
      {{"query", "response"},
       "{messages: [{role: \"user\", content: .query}, {role: \"assistant\", content: .response}]}"},
      {{"query", "answer"}, "{messages: [{role: \"user\", content: .query}, {role: \"assistant\", content: .answer}]}"},
      {{"problem", "solution"},
       "{messages: [{role: \"user\", content: .problem}, {role: \"assistant\", content: .solution}]}"},
      {{"inputs", "targets"}, "{prompt: .inputs, completion: .targets}"},
      {{"input", "output"}, "{prompt: .input, completion: .output}"},
      {{"source", "target"}, "{prompt: .source, completion: .target}"},
      {{"human", "assistant"},
       "{messages: [{role: \"user\", content: .human}, {role: \"assistant\", content: .assistant}]}"},
      {{"user", "assistant"},
       "{messages: [{role: \"user\", content: .user}, {role: \"assistant\", content: .assistant}]}"},
      {{"conversation"},
       "{messages: [.conversation[] | if has(\"role\") or has(\"from\") then . else (.system // \"\" | select(. != "
       "\"\") | {role: \"system\", content: .}), {role: \"user\", content: (.human // .input)}, {role: \"assistant\", "
       "content: (.assistant // .output)} end]}"},
      {{"dialog"}, "{messages: .dialog}"},
      {{"dialogue"}, "{messages: .dialogue}"},
      {{"chat"}, "{messages: .chat}"},
      {{"content"}, "{text: .content}"},
  };
  return known;
}

}  // namespace

void check_messages(const dom::element& messages, std::string_view key, RecordNotes& notes) {
  dom::array list;
  if (messages.is_string())
    fail("\"{}\" is a string; it must be a list of messages. Where it is JSON: jq -c '.{} |= fromjson' FILE > NEW", key,
         key);
  if (messages.get_array().get(list) != simdjson::SUCCESS) fail("\"{}\" must be a list of messages", key);
  std::size_t number = 0;
  for (const dom::element message : list) {
    const std::string where = fmt::format("message {} of \"{}\"", ++number, key);
    dom::object object;
    if (message.get_object().get(object) != simdjson::SUCCESS)
      fail("{} must be an object {{\"role\": ..., \"content\": ...}}", where);
    check_message(object, where);
    try {
      check_message_keys(object, notes);
    } catch (const Error& error) {
      fail("{}: {}", where, error.what());
    }
  }
  if (number == 0) fail("\"{}\" is empty; remove the record", key);
}

void check_tools(const dom::element& tools) {
  if (tools.is_null()) return;
  dom::element list = tools;
  dom::parser parser;
  if (const auto text = text_of(tools)) {
    if (text->empty()) return;
    if (parser.parse(text->data(), text->size()).get(list) != simdjson::SUCCESS)
      fail("\"tools\" is a string that is not JSON");
  }
  dom::array array;
  bool objects = list.get_array().get(array) == simdjson::SUCCESS;
  if (objects) objects = std::all_of(array.begin(), array.end(), [](const dom::element& t) { return t.is_object(); });
  if (!objects) fail("\"tools\" must be a list of functions, each an object, or the same as a string of JSON");
}

std::string conversion_hint(const dom::object& record, std::string_view file_name, bool in_array) {
  for (const Foreign& foreign : foreign_records()) {
    const bool has_all = std::all_of(foreign.keys.begin(), foreign.keys.end(),
                                     [&](std::string_view key) { return find(record, key).has_value(); });
    if (has_all)
      return fmt::format("; {}: jq -c '{}{}' {} > converted.jsonl", foreign.remark, in_array ? ".[] | " : "",
                         foreign.filter, printable(file_name));
  }
  return {};
}

}  // namespace so
