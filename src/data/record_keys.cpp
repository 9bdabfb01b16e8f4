#include "data/record_keys.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "data/token_record.h"

namespace so {
namespace {

namespace dom = simdjson::dom;
using Keys = std::vector<std::string_view>;

template <class List>
bool is_among(const List& keys, std::string_view key) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}
bool is_in(std::initializer_list<std::string_view> keys, std::string_view key) { return is_among(keys, key); }
bool is_in(const Keys& keys, std::string_view key) { return is_among(keys, key); }

bool is_honoured(std::string_view key, RecordFormat format) {
  switch (format) {
    case RecordFormat::token_ids:
      return is_token_key(key);
    case RecordFormat::chat:
      return is_in({"messages", "conversations", "prompt", "completion", "system", "tools", "functions", "documents",
                    "chat_template_kwargs"},
                   key);
    case RecordFormat::alpaca:
      return is_in({"instruction", "input", "output"}, key);
    case RecordFormat::prompt:
      return is_in({"prompt", "completion"}, key);
    case RecordFormat::text:
      return key == "text";
  }
  return false;
}

// Beside any record: what tokenizers and trainers write that changes nothing here, what identifies or describes a
// record, and the records of other kinds that published data sets carry beside the one that is read.
const Keys harmless_keys = {"token_type_ids",
                            "special_tokens_mask",
                            "offset_mapping",
                            "overflow_to_sample_mapping",
                            "num_truncated_tokens",
                            "length",
                            "lengths",
                            "num_tokens",
                            "n_tokens",
                            "token_count",
                            "max_length_q",
                            "max_length_k",
                            "max_seqlen",
                            "max_seq_len",
                            "id",
                            "_id",
                            "uid",
                            "uuid",
                            "idx",
                            "index",
                            "row_id",
                            "__index_level_0__",
                            "prompt_id",
                            "conversation_id",
                            "conversation_hash",
                            "hash",
                            "source",
                            "sources",
                            "origin",
                            "dataset",
                            "dataset_name",
                            "data_source",
                            "subset",
                            "split",
                            "url",
                            "title",
                            "author",
                            "date",
                            "timestamp",
                            "created",
                            "created_at",
                            "category",
                            "categories",
                            "tag",
                            "tags",
                            "task",
                            "task_type",
                            "type",
                            "topic",
                            "domain",
                            "difficulty",
                            "lang",
                            "language",
                            "license",
                            "meta",
                            "metadata",
                            "extra_info",
                            "info",
                            "model",
                            "generator",
                            "score",
                            "scores",
                            "rating",
                            "quality",
                            "reward",
                            "turns",
                            "num_turns",
                            "channel",
                            "parallel_tool_calls",
                            "chosen",
                            "rejected",
                            "rejected_response",
                            "instruction",
                            "input",
                            "output",
                            "prompt",
                            "completion",
                            "text",
                            "messages",
                            "conversations"};

// ---- what is refused ----

constexpr std::string_view of_tokens =
    "counts tokens, and the record has no \"input_ids\"; tokenise the text too, or remove the key";
constexpr std::string_view only_text =
    "only text is trained on: remove the record, or the key if the text does without it";
constexpr std::string_view no_place =
    "this kind of record has no place for it; make the record a conversation (\"messages\")";
constexpr std::string_view whole_records =
    "records are trained on as they are, all with the same weight; remove the record, repeat it, or remove the key";

// What a rule lets pass, apart from what says nothing.
enum class Passing { nothing, one, not_false };

struct Rule {
  Keys keys;
  Passing passing;
  std::string_view why;
};

bool passes(const dom::element& value, Passing passing) {
  const auto number = number_of(value);
  switch (passing) {
    case Passing::nothing:
      return false;
    case Passing::one:
      return number == 1;
    case Passing::not_false:  // numbers and texts of that name are of another kind: classes, measurements
      return !value.is_bool() || number == 1;
  }
  return false;
}

const Keys media = {"images",  "image",        "videos",         "video",          "audios",       "audio",
                    "objects", "pixel_values", "image_grid_thw", "input_features", "inputs_embeds"};
const Keys token_masks = {"completion_mask", "assistant_masks", "assistant_mask",
                          "loss_mask",       "response_mask",   "labels_mask"};

const std::array rules_of_all = {
    Rule{media, Passing::nothing, only_text},
    Rule{{"weight", "weights", "loss_weight", "loss_weights", "sample_weight", "sample_weights", "example_weight"},
         Passing::one,
         whole_records},
    Rule{{"train", "training", "trainable", "loss"}, Passing::not_false, whole_records},
};

const std::array rules_of_tokens = {
    Rule{
        {"mask", "prompt_mask", "source_mask", "query_mask", "label_mask", "target_mask", "train_mask", "ignore_mask",
         "padding_mask", "key_padding_mask", "pad_mask", "user_mask"},
        Passing::nothing,
        "whether its ones are trained or left out cannot be told; name it \"loss_mask\", with 1 for what is trained, or "
        "put -100 into \"labels\""},
    Rule{{"token_weights", "decoder_input_ids", "decoder_attention_mask", "teacher_logits", "target_logits"},
         Passing::nothing,
         "a token is trained or not, and predicted by those before it; nothing else is done with it"},
};

const std::array rules_of_text = {
    Rule{token_masks, Passing::nothing, of_tokens},
    Rule{{"position_ids", "seq_lengths", "seq_lens", "cu_seqlens", "cu_seq_lens", "cu_seq_lens_q", "input_pos",
          "loss_scale"},
         Passing::nothing,
         of_tokens},
    Rule{{"system_prompt", "system_message"},
         Passing::nothing,
         "a system message is read from \"system\" beside \"messages\" or \"conversations\", or from the messages"},
};

const std::array rules_of_prompts = {
    Rule{{"history", "tools", "functions"}, Passing::nothing, no_place},
};
const std::array rules_of_system = {Rule{{"system"}, Passing::nothing, no_place}};
const std::array rules_of_chats = {
    Rule{{"history"}, Passing::nothing, "earlier turns are read from the messages alone; put them there"},
};
// TRL, LLaMA-Factory and ms-swift mark answers that are not wanted so.
const std::array rules_of_answers = {
    Rule{{"label", "kto_tag"},
         Passing::not_false,
         "the answer is one that is not wanted, and there is no preference training; remove the record"},
};

const std::array rules_of_messages = {
    Rule{media, Passing::nothing, only_text},
    Rule{{"train_detail", "training_detail", "train_details", "mask", "loss_weight"},
         Passing::nothing,
         "a message is trained as a whole or not at all; say that by \"train\": true or false"},
    Rule{{"eot"}, Passing::not_false, "the chat template says how a message ends"},
};

template <class Rules>
void check(const Rules& rules, std::string_view key, const dom::element& value) {
  for (const Rule& rule : rules)
    if (is_in(rule.keys, key) && !passes(value, rule.passing))
      fail("the record has \"{}\": {}", printable(key, 40), rule.why);
}

// A system message that stands in the text has its place.
bool stands_in_text(const dom::object& record, const dom::element& system) {
  std::string_view wanted;
  if (system.get_string().get(wanted) != simdjson::SUCCESS) return false;
  return std::any_of(record.begin(), record.end(), [&](const auto& field) {
    std::string_view text;
    return (field.key == "text" || field.key == "prompt" || field.key == "instruction") &&
           field.value.get_string().get(text) == simdjson::SUCCESS && text.find(wanted) != std::string_view::npos;
  });
}

}  // namespace

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

