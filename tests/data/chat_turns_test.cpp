#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <random>
#include <thread>

#include "chat_test_util.h"
#include "support/label.h"

namespace so {
namespace {

using test::OrderedJson;
using test::Parts;
using test::plain_template;
using test::published_template;
using test::read_chat_fixture;
using test::render_one;
using test::trained_in;

class ChatTurns : public ::testing::Test {
 protected:
  void SetUp() override { ::signal(SIGPIPE, SIG_IGN); }  // as main() has it
  const OrderedJson expected_ = read_chat_fixture("expected.json");
  const OrderedJson turns_ = read_chat_fixture("turns.json");
};

OrderedJson say(const std::string& role, const std::string& content) { return {{"role", role}, {"content", content}}; }

std::string conversation_of(std::vector<OrderedJson> messages) {
  return OrderedJson{{"messages", std::move(messages)}}.dump();
}

SO_LABEL(no_asan, "ChatTurns.WithoutTextTrainTheirEnd");  // the Python child works, not the program
TEST_F(ChatTurns, WithoutTextTrainTheirEnd) {
  const std::string record = turns_["conversations"]["empty"].dump();
  const auto trained = [&](const std::string& name) {
    return trained_in(render_one(ChatRenderer(published_template(expected_, name)), record));
  };
  EXPECT_EQ(trained("qwen3"), (Parts{"<|im_end|>", "<think>\n\n</think>\n\nDone.<|im_end|>"}));
  EXPECT_EQ(trained("phi3"), (Parts{"<|end|>", "Done.<|end|>"}));
  EXPECT_EQ(trained("phi3_5"), (Parts{"<|end|>", "Done.<|end|>"}));
  EXPECT_EQ(trained("gptoss"),
            (Parts{"<|channel|>final<|message|><|end|>", "<|channel|>final<|message|>Done.<|return|>"}));
  EXPECT_EQ(trained("deepseekv3"), (Parts{"<｜end▁of▁sentence｜>", "Done.<｜end▁of▁sentence｜>"}));
  // Its prompt opens thoughts.
  EXPECT_EQ(trained("nemotron_3_nano"), (Parts{"</think><|im_end|>", "</think>Done.<|im_end|>"}));
  EXPECT_EQ(trained("glm4moe"), (Parts{"\n<think></think><|user|>", "\n<think></think>\nDone."}));
  EXPECT_EQ(trained("seed_oss"), (Parts{"Done.<seed:eos>"}));  // there is no end of a turn without text
  // As EXAONE 4 does: thoughts stand in front of a text alone, and in each prompt.
  const ChatTemplate thoughts_before_text = plain_template(
      "{% for m in messages %}{{ '[' + m.role + ']' }}{% if m.role == 'assistant' and m.content %}"
      "{{ '<think>\n\n</think>\n\n' }}{% endif %}{{ m.content + '</s>\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '[assistant]<think>\n\n</think>\n\n' }}{% endif %}");
  EXPECT_EQ(trained_in(render_one(ChatRenderer(thoughts_before_text), record)), (Parts{"</s>", "Done.</s>"}));
  // A turn that the template leaves out.
  const ChatTemplate leaves_out = plain_template(
      "{% for m in messages if m.content %}{{ '[' + m.role + ']' + m.content + '</s>' }}{% endfor %}"
      "{{ '[assistant]' if add_generation_prompt }}");
  EXPECT_EQ(trained_in(render_one(ChatRenderer(leaves_out), record)), (Parts{"Done.</s>"}));
}

TEST_F(ChatTurns, BesideCallsHaveNoResultsInThem) {
  const auto trained = [&](const std::string& name, const std::string& title) {
    return trained_in(
        render_one(ChatRenderer(published_template(expected_, name)), turns_["conversations"][title].dump()));
  };
  const std::string call = " to=functions.temp<|channel|>commentary json<|message|>{\"room\": \"attic\"}<|call|>";
  const std::string thought = "<|channel|>analysis<|message|>Let me look.<|end|><|start|>assistant";
  const std::string yes = "<|channel|>final<|message|>Yes.<|return|>";
  EXPECT_EQ(trained("gptoss", "thoughts beside a call"), (Parts{call, yes}));  // an answer leaves out its thoughts
  EXPECT_EQ(trained("gptoss", "text beside a call"), (Parts{call, yes}));
  EXPECT_EQ(trained("gptoss", "text beside the last call"), (Parts{thought + call}));
  EXPECT_EQ(trained("phi3", "text beside a call"), (Parts{"Let me look.<|end|>", "Yes.<|end|>"}));  // it has no calls
  // As Gemma 4 does: the result, under the tool's name, comes between a call and the text beside it.
  const ChatTemplate result_first = plain_template(
      "{% for m in messages if m.role != 'tool' %}{{ m.role + ':' }}{% for c in m.tool_calls %}"
      "{{ '<call>' + c.function.name + '</call>' }}{% for r in messages if r.role == 'tool' %}"
      "{{ '<result>' + c.function.name + '=' + r.content + '</result>' }}{% endfor %}{% endfor %}"
      "{{ m.content + '</s>' }}{% endfor %}{{ 'assistant:' if add_generation_prompt }}");
  EXPECT_EQ(trained_in(render_one(ChatRenderer(result_first), turns_["conversations"]["text beside a call"].dump())),
            (Parts{"<call>temp</call>", "Let me look.</s>", "Yes.</s>"}));
}

// OpenAI's arguments are a string: an object where the template takes one, else as they are.
TEST_F(ChatTurns, HaveArgumentsAsTheTemplateTakesThem) {
  OrderedJson record = turns_["conversations"]["text beside a call"];
  record["messages"][1]["tool_calls"][0]["function"]["arguments"] = "{\"room\":\"attic\"}";
  const auto text = [&](const std::string& name) {
    return render_one(ChatRenderer(published_template(expected_, name)), record.dump()).text();
  };
  EXPECT_NE(text("qwen3").find(R"("arguments": {"room": "attic"})"), std::string::npos);
  EXPECT_NE(text("deepseekv3").find(R"({"room":"attic"})"), std::string::npos);
}

// Records of every kind under one template, in any order, any number of times, in requests of any size, by two
// processes that begin with other ones: each has the pieces that it has alone.
void expect_pieces_of_the_record_alone(const ChatTemplate& chat, const std::vector<std::string>& records,
                                       unsigned seed) {
  std::vector<std::string> alone;
  const auto whole = [](const RenderedChat& one) { return OrderedJson(one.pieces).dump() + one.error; };
  {
    const ChatRenderer renderer(chat);
    for (const std::string& record : records) alone.push_back(whole(render_one(renderer, record)));
  }
  const ChatRenderer renderer(chat);
  std::vector<std::thread> threads;
  std::vector<std::string> different(2);
  for (unsigned t = 0; t < different.size(); ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(2 * seed + t);
      std::vector<std::size_t> order;
      for (std::size_t k = 0; k < 2 * records.size(); ++k) order.push_back(k % records.size());
      std::shuffle(order.begin(), order.end(), random);
      for (std::size_t at = 0; at < order.size();) {
        const std::size_t count = std::min<std::size_t>(1 + random() % 7, order.size() - at);
        std::vector<std::string_view> views;
        for (std::size_t k = 0; k < count; ++k) views.push_back(records[order[at + k]]);
        const std::vector<RenderedChat> got = renderer.render(views, TrainedTurns::assistant);
        for (std::size_t k = 0; k < count; ++k)
          if (whole(got[k]) != alone[order[at + k]]) different[t] = records[order[at + k]];
        at += count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(different, std::vector<std::string>(2));
}

SO_LABEL(no_asan, "ChatTurns.DependOnTheirRecordAlone");  // the Python child works, not the program
TEST_F(ChatTurns, DependOnTheirRecordAlone) {
  std::vector<std::string> records;
  for (const OrderedJson& all : {expected_["conversations"], turns_["conversations"]})
    for (const OrderedJson& conversation : all) records.push_back(conversation.dump());
  for (const std::string asked : {"Tide?", "Tide? /no_think", "Tide? /think", "Tide"})
    for (const std::string before : {"", "Tide? /no_think", "Tide?"}) {
      std::vector<OrderedJson> messages;
      if (!before.empty()) messages = {say("user", before), say("assistant", "At noon.")};
      messages.push_back(say("user", asked));
      messages.push_back(say("assistant", "At noon."));
      records.push_back(conversation_of(messages));
      OrderedJson switched = OrderedJson::parse(records.back());
      switched["chat_template_kwargs"] = {{"enable_thinking", false}};
      records.push_back(switched.dump());
    }
  // What the prompt opens depends on the last message, or on all of them.
  const auto prompt_by = [](const std::string& condition) {
    return plain_template(
        "{% for m in messages %}{{ '[' + m.role + ']' + ('<think></think>' if m.role == 'assistant' else '') + (m.content or '')"
        " + '</s>' }}{% endfor %}{% if add_generation_prompt %}{{ '[assistant]' }}{{ '<think></think>' if " +
        condition + " }}{% endif %}");
  };
  std::vector<ChatTemplate> templates = {prompt_by("'/no_think' in messages[-1].content"),
                                         prompt_by("messages[-1].content.endswith('think')"),
                                         prompt_by("messages[0].content | length is even"),
                                         prompt_by("messages | map(attribute='content') | join | length is even")};
  for (const std::string name : {"qwen3", "gptoss", "glm4moe"})
    templates.push_back(published_template(expected_, name));
  for (unsigned i = 0; i < templates.size(); ++i) {
    SCOPED_TRACE(i);
    expect_pieces_of_the_record_alone(templates[i], records, i);
  }
}

}  // namespace
}  // namespace so
