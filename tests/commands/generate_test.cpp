// superoffload generate: where it ends.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/files.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/speaking_model.h"
#include "support/training_run.h"

namespace so::test {
namespace {

nlohmann::json generate(const std::filesystem::path& model, const std::filesystem::path& directory, bool stop = true) {
  const Outcome o =
      run({binary(), "generate", "--model", model.string(), "--prompt", "Add two numbers.", "--max_new_tokens", "12",
           "--stop_at_eos", stop ? "true" : "false", "--json", "--device", "cpu"},
          directory);
  if (o.exit_code != 0) throw std::runtime_error(o.err);
  return nlohmann::json::parse(o.out);
}

// Published models list several: Llama 3's <|end_of_text|>, <|eom_id|> and <|eot_id|>, of which the tokenizer's end
// token is one.
TEST(Generate, EndsAtEachTokenThatGenerationConfigLists) {
  const TemporaryDirectory temporary;
  const std::filesystem::path model = make_speaking_model(temporary.path());
  const auto file = model / "generation_config.json";
  const auto all = generate(model, temporary.path(), false).at("ids").get<std::vector<int>>();
  ASSERT_EQ(all.size(), 12u);
  for (const std::size_t at : {std::size_t{0}, std::size_t{5}}) {
    const int last = all[at];
    const auto first = std::find(all.begin(), all.end(), last);
    const std::vector<int> before(all.begin(), first);
    for (const nlohmann::json& ends : {nlohmann::json{2004, last}, nlohmann::json{last, 2004}, nlohmann::json(last)}) {
      write_file(file, nlohmann::json{{"eos_token_id", ends}}.dump());
      const auto result = generate(model, temporary.path());
      EXPECT_EQ(result.at("ids").get<std::vector<int>>(), before) << ends;
      EXPECT_EQ(result.at("finish_reason"), "eos") << ends;
      EXPECT_EQ(generate(model, temporary.path(), false).at("ids").get<std::vector<int>>(), all)
          << "--stop_at_eos false";
    }
  }
}

}  // namespace
}  // namespace so::test