bool says_nothing(const dom::element& value) {
  std::string_view text;
  dom::array list;
  dom::object object;
  if (value.get_string().get(text) == simdjson::SUCCESS) return text.empty();
  if (value.get_array().get(list) == simdjson::SUCCESS) return list.begin() == list.end();
  if (value.get_object().get(object) == simdjson::SUCCESS) return object.begin() == object.end();
  return value.is_null();
}

std::optional<double> number_of(const dom::element& value) {
  bool flag = false;
  double number = 0;
  if (value.get_bool().get(flag) == simdjson::SUCCESS) return flag ? 1 : 0;
  if (value.get_double().get(number) == simdjson::SUCCESS) return number;
  return std::nullopt;
}

std::vector<std::string_view> keys_with_meaning() {
  std::vector<std::string_view> keys = token_keys();
  keys.insert(keys.end(), {"input", "system", "tools", "functions", "documents", "chat_template_kwargs"});
  const auto append = [&keys](const auto& rules) {
    for (const Rule& rule : rules) keys.insert(keys.end(), rule.keys.begin(), rule.keys.end());
  };
  append(rules_of_all);
  append(rules_of_tokens);
  append(rules_of_text);
  append(rules_of_system);
  append(rules_of_prompts);
  append(rules_of_chats);
  append(rules_of_answers);
  return keys;
}

void check_record_keys(const dom::object& record, RecordFormat format, RecordNotes& notes) {
  for (const auto& [key, value] : record) {
    if (is_honoured(key, format) || says_nothing(value)) continue;
    check(rules_of_all, key, value);
    if (format == RecordFormat::token_ids) {
      check(rules_of_tokens, key, value);
    } else if (!stands_in_text(record, value)) {
      check(rules_of_text, key, value);
      if (format != RecordFormat::chat) check(rules_of_system, key, value);
    }
    if (format == RecordFormat::alpaca || format == RecordFormat::prompt) check(rules_of_prompts, key, value);
    if (format == RecordFormat::chat) check(rules_of_chats, key, value);
    if (format != RecordFormat::token_ids && format != RecordFormat::text) check(rules_of_answers, key, value);
    notes.note(is_in(harmless_keys, key) ? NoteKind::harmless_key : NoteKind::unknown_key, key);
  }
}

namespace {

// Whether a message is trained: 1 and true as none, 0 and false not. True of another's message would train that.
const Keys message_flags = {"weight", "train", "training", "trainable", "loss", "loss_mask", "loss_scale", "masked"};
const Keys flags_of_any = {"train", "training", "trainable"};

bool is_by_assistant(const dom::object& message) {
  return std::any_of(message.begin(), message.end(), [](const auto& field) {
    std::string_view name;
    return (field.key == "role" || field.key == "from") && field.value.get_string().get(name) == simdjson::SUCCESS &&
           is_in({"assistant", "gpt", "chatgpt", "model", "bot"}, name);
  });
}

}  // namespace

void check_message_keys(const dom::object& message, RecordNotes& notes) {
  const bool by_assistant = is_by_assistant(message);
  for (const auto& [key, value] : message) {
    if (says_nothing(value) || is_in({"role", "content", "from", "value", "tool_calls", "tool_call_id", "name",
                                      "function_call", "reasoning_content", "thinking", "reasoning"},
                                     key))
      continue;
    if (is_in(message_flags, key)) {
      const auto flag = number_of(value);
      if (flag != 0 && flag != 1)
        fail("\"{}\" must be 0 or false, for a message that is not trained, or else 1 or true", key);
      if (!by_assistant && flag == 1 && is_in(flags_of_any, key))
        fail("\"{}\" is true, and only messages of the assistant are trained; remove the key there", key);
      continue;
    }
    check(rules_of_messages, key, value);
    notes.note(NoteKind::message_key, key);
  }
}

}  // namespace so
