// Keys and roles of records as other programs write them, and parts that a template leaves out.
#include <gtest/gtest.h>
#include <signal.h>

#include <span>
#include <string>
#include <vector>

#include "data/chat/chat_renderer.h"
#include "data_test_util.h"
#include "support/label.h"

namespace so {
namespace {

using Names = std::vector<std::string>;

// As most templates are: it knows the roles of its day, calls and thoughts.
const char* const knowing =
    "{% for m in messages %}{{ m.role + ':' }}{% if m.reasoning_content %}<{{ m.reasoning_content }}>{% endif %}"
    "{{ m.content or '' }}{% for c in m.tool_calls or [] %}[{{ c.function.name }} {{ c.function.arguments | tojson }}]"
    "{% endfor %}$\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}";
const char* const plain_text =
    "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}{{ m.role + ':' + (m.content or '') + '$\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

class ChatFields : public ::testing::Test {
 protected:
  void SetUp() override { ::signal(SIGPIPE, SIG_IGN); }  // as main() has it

  static RenderedChat rendered(const std::string& text, const std::string& record,
                               TrainedTurns trained = TrainedTurns::assistant) {
    ChatTemplate chat;
    chat.text = text;
    chat.source = "chat_template.jinja";
    chat.special_tokens = chat.stop_tokens = {"$"};
    const ChatRenderer renderer(chat);
    const std::string_view one = record;
    return renderer.render(std::span(&one, 1), trained).at(0);
  }
  static Names trained_in(const RenderedChat& chat) {
    EXPECT_EQ(chat.error, "");
    Names trained;
    for (std::size_t i = 1; i < chat.pieces.size(); i += 2) trained.push_back(chat.pieces[i]);
    return trained;
  }
};

SO_LABEL(no_asan, "ChatFields.MessagesThatOthersMarkAreNotTrained");  // the Python child works, not the program
TEST_F(ChatFields, MessagesThatOthersMarkAreNotTrained) {
  const auto record = [](const std::string& flag) {
    return R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"bad",)" + flag +
           R"(},{"role":"user","content":"r"},{"role":"assistant","content":"good"}]})";
  };
  for (const char* flag :
       {R"("train":false)", R"("training":false)", R"("trainable":0)", R"("loss":false)", R"("loss_mask":0)",
        R"("loss_scale":0.0)", R"("weight":0)", R"("masked":true)", R"("train":true,"loss":false)"}) {
    EXPECT_EQ(trained_in(rendered(knowing, record(flag))), Names{"good$"}) << flag;
    EXPECT_NE(rendered(knowing, record(flag), TrainedTurns::all).error.find("message 2 is marked as not trained"),
              std::string::npos);
  }
  for (const char* flag : {R"("train":true)", R"("loss":1)", R"("loss":null)", R"("masked":false)"})
    EXPECT_EQ(trained_in(rendered(knowing, record(flag))), (Names{"bad$", "good$"})) << flag;
  EXPECT_EQ(
      trained_in(rendered(knowing, R"({"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"bad",)"
                                   R"("loss":false},{"from":"gpt","value":"good"}]})")),
      Names{"good$"});
}

TEST_F(ChatFields, AFunctionCallIsACallOfATool) {
  const std::string with_call = R"("function_call":{"name":"f","arguments":"{\"a\": 1}"}},)"
                                R"({"role":"function","name":"f","content":"1"},{"role":"assistant","content":"ok"}])";
  for (const std::string content : {R"("content":"",)", R"("content":null,)", ""}) {
    const RenderedChat chat = rendered(
        knowing, R"({"messages":[{"role":"user","content":"q"},{"role":"assistant",)" + content + with_call + "}");
    EXPECT_EQ(chat.text(), "user:q$\nassistant:[f {\"a\": 1}]$\ntool:1$\nassistant:ok$\n");
    EXPECT_EQ(trained_in(chat), (Names{"[f {\"a\": 1}]$", "ok$"}));
    EXPECT_EQ(chat.roles, Names{});
  }
  EXPECT_TRUE(rendered(knowing, R"({"messages":[{"role":"user","content":"q"}],"functions":[{"name":"weather"}]})")
                  .text()
                  .ends_with("weather"));
}

