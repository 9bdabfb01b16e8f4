#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <span>

#include "base/cpus.h"
#include "base/error.h"
#include "base/log.h"
#include "base/standard_output.h"
#include "base/standard_streams.h"
#include "base/terminal.h"
#include "checkpoint/directory_dtype.h"
#include "commands/command.h"
#include "commands/inference/answer_options.h"
#include "commands/inference/loaded_model.h"
#include "commands/shared_rows.h"
#include "data/chat/conversation.h"
#include "options/chat_template_option.h"
#include "train/interrupt.h"

namespace so {
namespace {

struct ChatOptions : HubOptions, ChatTemplateOption, AnswerOptions, ComputeOptions, MessageOptions {
  std::string model;
  std::optional<std::string> system;
  std::int64_t max_length = 4096;
  int max_new_tokens = 1024;
};

OptionTable<ChatOptions> chat_table() {
  using namespace default_from;
  using O = ChatOptions;
  OptionTable<O> t;
  t.group("Model and conversation");
  t.add("model", &O::model, "Hugging Face model directory: config.json, tokenizer, safetensors")
      .metavar("DIR")
      .required()
      .hub(HubUse::weights)
      .elsewhere("model_name_or_path");
  t.take(hub_rows());
  t.borrow(chat_template_rows(), ours);
  t.add("system", &O::system, "A system message that the conversation begins with").default_from(ours);
  t.add("max_length", &O::max_length, "Most tokens of the conversation, or the model's limit where that is lower")
      .unit("tokens")
      .at_least(2)
      .default_from(ours);
  t.group("Sampling");
  t.add("max_new_tokens", &O::max_new_tokens, "Most tokens of an answer").unit("tokens").at_least(1).default_from(ours);
  t.take(answer_rows());
  add_machine_and_messages(t);
  return t;
}

// Reads a line; false at the end of the input. The mark is for people.
bool read_line(std::string& line) {
  if (::isatty(STDIN_FILENO) == 1) {
    fmt::print("> ");
    flush_standard_output();
  }
  return static_cast<bool>(std::getline(std::cin, line));
}

// The part of an answer that a later turn sees: what follows its last special token. GPT-OSS thinks in one channel and
// answers in another, and its template takes the answer alone.
std::string remembered(const Answer& answer, const Tokenizer& tokenizer) {
  const auto last =
      std::find_if(answer.ids.rbegin(), answer.ids.rend(), [&](std::int32_t id) { return tokenizer.is_special(id); });
  if (last == answer.ids.rend() || last == answer.ids.rbegin()) return answer.text;
  return tokenizer.decode(std::span(answer.ids).last(static_cast<std::size_t>(last - answer.ids.rbegin())), true);
}

class Conversation {
 public:
  Conversation(const ChatOptions& options, const ModelEncoder& encoder, LoadedModel& loaded, std::int64_t capacity)
      : options_(options),
        encoder_(encoder),
        renderer_(encoder.chat_template()),
        loaded_(loaded),
        capacity_(capacity),
        random_(static_cast<std::uint64_t>(options.seed)) {
    clear();
  }

  void clear() {
    messages_.clear();
    if (options_.system) messages_.push_back({"system", *options_.system});
  }

  // Prints the answer while it is made. Ctrl-C ends it, and the text so far stays in the conversation.
  void say(const std::string& text) {
    messages_.push_back({"user", text});
    std::vector<std::int32_t> prompt;
    try {
      prompt = conversation_prompt(renderer_, encoder_, conversation_record(messages_));
      const std::int64_t room = capacity_ - static_cast<std::int64_t>(prompt.size());
      if (room < 1)
        fail("the conversation has {} tokens, and --max_length is {}; /clear begins a new one", prompt.size(),
             capacity_);
    } catch (const Error& error) {
      messages_.pop_back();
      log_warning("{}", error.what());
      return;
    }
    AnswerSettings settings{sampling_of(options_)};
    settings.max_new_tokens = static_cast<int>(
        std::min<std::int64_t>(options_.max_new_tokens, capacity_ - static_cast<std::int64_t>(prompt.size())));
    const InterruptGuard interrupt;
    const Answer answer = loaded_.generator().answer(
        encoder_.tokenizer(), prompt, settings, random_,
        [](const std::string& piece) {
          print_exactly(piece);
          flush_standard_output();
        },
        [&] { return interrupt.requested(); });
    fmt::print("\n");
    flush_standard_output();
    if (answer.reason == "length") log_info("the answer ends at {} tokens", settings.max_new_tokens);
    messages_.push_back({"assistant", remembered(answer, encoder_.tokenizer())});
  }

 private:
  const ChatOptions& options_;
  const ModelEncoder& encoder_;
  const ChatRenderer renderer_;
  LoadedModel& loaded_;
  std::int64_t capacity_;
  std::mt19937_64 random_;
  std::vector<ChatMessage> messages_;
};

int run(const ChatOptions& options, const OptionOrigins&) {
  const DecoderSpec spec = read_spec(options.model);
  const ModelFiles model(options.model);
  const ModelEncoder encoder(options.model, spec.vocab, SpecialTokens::parsed, options.chat_template);
  const std::int64_t capacity = std::min<std::int64_t>(options.max_length, spec.max_positions);
  // A template that cannot be used is refused before the weights are read.
  (void)conversation_prompt(ChatRenderer(encoder.chat_template()), encoder, conversation_record({{"user", "a"}}));
  check_cpu_threads(options, static_cast<int>(usable_cpus().size()));
  Runtime runtime(options.device, options.cpu_threads.value_or(0));
  const DType dtype = directory_dtype(asked_dtype(options.dtype), options.model);
  LoadedModel loaded(model, runtime, dtype, capacity, std::min(prompt_piece, capacity));
  Conversation conversation(options, encoder, loaded, capacity);
  if (::isatty(STDIN_FILENO) == 1) log_info("/clear begins anew, /exit or Ctrl-D ends, Ctrl-C stops an answer");
  for (std::string line; read_line(line);) {
    if (line == "/exit") break;
    if (line == "/clear")
      conversation.clear();
    else if (line.starts_with('/'))
      log_warning("{}: known are /clear and /exit", printable_text(line));
    else if (!line.empty())
      conversation.say(line);
  }
  return exit_ok;
}

const RegisteredCommand chat_command([] {
  return make_command<ChatOptions>(
      {.name = "chat",
       .position = 5,
       .summary = "talk to a model",
       .details =
           "Talks to a model in the terminal, in its chat template. Each line is a message, and the answer is printed "
           "while it is made. Ctrl-C stops an answer, /clear begins a new conversation, /exit or the end of the input "
           "ends the program. Greedy unless a temperature is given.",
       .examples = {"superoffload chat --model out",
                    "superoffload chat --model out --system \"Be brief.\" --temperature 0.7"},
       .modes = {{"temperature", "0", "the answers are greedy", {"top_k", "top_p", "seed"}}}},
      chat_table(), nullptr, run);
});

}  // namespace
}  // namespace so
