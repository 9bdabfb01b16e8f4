#include "data/chat/chat_renderer.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "chat_test_util.h"
#include "data/example.h"
#include "data/model_encoder.h"
#include "support/label.h"

namespace so {
namespace {

using test::chat_fixtures;
using test::error_of;
using test::Ids;
using test::OrderedJson;
using test::Parts;
using test::plain_template;
using test::published_template;
using test::read_chat_fixture;
using test::render_one;
using test::trained_in;

// As of transformers' published tests, and the shape of most templates.
const char* const chatml =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '</s>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

RenderedChat render(const ChatTemplate& chat, const std::string& record, TrainedTurns trained = TrainedTurns::assistant,
                    bool prompt = false) {
  return render_one(ChatRenderer(chat), record, trained, prompt);
}

class Rendering : public ::testing::Test {
 protected:
  void SetUp() override { ::signal(SIGPIPE, SIG_IGN); }  // as main() has it
};

// Text for text, and where TRL has the same template with {% generation %}, part for part; also of turns that say
// nothing, and of texts and thoughts beside calls of tools (turns.json).
SO_LABEL(sweep, "Rendering.IsThatOfTransformersOnPublishedTemplates");
TEST_F(Rendering, IsThatOfTransformersOnPublishedTemplates) {
  const OrderedJson expected = read_chat_fixture("expected.json"), turns = read_chat_fixture("turns.json");
  std::size_t masks = 0;
  for (const auto& [name, model] : expected["templates"].items()) {
    const ChatRenderer renderer(published_template(expected, name));
    const auto check = [&, &name = name](const std::string& title, OrderedJson conversation,
                                         const OrderedJson& wanted) {
      SCOPED_TRACE(name + ": " + title);
      const RenderedChat got = render_one(renderer, conversation.dump());
      if (wanted.contains("refused")) {
        EXPECT_NE(got.error, "");
        return;
      }
      EXPECT_EQ(got.error, "");
      EXPECT_EQ(got.text(), wanted["text"]);
      if (wanted.contains("trained")) {
        EXPECT_EQ(trained_in(got), wanted["trained"].get<Parts>());
        ++masks;
      }
      if (!wanted.contains("prompt")) return;
      conversation["messages"].erase(conversation["messages"].size() - 1);
      EXPECT_TRUE(render_one(renderer, conversation.dump(), TrainedTurns::nothing, true)
                      .text()
                      .ends_with(wanted["prompt"].get<std::string>()));
    };
    for (const auto& [title, wanted] : model["cases"].items()) {
      check(title, expected["conversations"][title], wanted);
      if (wanted.contains("refused") || wanted.contains("trained")) continue;
      std::size_t assistants = 0;
      for (const OrderedJson& message : expected["conversations"][title]["messages"])
        assistants += message["role"] == "assistant";
      EXPECT_EQ(trained_in(render_one(renderer, expected["conversations"][title].dump())).size(), assistants) << title;
    }
    for (const auto& [title, wanted] : turns["templates"][name].items())
      check(title, turns["conversations"][title], wanted);
  }
  EXPECT_GE(masks, 160U);
}

// Llama 2 and Qwen 3 have no counterpart at TRL: what stands here was read off the text.
Parts trained_of(const std::string& name, const std::string& title) {
  const OrderedJson expected = read_chat_fixture("expected.json");
  return trained_in(render(published_template(expected, name), expected["conversations"][title].dump()));
}

SO_LABEL(sweep, "Rendering.FindsTurnsInTemplatesThatCutThoughtsAndWhiteSpace");
TEST_F(Rendering, FindsTurnsInTemplatesThatCutThoughtsAndWhiteSpace) {
  EXPECT_EQ(trained_of("qwen3", "thoughts in the text"),
            (Parts{"4<|im_end|>", "<think>\nsum\n</think>\n\n6<|im_end|>"}));
  EXPECT_EQ(trained_of("qwen3", "thoughts apart"), (Parts{"4<|im_end|>", "<think>\nsum\n</think>\n\n6<|im_end|>"}));
  EXPECT_EQ(
      trained_of("qwen3", "tools"),
      (Parts{"<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call><|im_end|>",
             "Sunny.<|im_end|>",
             "<think>\n\n</think>\n\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
             "\"Oslo\"}}\n</tool_call><|im_end|>"}));
  EXPECT_EQ(trained_of("qwen3_6", "one turn"),
            (Parts{"\n</think>\n\nHello!<|im_end|>"}));  // its prompt ends in <think>
  EXPECT_EQ(trained_of("llama2", "white space"), (Parts{" Hello! </s>", " Good bye. </s>"}));
  EXPECT_EQ(trained_of("mistral", "same text twice"), (Parts{"Yes</s>", "Yes</s>"}));
  EXPECT_EQ(trained_of("phi3", "one turn"), (Parts{"Hello!<|end|>"}));
  EXPECT_EQ(trained_of("phi4", "system"), (Parts{"Me.<|im_end|>"}));
  EXPECT_EQ(trained_of("glm4moe", "same text twice"),
            (Parts{"\n<think></think>\nYes<|user|>", "\n<think></think>\nYes"}));  // <|user|> stops its generation
}

TEST_F(Rendering, TrainsTheTurnsThatAreAskedFor) {
  const ChatTemplate chat = plain_template(chatml);
  const std::string record =
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"},)"
      R"({"role":"assistant","content":"d"}]})";
  EXPECT_EQ(trained_in(render(chat, record)), (Parts{"b</s>", "d</s>"}));
  EXPECT_EQ(trained_in(render(chat, record, TrainedTurns::last)), (Parts{"d</s>"}));
  EXPECT_EQ(trained_in(render(chat, record, TrainedTurns::all)), (Parts{render(chat, record).text()}));
  EXPECT_EQ(render(chat, record, TrainedTurns::nothing, true).pieces,
            (Parts{render(chat, record).text() + "<|im_start|>assistant\n"}));
  // OpenAI's weight of a message.
  EXPECT_EQ(
      trained_in(render(chat, R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b",)"
                              R"("weight":0},{"role":"user","content":"c"},{"role":"assistant","content":"d"}]})")),
      (Parts{"d</s>"}));
  for (const std::string weight : {R"("0")", "0.5", "-1", "[0]"})
    EXPECT_EQ(render(chat, R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b","weight":)" +
                               weight + "}]}")
                  .error.find("message 2: \"weight\" is "),
              0u)
        << weight;
  // A prompt and a completion of messages, as TRL has them.
  EXPECT_EQ(
      trained_in(render(chat, R"({"prompt":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},)"
                              R"({"role":"user","content":"c"}],"completion":[{"role":"assistant","content":"d"}]})")),
      (Parts{"d</s>"}));
}

TEST_F(Rendering, ReadsShareGptAndParts) {
  const ChatTemplate chat = plain_template(chatml);
  const std::string text = "<|im_start|>system\ns</s>\n<|im_start|>user\na</s>\n<|im_start|>assistant\nb</s>\n";
  EXPECT_EQ(render(chat, R"({"system":"s","conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}]})")
                .text(),
            text);
  EXPECT_EQ(render(chat, R"({"messages":[{"role":"system","content":[{"type":"text","text":"s"}]},{"role":"user",)"
                         R"("content":["a"]},{"role":"assistant","content":"b"}]})")
                .text(),
            text);
}

