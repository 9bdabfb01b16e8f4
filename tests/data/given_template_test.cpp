#include <gtest/gtest.h>
#include <signal.h>

#include "chat_test_util.h"
#include "data/example.h"
#include "data/model_encoder.h"

namespace so {
namespace {

using test::error_of;
using test::render_one;

class GivenTemplates : public ::testing::Test {
 protected:
  void SetUp() override { ::signal(SIGPIPE, SIG_IGN); }  // as main() has it

  // A copy of a tokenizer of the fixtures, with a chat template of its own.
  std::filesystem::path model(const std::string& tokenizer) {
    const std::filesystem::path from = std::filesystem::path(test::fixtures()) / "tokenizer" / tokenizer;
    const std::filesystem::path to = directory_.path / tokenizer;
    std::filesystem::create_directories(to);
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
      test::write_file(to / name, test::read_file(from / name));
    test::write_file(to / "chat_template.jinja", "{{ messages }}");
    return to;
  }
  ModelEncoder encoder(const std::string& tokenizer, const std::string& value) {
    return ModelEncoder(model(tokenizer), 1 << 20, SpecialTokens::parsed, value);
  }
  test::TemporaryDirectory directory_;
};

const std::string given_record =
    R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})";
const std::string given_prompt = R"({"messages":[{"role":"user","content":"a"}]})";

TEST_F(GivenTemplates, AreTheProgramsOwnByName) {
  const ModelEncoder chatml = encoder("qwen3", "chatml");
  const RenderedChat rendered = render_one(ChatRenderer(chatml.chat_template()), given_record);
  EXPECT_EQ(rendered.text(),
            "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n");
  EXPECT_EQ(test::trained_in(rendered), (test::Parts{"b<|im_end|>"}));
  EXPECT_EQ(render_one(ChatRenderer(chatml.chat_template()), given_prompt, TrainedTurns::nothing, true).text(),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_NE(render_one(ChatRenderer(chatml.chat_template()),
                       R"({"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function"}]})")
                .error.find("no form for tools"),
            std::string::npos);
  EXPECT_TRUE(chatml.ends_generation(*chatml.tokenizer().token_to_id("<|im_end|>")));
  EXPECT_EQ(chatml.replaced_files().at("chat_template.jinja"), chatml.chat_template().text);
  EXPECT_NE(error_of([&] { encoder("llama3", "chatml"); }).find("has no special token <|im_start|>"),
            std::string::npos);
  // A model of Alpaca records is asked as they ask.
  const ModelEncoder alpaca = encoder("llama3", "alpaca");
  const std::string bos = alpaca.tokenizer().id_to_token(alpaca.tokenizer().bos_id().value());
  const ChatRenderer renderer(alpaca.chat_template());
  EXPECT_EQ(render_one(renderer, given_prompt, TrainedTurns::nothing, true).text(), bos + alpaca_prompt({"a", "", ""}));
  const std::string end = alpaca.tokenizer().id_to_token(alpaca.tokenizer().eos_id().value());
  EXPECT_EQ(render_one(renderer, given_record).pieces,
            (test::Parts{bos + "s\n\n### Instruction:\na\n\n### Response:\n", "b" + end, ""}));
}

TEST_F(GivenTemplates, AreFilesAndChangeTheKeyOfTheData) {
  const std::filesystem::path file = directory_.path / "own.jinja";
  test::write_file(file, "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}");
  const ModelEncoder own = encoder("qwen3", file.string());
  EXPECT_EQ(own.chat_template().text, test::read_file(file));
  EXPECT_EQ(own.replaced_files().size(), 1U);
  const ModelEncoder models(model("qwen3"), 1 << 20, SpecialTokens::parsed);
  EXPECT_EQ(models.chat_template().text, "{{ messages }}");
  EXPECT_TRUE(models.replaced_files().empty());
  EXPECT_NE(own.chat_template().fingerprint(), models.chat_template().fingerprint());
  const std::string missing = error_of([&] { encoder("qwen3", "chatmal"); });
  EXPECT_EQ(missing, "--chat_template chatmal: there is no such file; give a file of Jinja, or chatml or alpaca");
  test::write_file(file, "Hello");
  EXPECT_NE(error_of([&] { encoder("qwen3", file.string()); }).find("this is no chat template"), std::string::npos);
  EXPECT_NE(error_of([&] { encoder("qwen3", directory_.path.string()); }).find("it is a directory"), std::string::npos);
}

}  // namespace
}  // namespace so
