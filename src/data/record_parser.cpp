#include <simdjson.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"
#include "data/chat/chat_record.h"
#include "data/record_keys.h"
#include "data/records.h"
#include "data/token_record.h"

namespace so {
namespace {

namespace dom = simdjson::dom;

// Tables that are written as records have null where a record lacks a column.
std::optional<dom::element> unless_null(const dom::element& value) {
  return value.is_null() ? std::nullopt : std::optional(value);
}

// The values that the record has for the keys that mean something.
struct Fields {
  std::optional<dom::element> instruction, input, output, text, input_ids;
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
  RecordNotes notes;

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
    if (text.find(half_pair) != std::string_view::npos)
      refuse(raw, "\"{}\" holds half of a surrogate pair (\\ud800 to \\udfff); remove it", key);
    return std::string(text);
  }

  // What throws without a location.
  template <class Work>
  void located(const RawRecord& raw, const Work& work) const {
    try {
      work();
    } catch (const Error& error) {
      refuse(raw, "{}", error.what());
    }
  }

  // Whether it is a conversation; if so, one that is well formed.
  bool is_chat(const RawRecord& raw, const Fields& fields) {
    const bool of_prompt = !fields.messages && !fields.conversations && !fields.instruction && fields.prompt &&
                           fields.completion && fields.prompt->is_array();
    if (!fields.messages && !fields.conversations && !of_prompt) return false;
    located(raw, [&] {
      if (of_prompt) {
        check_messages(*fields.prompt, "prompt", notes);
        check_messages(*fields.completion, "completion", notes);
      } else {
        check_messages(fields.messages ? *fields.messages : *fields.conversations,
                       fields.messages ? "messages" : "conversations", notes);
      }
      if (fields.tools) check_tools(*fields.tools);
    });
    if (fields.system && !fields.system->is_string() && !fields.system->is_null())
      refuse(raw, "\"system\" is {}; it must be a string", type_of(*fields.system));
    return true;
  }

  Record record_of(const RawRecord& raw, const dom::object& object) {
    const Fields fields(object);
    if (fields.input_ids) {
      TokenRecord tokens;
      located(raw, [&] { tokens = token_record(object, vocabulary_size); });
      return tokens;
    }
    if (is_chat(raw, fields)) return ChatRecord{raw.json};
    if (fields.instruction && (fields.output || conversion_hint(object, {}, false).empty())) {
      for (const auto& [key, value] : {std::pair("system", fields.system), std::pair("history", fields.history)})
        if (value && !says_nothing(*value))
          refuse(raw, "the record has \"{}\", for which the Alpaca prompt has no place; make it a conversation{}", key,
                 raw.row < 0 ? conversion_hint(object, file_name, raw.element >= 0) : "");
      AlpacaRecord record;
      record.instruction = string_of(raw, "instruction", fields.instruction);
      if (fields.input && !fields.input->is_null()) record.input = string_of(raw, "input", fields.input);
      record.output = string_of(raw, "output", fields.output);
      return record;
    }
    if (fields.prompt && fields.completion)
      return PromptRecord{string_of(raw, "prompt", fields.prompt), string_of(raw, "completion", fields.completion)};
    if (fields.text) return TextRecord{string_of(raw, "text", fields.text)};
    refuse(raw,
           "the record has none of the keys \"messages\", \"conversations\", \"instruction\" (with \"output\"), "
           "\"prompt\" (with \"completion\"), \"text\" and \"input_ids\"{}",
           raw.row < 0 ? conversion_hint(object, file_name, raw.element >= 0) : "");
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

  Record record = s.record_of(raw, object);
  s.located(raw, [&] { check_record_keys(object, format_of(record), s.notes); });
  if (const auto* tokens = std::get_if<TokenRecord>(&record); tokens != nullptr && tokens->ends.size() > 1)
    s.notes.note(NoteKind::packed_row);
  s.notes.end_record();
  return record;
}

const RecordNotes& RecordParser::notes() const { return state_->notes; }

}  // namespace so