TEST_F(Rendering, MarksWithGenerationTagsAsTransformersDoes) {
  const ChatTemplate chat = plain_template(
      "{% for m in messages %}{% if m.role == 'assistant' %}[{% generation %}{{ m.content }}{% endgeneration %}]"
      "{% else %}{{ m.content }}{% endif %}{% endfor %}");
  const std::string record =
      R"({"messages":[{"role":"user","content":"ä"},{"role":"assistant","content":"b"},{"role":"assistant","content":"c"}]})";
  EXPECT_EQ(render(chat, record).pieces, (Parts{"ä[", "b", "][", "c", "]"}));
  EXPECT_EQ(trained_in(render(chat, record, TrainedTurns::last)), (Parts{"c"}));
}

TEST_F(Rendering, SaysWhatATemplateRefuses) {
  EXPECT_EQ(
      render(plain_template("{{ raise_exception('no\nsystem') }}"), R"({"messages":[{"role":"user","content":"a"}]})")
          .error,
      "the chat template refuses the messages: no system");
  EXPECT_EQ(
      render(plain_template("{{ messages[0].content + 1 }}"), R"({"messages":[{"role":"user","content":"a"}]})").error,
      "the chat template fails: TypeError: can only concatenate str (not \"int\") to str");
  EXPECT_EQ(
      error_of([] { render(plain_template("a\n{% for %}"), "{}"); }),
      "chat_template.jinja: the chat template fails, line 2: TemplateSyntaxError: Expected an expression, got 'end "
      "of statement block'");
  // The sandbox forbids this.
  EXPECT_NE(
      render(plain_template("{{ messages.__class__.__mro__ }}"), R"({"messages":[{"role":"user","content":"a"}]})")
          .error.find("SecurityError"),
      std::string::npos);
  // A turn that the template hides from us: upper case is not what was marked, and no prefix is the text's.
  const ChatTemplate whole = plain_template("{{ messages | map(attribute='content') | join(' ') | upper | reverse }}");
  EXPECT_NE(render(whole, R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})")
                .error.find("its place in the rendered text cannot be told"),
            std::string::npos);
}

