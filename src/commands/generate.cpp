#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/cpus.h"
#include "base/error.h"
#include "base/file.h"
#include "base/standard_input.h"
#include "base/standard_output.h"
#include "base/standard_streams.h"
#include "checkpoint/directory_dtype.h"
#include "commands/command.h"
#include "commands/inference/answer_options.h"
#include "commands/inference/loaded_model.h"
#include "commands/shared_rows.h"
#include "data/chat/conversation.h"
#include "data/example.h"
#include "data/records.h"
#include "data/tokenizer/utf8.h"
#include "data/tokenizer/vocabulary.h"
#include "model/rope.h"
#include "options/chat_template_option.h"

namespace so {
namespace {

struct GenerateOptions : HubOptions,
                         TextOptions,
                         ChatTemplateOption,
                         JsonOption,
                         AnswerOptions,
                         ComputeOptions,
                         MessageOptions {
  std::string model;
  std::string prompt;                      // exactly one of prompt, prompt_file and messages is given
  std::optional<std::string> prompt_file;  // "-": standard input
  std::optional<std::string> messages;     // a file
  bool alpaca = false, chat = false;
  std::optional<std::string> system;
  int max_new_tokens = 128;
  bool stop_at_eos = true;
};

OptionTable<GenerateOptions> generate_table() {
  using namespace default_from;
  using O = GenerateOptions;
  OptionTable<O> t;
  t.group("Model and prompt");
  t.add("model", &O::model, "Hugging Face model directory: config.json, tokenizer, safetensors")
      .metavar("DIR")
      .required()
      .hub(HubUse::weights)
      .elsewhere("model_name")
      .elsewhere("model_name_or_path");
  t.take(hub_rows());
  t.add("prompt", &O::prompt, "Text to continue").default_from(ours);
  t.add("prompt_file", &O::prompt_file, "File with the text to continue; - is standard input")
      .metavar("FILE")
      .default_from(ours);
  t.add("alpaca", &O::alpaca, "Wrap the prompt in the Alpaca template: ### Instruction, ### Response")
      .default_from(ours);
  t.add("chat", &O::chat, "Make the prompt a user's message in the model's chat template").default_from(ours);
  t.add("system", &O::system, "With --chat, a system message before it").default_from(ours);
  t.add("messages", &O::messages, "JSON file with a conversation {\"messages\": [...]}, whose next turn is generated")
      .metavar("FILE")
      .default_from(ours);
  t.borrow(chat_template_rows(), ours);
  t.borrow(text_rows(), ours);
  t.group("Sampling");
  t.add("max_new_tokens", &O::max_new_tokens, "Most tokens to generate").unit("tokens").at_least(1).default_from(ours);
  t.add("stop_at_eos", &O::stop_at_eos, "Stop at the model's end-of-text token").default_from(ours);
  t.take(answer_rows());
  t.group("Result");
  t.take(json_rows());
  add_machine_and_messages(t);
  return t;
}

const OptionTable<GenerateOptions>& generate_rows() {
  static const OptionTable<GenerateOptions> rows = generate_table();
  return rows;
}

void check(GenerateOptions& options, OptionOrigins& origins, int) {
  check_exactly_one(generate_rows().view(options), origins, {"prompt", "prompt_file", "messages"});
  if (options.system && !options.chat && !options.messages)
    fail("--system is for a conversation: give --chat too, or leave it out");
  if (options.chat_template && !options.chat && !options.messages)
    fail("--chat_template is for a conversation: give --chat or --messages too, or leave it out");
}

constexpr std::uint64_t max_prompt_bytes = 16 << 20;

std::string read_prompt(const GenerateOptions& options) {
  std::string text = options.prompt;
  if (options.prompt_file == "-")
    text = read_standard_input(max_prompt_bytes);
  else if (options.prompt_file)
    text = without_mark(read_text_file(*options.prompt_file, max_prompt_bytes));
  return options.alpaca ? alpaca_prompt({text, "", ""}) : text;
}

// The record of a file that has one conversation.
std::string read_conversation(const std::string& file) {
  const std::string text = read_text_file(file, max_prompt_bytes);
  RecordReader reader(file, text);
  RawRecord raw;
  if (!reader.next(raw)) fail("--messages {}: the file holds no record", file);
  const Record record = RecordParser(file, Vocabulary::max_vocabulary).parse(raw);
  const auto* chat = std::get_if<ChatRecord>(&record);
  if (chat == nullptr)
    fail("--messages {}: expected a conversation {{\"messages\": [...]}}, found {} record", file,
         name_of(format_of(record)));
  if (reader.next(raw)) fail("--messages {}: the file has several records; give one with the conversation alone", file);
  return std::string(chat->json);
}

std::vector<std::int32_t> prompt_ids(const GenerateOptions& options, const ModelEncoder& encoder) {
  if (!options.chat && !options.messages) return encoder.encode(read_prompt(options), true);
  const ChatRenderer renderer(encoder.chat_template());
  if (options.messages) return conversation_prompt(renderer, encoder, read_conversation(*options.messages));
  std::vector<ChatMessage> messages;
  if (options.system) messages.push_back({"system", *options.system});
  messages.push_back({"user", read_prompt(options)});
  return conversation_prompt(renderer, encoder, conversation_record(messages));
}

int run(const GenerateOptions& options, const OptionOrigins&) {
  const DecoderSpec spec = read_spec(options.model);
  const ModelFiles model(options.model);
  const ModelEncoder encoder(options.model, spec.vocab, special_tokens(options.parse_special_tokens),
                             options.chat_template);
  const Tokenizer& tokenizer = encoder.tokenizer();
  const std::vector<std::int32_t> prompt = prompt_ids(options, encoder);
  if (prompt.empty()) fail("--prompt: the prompt holds no token; give some text");
  const auto length = static_cast<std::int64_t>(prompt.size()) + options.max_new_tokens;
  if (length > spec.max_positions)
    fail(
        "the prompt's {} tokens and --max_new_tokens {} exceed the model's limit of {} positions; lower "
        "--max_new_tokens or shorten the prompt",
        prompt.size(), options.max_new_tokens, spec.max_positions);

  check_cpu_threads(options, static_cast<int>(usable_cpus().size()));
  Runtime runtime(options.device, options.cpu_threads.value_or(0));
  const DType dtype = directory_dtype(asked_dtype(options.dtype), options.model);
  // No more is read at a time than the prompt, but where the text may have to be read again.
  const auto most_read = RopeRows(spec, length).differ() ? length : static_cast<std::int64_t>(prompt.size());
  LoadedModel loaded(model, runtime, dtype, length, std::min(prompt_piece, most_read));

  const AnswerSettings settings{sampling_of(options), options.max_new_tokens, options.stop_at_eos};
  std::mt19937_64 random(static_cast<std::uint64_t>(options.seed));
  const auto emit = [&](const std::string& piece) {
    if (options.json) return;
    print_exactly(piece);
    flush_standard_output();  // nobody reads on: stop
  };
  const auto start = std::chrono::steady_clock::now();
  const Answer answer = loaded.generator().answer(tokenizer, prompt, settings, random, emit);
  if (!options.json) {
    fmt::print("\n");
    return exit_ok;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  nlohmann::ordered_json result{{"text", answer.text},
                                {"ids", answer.ids},
                                {"prompt_tokens", prompt.size()},
                                {"finish_reason", answer.reason},
                                {"tokens_per_s", static_cast<double>(answer.ids.size()) / seconds}};
  print_json(result.dump());
  return exit_ok;
}

const RegisteredCommand generate_command([] {
  return make_command<GenerateOptions>(
      {.name = "generate",
       .position = 4,
       .summary = "continue a prompt",
       .details = "Continues a prompt and prints the new text. Greedy unless a temperature is given.",
       .examples =
           {"superoffload generate --model out --prompt \"Give three tips for staying healthy.\" --alpaca",
            "superoffload generate --model out --prompt_file prompt.txt --temperature 0.7 --top_p 0.9 --seed 1",
            "superoffload generate --model out --prompt \"Why is the sky blue?\" --chat --system \"Be brief.\""},
       .modes = {{"chat", "true", "the chat template is the prompt's", {"alpaca"}},
                 {"messages", "", "the conversation is rendered as it is", {"chat", "system", "alpaca"}},
                 {"temperature", "0", "generation is greedy", {"top_k", "top_p", "seed"}}}},
      generate_rows(), check, run);
});

}  // namespace
}  // namespace so
