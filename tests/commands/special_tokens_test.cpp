// The spelling of special tokens inside records and texts: taken for the token or, where asked, for text; counted
// either way, and never mixed up by a cache or a checkpoint.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/paths.h"
#include "support/refusal.h"
#include "support/speaking_model.h"

namespace so::test {
namespace {

class SpecialTokensInText : public testing::Test {
 protected:
  SpecialTokensInText() : model_(make_speaking_model(temporary_.path())) {
    write_file(data(), "{\"text\": \"one<|im_end|>two<|im_start|>\"}\n{\"text\": \"three <|im_end|> four\"}\n");
  }
  std::filesystem::path data() const { return temporary_ / "data.jsonl"; }
  std::filesystem::path cache() const { return temporary_ / "cache"; }

  Outcome train(const std::vector<std::string>& more) const {
    std::vector<std::string> words = TrainCommand(model_, data(), temporary_ / "out")
                                         .set("cache_dir", cache().string())
                                         .set("max_length", "64")
                                         .set("max_steps", "1")
                                         .words();
    words.insert(words.end(), more.begin(), more.end());
    return run(words, temporary_.path());
  }
  nlohmann::json tokenize(const std::string& text, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words{test::binary(), "tokenize", "--model", model_.string(), "--text", text, "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome o = run(words, temporary_.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return nlohmann::json::parse(o.out);
  }
  std::ptrdiff_t caches() const {
    return std::count_if(std::filesystem::directory_iterator(cache()), {},
                         [](const auto& entry) { return entry.path().extension() == ".tokens"; });
  }

  TemporaryDirectory temporary_;
  std::filesystem::path model_;
};

TEST_F(SpecialTokensInText, AreCountedWhereDataIsLoaded) {
  for (const char* cached : {"new", "of an earlier run"}) {
    const Outcome o = train({"--dry_run", "--verbose"});
    ASSERT_EQ(o.exit_code, 0) << o.err;
    EXPECT_NE(o.err.find("3 special tokens in the text"), std::string::npos) << o.err;
    EXPECT_NE(o.err.find(cached), std::string::npos) << o.err;
  }
  const Outcome o = train({"--dry_run", "--parse_special_tokens", "false"});
  ASSERT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(o.err.find("special tokens in the text"), std::string::npos) << o.err;
  EXPECT_EQ(caches(), 2) << "one for each way";
}

TEST_F(SpecialTokensInText, AResumedRunMustAgree) {
  ASSERT_EQ(train({}).exit_code, 0);
  expect_refusal(train({"--resume", "--parse_special_tokens", "false"}),
                 {"parse_special_tokens: true recorded, false now"});
}

TEST_F(SpecialTokensInText, TokenizeCountsThemAndTakesThemAsTextWhereAsked) {
  const nlohmann::json parsed = tokenize("a<|im_end|>b"),
                       text = tokenize("a<|im_end|>b", {"--parse_special_tokens", "false"});
  EXPECT_EQ(parsed.at("special_tokens_in_text"), 1);
  EXPECT_EQ(parsed.at("ids").size(), 3u);
  EXPECT_EQ(text.at("special_tokens_in_text"), 0);
  EXPECT_GT(text.at("ids").size(), 3u);
  EXPECT_EQ(tokenize("a b").at("special_tokens_in_text"), 0);
  expect_refusal(run({test::binary(), "tokenize", "--model", model_.string(), "--decode", "1 2",
                      "--parse_special_tokens", "false"},
                     temporary_.path()),
                 {"--parse_special_tokens", "--decode"});
}

TEST_F(SpecialTokensInText, DecodeSaysWhichIdsHaveNoToken) {
  const auto decode = [&](const std::string& ids) {
    return run({test::binary(), "tokenize", "--model", model_.string(), "--decode", ids}, temporary_.path());
  };
  const Outcome known = decode("1 2"), unknown = decode("1 9999998 2 9999999 9999998");
  EXPECT_EQ(known.err, "");
  EXPECT_EQ(unknown.exit_code, 0);
  EXPECT_EQ(unknown.out, known.out);
  EXPECT_NE(unknown.err.find("no token for 9999998 and 1 more, which decode to nothing"), std::string::npos)
      << unknown.err;
}

TEST_F(SpecialTokensInText, EvalAndGenerateTakeTheOption) {
  const auto answer = [&](const std::string& command, const char* parse) {
    std::vector<std::string> words{test::binary(),           command, "--model", model_.string(), "--json",
                                   "--parse_special_tokens", parse};
    if (command == "eval")
      words.insert(words.end(), {"--data", data().string(), "--cache_dir", cache().string(), "--max_length", "64"});
    else
      words.insert(words.end(), {"--prompt", "one<|im_start|>two", "--max_new_tokens", "1"});
    const Outcome o = run(words, temporary_.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return nlohmann::json::parse(o.out);
  };
  EXPECT_LT(answer("eval", "true").at("tokens").get<int>(), answer("eval", "false").at("tokens").get<int>());
  EXPECT_LT(answer("generate", "true").at("prompt_tokens").get<int>(),
            answer("generate", "false").at("prompt_tokens").get<int>());
}

}  // namespace
}  // namespace so::test
