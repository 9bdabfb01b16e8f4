// Conversations through the program: shown, trained on, answered.
#include <gtest/gtest.h>

#include "support/files.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/speaking_model.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

const char* const conversation =
    R"({"messages":[{"role":"user","content":"One"},{"role":"assistant","content":"Two"},)"
    R"({"role":"user","content":"Three\u001b[31m"},{"role":"assistant","content":"Four\nfive"}]})"
    "\n";

// The tokenizer of a fixture with a published template.
fs::path make_tokenizer(const fs::path& directory) {
  const fs::path source = fs::path(fixtures()) / "tokenizer" / "qwen3";
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    fs::copy_file(source / name, directory / name, fs::copy_options::overwrite_existing);
  fs::copy_file(fs::path(fixtures()) / "chat" / "templates" / "qwen2_5.jinja", directory / "chat_template.jinja",
                fs::copy_options::overwrite_existing);
  return directory;
}

class TokenizeShow : public ::testing::Test {
 protected:
  TokenizeShow() {
    make_tokenizer(temporary_.path());
    write_file(temporary_.path() / "chats.jsonl", std::string("{\"text\":1}\n") + conversation);
  }
  Outcome show(std::vector<std::string> more) {
    std::vector<std::string> line = {binary(), "tokenize", "--model", "."};
    if (more.empty() || !more.front().starts_with("--show")) line.insert(line.end(), {"--show", "chats.jsonl"});
    line.insert(line.end(), more.begin(), more.end());
    return run(line, temporary_.path(), {.directory = temporary_.path()});
  }
  const TemporaryDirectory temporary_;
};

TEST_F(TokenizeShow, MarksWhatIsTrained) {
  const Outcome plain = show({"--record", "2"});
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_TRUE(
      plain.out.ends_with("<|im_start|>user\nOne<|im_end|>\n<|im_start|>assistant\n⟦Two<|im_end|>⟧\n"
                          "<|im_start|>user\nThree?[31m<|im_end|>\n<|im_start|>assistant\n⟦Four\nfive<|im_end|>⟧\n"))
      << plain.out;
  EXPECT_NE(plain.err.find("chats.jsonl:2: chat record, "), std::string::npos) << plain.err;
  EXPECT_TRUE(show({"--record", "2", "--mask_history"}).out.find("⟦Two") == std::string::npos);
  EXPECT_TRUE(show({"--record", "2", "--train_on_prompt"}).out.ends_with("five<|im_end|>\n⟧\n"));
}

TEST_F(TokenizeShow, InColour) {
  const Outcome colored = show({"--record", "2", "--color", "always"});
  EXPECT_NE(colored.out.find("assistant\n\033[30;42mFour\033[0m\n\033[30;42mfive<|im_end|>\033[0m\n"),
            std::string::npos)
      << colored.out;
  EXPECT_EQ(colored.out.find("⟦"), std::string::npos);
}

TEST_F(TokenizeShow, AsJson) {
  const Outcome o = show({"--record", "2", "--json"});
  const nlohmann::json shown = nlohmann::json::parse(o.out);
  EXPECT_EQ(shown.at("format"), "chat");
  ASSERT_EQ(shown.at("ids").size(), shown.at("labels").size());
  std::string trained;
  for (std::size_t i = 0; i < shown.at("ids").size(); ++i) {
    if (shown["labels"][i] == -100) continue;
    EXPECT_EQ(shown["labels"][i], shown["ids"][i]);
    trained += shown["tokens"][i].get<std::string>();
  }
  EXPECT_EQ(trained, "Two<|im_end|>FourĊfive<|im_end|>");
}

TEST_F(TokenizeShow, SaysWhatIsWrong) {
  EXPECT_NE(show({}).err.find("chats.jsonl:1: \"text\" is a number"), std::string::npos);
  EXPECT_NE(show({"--record", "3"}).err.find("chats.jsonl: the file has 2 records, and number 3 is asked for"),
            std::string::npos);
  // Data may be all that train takes.
  fs::create_directory(temporary_.path() / "more");
  write_file(temporary_.path() / "more" / "a.jsonl", conversation);
  EXPECT_NE(show({"--show=more", "--record=1"}).err.find("more/a.jsonl:1: chat record, "), std::string::npos);
  EXPECT_NE(show({"--show=chats.jsonl,more/*", "--record=3"}).err.find("more/a.jsonl:1: chat record, "),
            std::string::npos);
  EXPECT_NE(show({"--show=chats.jsonl,more", "--record=4"}).err.find("2 files have 3 records"), std::string::npos);
  EXPECT_NE(show({"--show=none.*"}).err.find("--show none.*: no file has such a name"), std::string::npos);
  fs::remove(temporary_.path() / "chat_template.jinja");
  const Outcome without = show({"--record", "2"});
  EXPECT_EQ(without.exit_code, 2);
  EXPECT_NE(without.err.find("the model has no chat template"), std::string::npos) << without.err;
  const Outcome alone = run({binary(), "tokenize", "--model", ".", "--text", "a", "--record", "2"}, temporary_.path(),
                            {.directory = temporary_.path()});
  EXPECT_NE(alone.err.find("--record is for a record: give --show FILE"), std::string::npos) << alone.err;
}

class Talk : public ::testing::Test {
 protected:
  Talk() : model_(make_speaking_model(temporary_.path())) {
    fs::copy_file(fs::path(fixtures()) / "chat" / "templates" / "qwen2_5.jinja", model_ / "chat_template.jinja");
  }
  nlohmann::json generate(std::vector<std::string> more) {
    std::vector<std::string> line = {binary(), "generate",         "--model", model_.string(), "--json", "--device",
                                     "cpu",    "--max_new_tokens", "8"};
    line.insert(line.end(), more.begin(), more.end());
    const Outcome o = run(line, temporary_.path());
    if (o.exit_code != 0) throw std::runtime_error(o.err);
    return nlohmann::json::parse(o.out);
  }
  Outcome chat(const std::string& input, const std::string& more = "") {
    write_file(temporary_.path() / "input", input);
    return run({"/bin/sh", "-c",
                binary() + " chat --model " + model_.string() + " --device cpu --max_new_tokens 8 " + more + " < " +
                    (temporary_.path() / "input").string()},
               temporary_.path());
  }
  const TemporaryDirectory temporary_;
  const fs::path model_;
};

TEST_F(Talk, TrainsOnConversations) {
  write_file(temporary_.path() / "chats.jsonl", std::string(conversation) + conversation);
  const auto train = [&](std::vector<std::string> more) {
    std::vector<std::string> line = {binary(),
                                     "train",
                                     "--model",
                                     model_.string(),
                                     "--data",
                                     "chats.jsonl",
                                     "--device",
                                     "cpu",
                                     "--max_steps",
                                     "1",
                                     "--batch_size",
                                     "2",
                                     "--output_dir",
                                     "out",
                                     "--overwrite_output_dir",
                                     "--cache_dir",
                                     "cache",
                                     "--warmup",
                                     "0"};
    line.insert(line.end(), more.begin(), more.end());
    return run(line, temporary_.path(), {.directory = temporary_.path()});
  };
  const Outcome all = train({});
  EXPECT_EQ(all.exit_code, 0) << all.err;
  EXPECT_NE(all.err.find("data: chats.jsonl: 2 records, "), std::string::npos) << all.err;
  EXPECT_EQ(all.err.find("warning"), std::string::npos) << all.err;
  const Outcome last = train({"--mask_history"});
  const auto trained = [](const Outcome& o) {
    const std::size_t end = o.err.find(" of them trained on");
    return std::stoi(o.err.substr(o.err.rfind(' ', end - 1) + 1));
  };
  EXPECT_LT(trained(last), trained(all));
  // The trained model has the template, and speaks.
  EXPECT_EQ(run({binary(), "generate", "--model", "out", "--prompt", "One", "--chat", "--device", "cpu",
                 "--max_new_tokens", "2"},
                temporary_.path(), {.directory = temporary_.path()})
                .exit_code,
            0);
}

TEST_F(Talk, GenerateRendersThePrompt) {
  const std::string text =
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nOne<|im_end|>\n<|im_start|>assistant\n";
  const nlohmann::json plain = generate({"--prompt", text});
  const nlohmann::json chat = generate({"--prompt", "One", "--chat", "--system", "Be brief."});
  EXPECT_EQ(chat.at("ids"), plain.at("ids"));
  EXPECT_EQ(chat.at("prompt_tokens"), plain.at("prompt_tokens"));
  const fs::path file = temporary_.path() / "messages.json";
  write_file(file, R"({"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"One"}]})");
  EXPECT_EQ(generate({"--messages", file.string()}).at("ids"), plain.at("ids"));
  write_file(file, R"({"text":"a"})");
  EXPECT_THROW(generate({"--messages", file.string()}), std::runtime_error);
  EXPECT_THROW(generate({"--prompt", "a", "--system", "b"}), std::runtime_error);
}