TEST_F(Rendering, ServesManyThreads) {
  const ChatRenderer renderer(plain_template(chatml));
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int k = 0; k < 10; ++k) {
        std::vector<std::string> records;
        for (int i = 0; i < 20; ++i)
          records.push_back(OrderedJson{
              {"messages", {{{"role", "assistant"}, {"content", std::string(10000, 'a') + std::to_string(t * i)}}}}}
                                .dump());
        const std::vector<std::string_view> views(records.begin(), records.end());
        const auto rendered = renderer.render(views, TrainedTurns::assistant);
        for (int i = 0; i < 20; ++i)
          right += rendered[static_cast<std::size_t>(i)].text().ends_with("a" + std::to_string(t * i) + "</s>\n");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 4 * 10 * 20);
}

TEST_F(Rendering, NamesWhatIsMissing) {
  const test::TemporaryDirectory directory;
  const std::string path = ::getenv("PATH");
  // A python3 that has no Jinja2; the system's is asked next, and stands for any that has it.
  test::write_file(directory.path / "python3", "#!/bin/sh\nexit 3\n");
  std::filesystem::permissions(directory.path / "python3", std::filesystem::perms::owner_all);
  ::setenv("PATH", directory.path.c_str(), 1);
  const std::string without =
      error_of([] { render(plain_template(chatml), R"({"messages":[{"role":"user","content":"a"}]})"); });
  test::write_file(directory.path / "python3", "#!/bin/sh\necho 'Fatal: no memory' >&2\nexit 1\n");
  const std::string broken =
      error_of([] { render(plain_template(chatml), R"({"messages":[{"role":"user","content":"a"}]})"); });
  ::setenv("PATH", path.c_str(), 1);
  if (!without.empty()) {
    EXPECT_NE(without.find("apt install python3-jinja2"), std::string::npos) << without;
  }
  EXPECT_EQ(broken, "chat templates are rendered by Python, and python3 ended with exit code 1: Fatal: no memory");
}

TEST(RenderedAnswers, AreChecked) {
  EXPECT_EQ(parse_rendered(R"({"records":[["a","b"],{"error":"no"}]})", 2).at(0).text(), "ab");
  EXPECT_EQ(parse_rendered(R"({"records":[["a","b"],{"error":"no"}]})", 2).at(1).error, "no");
  for (const char* bad : {"", "[]", "{}", R"({"records":[]})", R"({"records":[[1]]})", R"({"records":["a"]})",
                          R"({"records":[{"error":1}]})", R"({"records":[["a"],["b"]]})"})
    EXPECT_NE(error_of([&] { parse_rendered(bad, 1); }), "") << bad;
}

// Whole tokenizers: ids and mask of return_assistant_tokens_mask.
SO_LABEL(sweep, "Rendering.MasksTheTokensThatTransformersMasks");
TEST_F(Rendering, MasksTheTokensThatTransformersMasks) {
  const OrderedJson masks = read_chat_fixture("masks.json");
  const OrderedJson conversations = read_chat_fixture("expected.json")["conversations"];
  std::map<std::string, ChatRenderer> renderers;
  for (const OrderedJson& wanted : masks["cases"]) {
    SCOPED_TRACE(wanted["tokenizer"].get<std::string>() + ", " + wanted["template"].get<std::string>() + ": " +
                 wanted["title"].get<std::string>());
    const ModelEncoder encoder(
        std::filesystem::path(test::fixtures()) / "tokenizer" / wanted["tokenizer"].get<std::string>(), 1 << 20,
        SpecialTokens::parsed);
    ChatTemplate chat = plain_template(masks["templates"][wanted["template"].get<std::string>()]);
    chat.variables.clear();
    if (const auto bos = encoder.tokenizer().bos_id())
      chat.variables.emplace_back("bos_token", encoder.tokenizer().id_to_token(*bos));
    if (const auto eos = encoder.tokenizer().eos_id())
      chat.variables.emplace_back("eos_token", encoder.tokenizer().id_to_token(*eos));
    const auto key = wanted["tokenizer"].get<std::string>() + " " + wanted["template"].get<std::string>();
    const ChatRenderer& renderer = renderers.try_emplace(key, chat).first->second;
    const RenderedChat rendered = render_one(renderer, conversations[wanted["title"].get<std::string>()].dump());
    const Example example = ExampleBuilder(encoder, {.max_length = 4096}).build_chat(rendered);
    EXPECT_EQ(example.ids, wanted["ids"].get<Ids>());
    std::vector<int> mask(example.ids.size(), 0);
    for (std::size_t i = 0; i + 1 < mask.size(); ++i) mask[i + 1] = example.targets[i] != kIgnored;
    std::vector<int> expected = wanted["mask"];
    expected[0] = mask[0];  // nothing predicts the first token
    EXPECT_EQ(mask, expected);
  }
}

}  // namespace
}  // namespace so