TEST_F(ChatFields, RolesByOtherNamesAreThoseThatTemplatesKnow) {
  const RenderedChat chat = rendered(knowing, R"({"messages":[{"role":"human","content":"q"},)"
                                              R"({"role":"gpt","content":"a"},{"role":"observation","content":"o"}]})");
  EXPECT_EQ(chat.text(), "user:q$\nassistant:a$\ntool:o$\n");
  EXPECT_EQ(trained_in(chat), Names{"a$"});
  EXPECT_EQ(chat.roles, (Names{"human as user", "gpt as assistant", "observation as tool"}));
  // GLM-4's template knows the name.
  EXPECT_EQ(rendered("{% for m in messages %}{% if m.role == 'observation' %}{{ m.content }}{% endif %}{% endfor %}",
                     R"({"messages":[{"role":"observation","content":"o"}]})")
                .text(),
            "o");
}

TEST_F(ChatFields, TwoSystemMessagesAreRefusedUnlessTheyAreOne) {
  const auto record = [](const std::string& system) {
    return R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"q"}],"system":")" + system + "\"}";
  };
  EXPECT_EQ(rendered(knowing, record("s")).text(), "system:s$\nuser:q$\n");
  EXPECT_EQ(rendered(knowing, record("")).text(), "system:s$\nuser:q$\n");
  EXPECT_NE(rendered(knowing, record("t")).error.find("another system message"), std::string::npos);
}

TEST_F(ChatFields, HalfOfASurrogatePairIsRefusedWhereTheTextHasIt) {
  const auto record = [](const std::string& key) {
    return R"({"messages":[{"role":"user","content":"q",")" + key + R"(":"\ud83d"}]})";
  };
  EXPECT_EQ(rendered(knowing, record("note")).error, "");
  EXPECT_NE(rendered(knowing, record("reasoning_content")).error.find("half of a surrogate pair"), std::string::npos);
}

TEST_F(ChatFields, WhatATemplateLeavesOutIsNamed) {
  const std::string record =
      R"({"messages":[{"role":"system","content":"be"},{"role":"user","content":"q"},{"role":"assistant","content":"let",)"
      R"("reasoning_content":"why","tool_calls":[{"function":{"name":"f","arguments":{}}}]},)"
      R"({"role":"tool","content":"1"},{"role":"assistant","content":"ok","reasoning_content":"q"}],)"
      R"("tools":[{"function":{"name":"f"}}]})";
  EXPECT_EQ(rendered(knowing, record).left_out, Names{});
  // The "q" of the second thoughts stands in the text, as the question.
  EXPECT_EQ(rendered(plain_text, record).left_out,
            (Names{"\"reasoning_content\"", "\"tool_calls\"", "\"tools\"", "the messages of the role \"system\"",
                   "the messages of the role \"tool\""}));
  EXPECT_EQ(
      rendered(plain_text, R"({"messages":[{"role":"user","content":"q"}],"tools":[{"function":{"name":"xyz"}}]})")
          .left_out,
      Names{"\"tools\""});
  // Llama 3's has the call in place of the text.
  EXPECT_EQ(rendered("{% for m in messages %}{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}$"
                     "{% else %}{{ m.content }}${% endif %}{% endfor %}",
                     record)
                .left_out,
            (Names{"\"reasoning_content\"", "the text beside \"tool_calls\""}));
  // White space and escapes are no loss.
  EXPECT_EQ(rendered("{% for m in messages %}{{ m.content | trim | tojson(ensure_ascii=true) }}{% endfor %}",
                     R"({"messages":[{"role":"tool","content":" a \n\u00e9"}]})")
                .left_out,
            Names{});
}

}  // namespace
}  // namespace so