// The second answer is that of the whole conversation, though the model has read most of it before.
TEST_F(Talk, ChatRemembersTheConversation) {
  const Outcome o = chat("One\n\nTwo\n");
  ASSERT_EQ(o.exit_code, 0) << o.err;
  const std::string first = generate({"--prompt", "One", "--chat"}).at("text");
  ASSERT_TRUE(o.out.starts_with(first + "\n")) << o.out;
  const fs::path file = temporary_.path() / "messages.json";
  const nlohmann::json messages = {{{"role", "user"}, {"content", "One"}},
                                   {{"role", "assistant"}, {"content", first}},
                                   {{"role", "user"}, {"content", "Two"}}};
  write_file(file, nlohmann::json{{"messages", messages}}.dump());
  const std::string second = generate({"--messages", file.string()}).at("text");
  EXPECT_EQ(o.out, first + "\n" + second + "\n");
  EXPECT_EQ(chat("One\n/clear\nOne\n/exit\nTwo\n").out, first + "\n" + first + "\n");
}

TEST_F(Talk, ChatSaysWhatItCannotDo) {
  EXPECT_NE(chat("/nothing\n").err.find("/nothing: known are /clear and /exit"), std::string::npos);
  const Outcome full = chat("One two three four five\n", "--max_length 8");
  EXPECT_EQ(full.exit_code, 0);
  EXPECT_NE(full.err.find("tokens, and --max_length is 8; /clear begins a new one"), std::string::npos) << full.err;
  fs::remove(model_ / "chat_template.jinja");
  const Outcome without = chat("One\n");
  EXPECT_EQ(without.exit_code, 2);
  EXPECT_NE(without.err.find("the model has no chat template"), std::string::npos) << without.err;
}

}  // namespace
}  // namespace so::test
