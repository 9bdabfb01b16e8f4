#include <simdjson.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "data/chat/chat_record.h"
#include "data/records.h"

namespace so {
namespace {

namespace dom = simdjson::dom;

std::string_view type_of(const dom::element& value) {
  switch (value.type()) {
    case dom::element_type::ARRAY:
      return "an array";
    case dom::element_type::OBJECT:
      return "an object";
    case dom::element_type::STRING:
      return "a string";
    case dom::element_type::BOOL:
      return "a boolean";
    case dom::element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

// Null, "" or [].
bool is_empty(const dom::element& value) {
  std::string_view text;
  dom::array list;
  if (value.get_string().get(text) == simdjson::SUCCESS) return text.empty();
  if (value.get_array().get(list) == simdjson::SUCCESS) return list.size() == 0;
  return value.is_null();
}

// Tables that are written as records have null where a record lacks a column.
std::optional<dom::element> unless_null(const dom::element& value) {
  return value.is_null() ? std::nullopt : std::optional(value);
}

// The values that the record has for the keys that mean something.
struct Fields {
  std::optional<dom::element> instruction, input, output, text, input_ids, labels, attention_mask;
  std::optional<dom::element> messages, conversations, prompt, completion, tools, system, history;

  explicit Fields(const dom::object& object) {
    for (const auto& [key, value] : object) {
      if (key == "instruction")
        instruction = value;
      else if (key == "input")
        input = value;
      else if (key == "output")
        output = value;
      else if (key == "text")
        text = value;
      else if (key == "input_ids")
        input_ids = value;
      else if (key == "labels")
        labels = value;
      else if (key == "attention_mask")
        attention_mask = value;
      else if (key == "messages")
        messages = unless_null(value);
      else if (key == "conversations")
        conversations = unless_null(value);
      else if (key == "prompt")
        prompt = unless_null(value);
      else if (key == "completion")
        completion = unless_null(value);
      else if (key == "tools")
        tools = value;
      else if (key == "system")
        system = value;
      else if (key == "history")
        history = value;
    }
  }
};

}  // namespace

RecordFormat format_of(const Record& record) { return static_cast<RecordFormat>(record.index()); }

std::string_view name_of(RecordFormat format) {
  switch (format) {
    case RecordFormat::alpaca:
      return "Alpaca";
    case RecordFormat::text:
      return "text";
    case RecordFormat::token_ids:
      return "token id";
    case RecordFormat::prompt:
      return "prompt";
    case RecordFormat::chat:
      return "chat";
  }
  SO_BUG("record format {}", static_cast<int>(format));
}

struct RecordParser::State {
  State(std::string name, std::int32_t size) : file_name(std::move(name)), vocabulary_size(size) {}

  std::string file_name;
  std::int32_t vocabulary_size;
  dom::parser parser;
  std::string padded;  // simdjson reads up to SIMDJSON_PADDING bytes beyond the end

  template <class... Args>
  [[noreturn]] void refuse(const RawRecord& raw, fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}: {}", location_of(file_name, raw), fmt::format(format, std::forward<Args>(args)...));
  }

  std::string string_of(const RawRecord& raw, std::string_view key, const std::optional<dom::element>& value) const {
    if (!value) refuse(raw, "the record has no \"{}\"", key);
    std::string_view text;
    if (value->get_string().get(text) != simdjson::SUCCESS)
      refuse(raw, "\"{}\" is {}; it must be a string", key, type_of(*value));
    if (text.find('\0') != std::string_view::npos)
      refuse(raw, "\"{}\" holds a NUL character (\\u0000); remove it", key);
    return std::string(text);
  }

  std::vector<std::int32_t> ids_of(const RawRecord& raw, std::string_view key, const dom::element& value,
                                   bool may_be_ignored) const {
    dom::array array;
    if (value.get_array().get(array) != simdjson::SUCCESS)
      refuse(raw, "\"{}\" is {}; it must be an array of integers", key, type_of(value));
    std::vector<std::int32_t> ids;
    ids.reserve(array.size());
    for (const dom::element item : array) {
      std::int64_t id = 0;
      if (item.get_int64().get(id) != simdjson::SUCCESS)
        refuse(raw, "\"{}\"[{}] is {}; it must be a 32-bit integer", key, ids.size(),
               item.is_number() ? "not a whole number in range" : type_of(item));
      if (may_be_ignored && id == kIgnored) {
        ids.push_back(kIgnored);
        continue;
      }
      if (id < 0 || id >= vocabulary_size)
        refuse(raw, "\"{}\"[{}] is {}; token ids of this model are 0 to {}{}", key, ids.size(), id, vocabulary_size - 1,
               may_be_ignored ? ", -100 for a label that is not trained" : "");
      ids.push_back(static_cast<std::int32_t>(id));
    }
    return ids;
  }

  TokenRecord tokens_of(const RawRecord& raw, const Fields& fields) const {
    TokenRecord record;
    record.ids = ids_of(raw, "input_ids", *fields.input_ids, false);
    if (record.ids.empty()) refuse(raw, "\"input_ids\" is empty; remove the record");
    record.labels = fields.labels ? ids_of(raw, "labels", *fields.labels, true) : record.ids;
    if (record.labels.size() != record.ids.size())
      refuse(raw, "\"labels\" has {} entries, \"input_ids\" {}; there must be one label a token", record.labels.size(),
             record.ids.size());
    if (fields.attention_mask) {
      dom::array mask;
      if (fields.attention_mask->get_array().get(mask) == simdjson::SUCCESS) {
        for (const dom::element item : mask) {
          std::int64_t bit = 1;
          if (item.get_int64().get(bit) == simdjson::SUCCESS && bit == 0)
            refuse(raw, "\"attention_mask\" holds a 0: the record is padded; remove the padding, batches need none");
        }
      }
    }
    return record;
  }

  // Whether it is a conversation; if so, one that is well formed.
  bool is_chat(const RawRecord& raw, const Fields& fields) const {
    const bool of_prompt = !fields.messages && !fields.conversations && !fields.instruction && fields.prompt &&
                           fields.completion && fields.prompt->is_array();
    if (!fields.messages && !fields.conversations && !of_prompt) return false;
    try {
      if (of_prompt) {
        check_messages(*fields.prompt, "prompt");
        check_messages(*fields.completion, "completion");
      } else {
        check_messages(fields.messages ? *fields.messages : *fields.conversations,
                       fields.messages ? "messages" : "conversations");
      }
      if (fields.tools) check_tools(*fields.tools);
    } catch (const Error& error) {
      refuse(raw, "{}", error.what());
    }
    if (fields.system && !fields.system->is_string() && !fields.system->is_null())
      refuse(raw, "\"system\" is {}; it must be a string", type_of(*fields.system));
    return true;
  }
};

RecordParser::RecordParser(std::string file_name, std::int32_t vocabulary_size)
    : state_(std::make_unique<State>(std::move(file_name), vocabulary_size)) {}

RecordParser::~RecordParser() = default;

Record RecordParser::parse(const RawRecord& raw) {
  State& s = *state_;
  if (raw.json.find('\0') != std::string_view::npos)
    s.refuse(raw, "the record holds a NUL byte; is the file UTF-8 text?");
  const auto parse = [&s](std::string_view json, dom::element& root) {
    s.padded.assign(json);
    s.padded.append(simdjson::SIMDJSON_PADDING, ' ');
    return s.parser.parse(s.padded.data(), json.size(), false).get(root);
  };
  dom::element root;
  auto error = parse(raw.json, root);
  if (error != simdjson::SUCCESS) {
    if (const auto plain = with_plain_numbers(raw.json)) error = parse(*plain, root);
  }
  if (error != simdjson::SUCCESS) {
    if (error == simdjson::UTF8_ERROR) s.refuse(raw, "not valid UTF-8; convert the file to UTF-8");
    const std::string_view fix =
        raw.element < 0 ? "; a file that does not begin with [ holds one whole record a line" : "";
    s.refuse(raw, "not valid JSON: {}{}", simdjson::error_message(error), fix);
  }
  dom::object object;
  if (root.get_object().get(object) != simdjson::SUCCESS)
    s.refuse(raw, "the record is {}; it must be an object {{...}}", type_of(root));

  const Fields fields(object);
  if (fields.input_ids) return s.tokens_of(raw, fields);
  if (s.is_chat(raw, fields)) return ChatRecord{raw.json};
  if (fields.instruction && (fields.output || conversion_hint(object, {}, false).empty())) {
    for (const auto& [key, value] : {std::pair("system", fields.system), std::pair("history", fields.history)})
      if (value && !is_empty(*value))
        s.refuse(raw, "the record has \"{}\", for which the Alpaca prompt has no place; make it a conversation{}", key,
                 raw.row < 0 ? conversion_hint(object, s.file_name, raw.element >= 0) : "");
    AlpacaRecord record;
    record.instruction = s.string_of(raw, "instruction", fields.instruction);
    if (fields.input && !fields.input->is_null()) record.input = s.string_of(raw, "input", fields.input);
    record.output = s.string_of(raw, "output", fields.output);
    return record;
  }
  if (fields.prompt && fields.completion)
    return PromptRecord{s.string_of(raw, "prompt", fields.prompt), s.string_of(raw, "completion", fields.completion)};
  if (fields.text) return TextRecord{s.string_of(raw, "text", fields.text)};
  s.refuse(raw,
           "the record has none of the keys \"messages\", \"conversations\", \"instruction\" (with \"output\"), "
           "\"prompt\" (with \"completion\"), \"text\" and \"input_ids\"{}",
           raw.row < 0 ? conversion_hint(object, s.file_name, raw.element >= 0) : "");
}

}  // namespace so
