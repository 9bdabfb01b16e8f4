#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/standard_input.h"
#include "base/standard_output.h"
#include "commands/command.h"
#include "commands/show_record.h"
#include "data/data_files.h"
#include "data/model_encoder.h"
#include "data/notes_log.h"
#include "data/one_record.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/vocabulary.h"
#include "options/chat_template_option.h"

namespace so {
namespace {

struct TokenizeOptions : HubOptions, TextOptions, ChatTemplateOption, JsonOption, MessageOptions {
  std::string model;
  std::string text;  // exactly one of text, file, from_stdin, decode and show is given
  std::optional<std::string> file;
  bool from_stdin = false;
  std::optional<std::string> decode;  // token ids, decimal, separated by commas or spaces
  bool no_special_tokens = false;
  std::optional<std::string> show;  // data, as train takes it
  std::int64_t record = 1;
  bool train_on_prompt = false, mask_history = false;
  std::int64_t max_length = 2048;
  ColorUse color = ColorUse::automatic;
};

OptionTable<TokenizeOptions> tokenize_table() {
  using namespace default_from;
  using O = TokenizeOptions;
  OptionTable<O> t;
  t.group("Tokenizer and input");
  t.add("model", &O::model, "Directory with the tokenizer's files")
      .metavar("DIR")
      .required()
      .hub(HubUse::small_files)
      .elsewhere("tokenizer");
  t.take(hub_rows());
  t.add("text", &O::text, "Text to encode").default_from(ours);
  t.add("file", &O::file, "File whose content is encoded").metavar("FILE").default_from(ours);
  t.add("stdin", &O::from_stdin, "Encode standard input").default_from(ours);
  t.add("decode", &O::decode, "Token ids to decode, separated by commas or spaces").metavar("IDS").default_from(ours);
  t.add("no_special_tokens", &O::no_special_tokens, "Add no special tokens when encoding, drop them when decoding")
      .default_from(ours)
      .elsewhere("skip_special_tokens");
  t.borrow(chat_template_rows(), ours);
  t.borrow(text_rows(), ours);
  t.group("A record as it is trained");
  t.add("show", &O::show,
        "Data of which a record is shown, as train makes it, with what is trained marked; a file, or as train's data")
      .metavar("FILE")
      .hub(HubUse::data)
      .default_from(ours)
      .elsewhere("data");
  t.add("record", &O::record, "Which record of the data").at_least(1).default_from(ours);
  t.add("train_on_prompt", &O::train_on_prompt, "As train").default_from(train);
  t.add("mask_history", &O::mask_history, "As train").default_from(train);
  t.add("max_length", &O::max_length, "As train").unit("tokens").at_least(2).default_from(train);
  t.add("color", &O::color,
        "Green for what is trained; auto: on a terminal, unless NO_COLOR is set. Without it, the marks ⟦ and ⟧")
      .default_from(ours);
  t.group("Result");
  t.take(json_rows());
  t.group("Messages");
  t.take(message_rows());
  return t;
}

const OptionTable<TokenizeOptions>& tokenize_rows() {
  static const OptionTable<TokenizeOptions> rows = tokenize_table();
  return rows;
}

void check(TokenizeOptions& options, OptionOrigins& origins, int) {
  check_exactly_one(tokenize_rows().view(options), origins, {"text", "file", "stdin", "decode", "show"});
  if (options.show) return;
  for (const char* name : {"record", "train_on_prompt", "mask_history", "max_length", "color", "chat_template"})
    if (origins.given(name)) fail("--{} is for a record: give --show FILE, or leave it out", name);
}

constexpr std::uint64_t max_text_bytes = std::uint64_t{4} << 30, max_input_bytes = 256 << 20;

std::vector<std::int32_t> parse_ids(const std::string& text) {
  std::vector<std::int32_t> ids;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at != end) {
    if (*at == ',' || *at == ' ' || *at == '\n' || *at == '\t' || *at == '[' || *at == ']') {
      ++at;
      continue;
    }
    std::int32_t id = 0;
    const auto [rest, error] = std::from_chars(at, end, id);
    if (error != std::errc() || id < 0)
      fail("--decode: expected token ids separated by commas or spaces, found {}",
           printable({at, static_cast<std::size_t>(end - at)}, 40));
    ids.push_back(id);
    at = rest;
  }
  return ids;
}

// Such ids are decoded to nothing, as Hugging Face's tokenizers do.
void warn_of_unused(const std::vector<std::int32_t>& ids, const Tokenizer& tokenizer) {
  std::set<std::int32_t> unused;
  for (const std::int32_t id : ids)
    if (tokenizer.id_to_token(id).empty()) unused.insert(id);
  if (!unused.empty())
    log_warning("--decode: this tokenizer has no token for {}{}, which decode to nothing", *unused.begin(),
                unused.size() > 1 ? fmt::format(" and {} more", unused.size() - 1) : "");
}

int show_record(const TokenizeOptions& options) {
  // The tokenizer alone decides: there need not be a model.
  const ModelEncoder encoder(options.model, Vocabulary::max_vocabulary, special_tokens(options.parse_special_tokens),
                             options.chat_template);
  const DataPart files = all_files(data_files(*options.show, "--show", DataUse::training, Telling::log));
  const OneRecord one = read_one_record(files, options.record, encoder,
                                        {options.max_length, options.train_on_prompt, options.mask_history});
  bool truncated = false;
  std::int64_t tokens = 0, trained = 0;
  for (const Example& example : one.documents) {
    truncated = truncated || example.truncated;
    tokens += std::ssize(example.ids);
    trained += example.trained;
  }
  if (options.json) {
    // Of a row that another program packed all documents, one behind another, with their lengths.
    std::vector<std::int32_t> ids, labels;
    nlohmann::ordered_json lengths = nlohmann::json::array(), texts = nlohmann::json::array();
    for (const Example& example : one.documents) {
      ids.insert(ids.end(), example.ids.begin(), example.ids.end());
      labels.push_back(kIgnored);
      labels.insert(labels.end(), example.targets.begin(), example.targets.end() - 1);
      lengths.push_back(example.ids.size());
    }
    for (const std::int32_t id : ids) texts.push_back(encoder.tokenizer().id_to_token(id));
    nlohmann::ordered_json result{
        {"location", one.location}, {"format", name_of(one.format)}, {"ids", ids}, {"labels", labels},
        {"tokens", texts},          {"truncated", truncated}};
    if (one.documents.size() > 1) result["documents"] = lengths;
    print_json(result.dump());
    return exit_ok;
  }
  for (const Example& example : one.documents) {
    if (one.documents.size() > 1)
      fmt::print("{}document of {} tokens:\n", &example == &one.documents.front() ? "" : "\n", example.ids.size());
    fmt::print("{}", shown_example(example, encoder.tokenizer(), use_color(options.color)));
  }
  log_info("{}: {} record, {} tokens, {} of them trained on{}", one.location, name_of(one.format), tokens, trained,
           truncated ? fmt::format("; cut to {}", options.max_length) : "");
  const bool chat = one.format == RecordFormat::chat;
  log_notes(one.location, one.notes, chat ? std::optional(encoder.chat_template()) : std::nullopt);
  return exit_ok;
}

int run(const TokenizeOptions& options, const OptionOrigins&) {
  if (options.show) return show_record(options);
  const Tokenizer tokenizer = Tokenizer::load(options.model);
  if (options.decode) {
    const std::vector<std::int32_t> ids = parse_ids(*options.decode);
    warn_of_unused(ids, tokenizer);
    const std::string text = tokenizer.decode(ids, options.no_special_tokens);
    if (options.json)
      print_json(nlohmann::json{{"text", text}}.dump());
    else
      print_exactly(text + "\n");
    return exit_ok;
  }
  std::string text = options.text;
  if (options.from_stdin)
    text = read_standard_input(max_input_bytes);
  else if (options.file)
    text = read_text_file(*options.file, max_text_bytes);
  const SpecialTokens special = special_tokens(options.parse_special_tokens);
  const std::vector<std::int32_t> own = tokenizer.encode(text, false, special);
  const std::vector<std::int32_t> ids = options.no_special_tokens ? own : tokenizer.encode(text, true, special);
  const auto in_text = std::count_if(own.begin(), own.end(), [&](std::int32_t id) { return tokenizer.is_special(id); });
  if (options.json) {
    nlohmann::ordered_json result{{"ids", ids}, {"tokens", nlohmann::json::array()}};
    for (const std::int32_t id : ids) result["tokens"].push_back(tokenizer.id_to_token(id));
    result["special_tokens_in_text"] = in_text;
    print_json(result.dump());
  } else {
    std::string line;
    for (const std::int32_t id : ids) line += fmt::format("{}{}", line.empty() ? "" : " ", id);
    fmt::print("{}\n", line);
    if (in_text > 0)
      log_info("special tokens in the text: {} (--parse_special_tokens false encodes them as text)", in_text);
  }
  return exit_ok;
}

const RegisteredCommand tokenize_command([] {
  return make_command<TokenizeOptions>(
      {.name = "tokenize",
       .position = 7,
       .summary = "text to token ids and back",
       .details =
           "Encodes text with a model's tokenizer and prints the ids, or decodes ids and prints the text. With --show it "
           "prints a record of a run's data as it is trained: a conversation in the model's chat template, say, with the "
           "assistant's turns marked.",
       .examples = {"superoffload tokenize --model Qwen3-0.6B --text \"Hello world\"",
                    "superoffload tokenize --model Qwen3-0.6B --decode 9707,1879",
                    "superoffload tokenize --model Qwen3-0.6B --show chats.jsonl --record 3"},
       .modes = {{"decode", "", "no text is encoded", {"parse_special_tokens"}},
                 {"show", "", "the record is encoded as train does it", {"no_special_tokens"}}}},
      tokenize_rows(), check, run);
});

}  // namespace
}  // namespace so
