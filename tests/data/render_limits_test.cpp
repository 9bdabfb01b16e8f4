#include <gtest/gtest.h>
#include <signal.h>

#include "chat_test_util.h"

namespace so {
namespace {

using test::plain_template;
using test::render_one;

// A template that takes more than there is for it is refused by name, and the process goes on.
TEST(RenderLimits, EndWhatTakesTooMuch) {
  ::signal(SIGPIPE, SIG_IGN);  // as main() has it
  const std::string small = R"({"messages":[{"role":"user","content":"1"},{"role":"assistant","content":"b"}]})";
  const std::string large = R"({"messages":[{"role":"user","content":"10"},{"role":"assistant","content":"b"}]})";
  const std::string memory = "the chat template takes more than 1 GB of memory";
  const ChatRenderer grows(plain_template(
      "{{ 'x' | center(10 ** (messages[0].content | int)) | trim }}{% for m in messages %}{{ m.content + '</s>' }}"
      "{% endfor %}"));
  EXPECT_EQ(render_one(grows, small).error, "");
  EXPECT_EQ(render_one(grows, large).error, memory);
  EXPECT_EQ(render_one(grows, small).error, "");
  // What is constant is computed when the template is read.
  EXPECT_EQ(render_one(ChatRenderer(plain_template("{{ '%10000000000d' % 1 }}{{ messages }}")), small).error, memory);
  const ChatRenderer calls_itself(
      plain_template("{% macro m(x) %}{{ m(x) }}{{ m(x) }}{% endmacro %}{{ m(messages) }}"));
  EXPECT_EQ(render_one(calls_itself, small).error,
            "the chat template fails: RecursionError: maximum recursion depth exceeded");
  const ChatRenderer long_text(plain_template("{{ messages[0].content * 70000000 }}"));
  EXPECT_EQ(
      render_one(long_text, small, TrainedTurns::nothing).error.find("the chat template makes a text of more than 6"),
      0U);
}

}  // namespace
}  // namespace so
