// DeepSpeed files as files: comments, malformed and hostile JSON, files that are not there.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "options/deepspeed_text.h"

namespace so {
namespace {

TEST(DeepSpeedConfig, Comments) {
  const Applied a = read(
      "// head\n{ # a \"quoted\" remark\n \"steps_per_print\": /* not 4 */ 5, // rest\n"
      " \"optimizer\": {\"type\": \"AdamW\"} /* end\n */ }\n# tail");
  EXPECT_EQ(a.error, "");
  EXPECT_EQ(a.options.log_interval, 5);
  // Comment signs within a string are text.
  EXPECT_EQ(read(R"({"zero_optimization": {"offload_optimizer": {"nvme_path": "/a//b#c/*d"}}})").error, "");
  EXPECT_EQ(read(R"({"zero_optimization": {"offload_optimizer": {"nvme_path": "a\"// b"}}})").error, "");
  EXPECT_EQ(read("{}\n  /* never closed").error, "ds.json:2:3: this comment has no end; add */");
}

TEST(DeepSpeedConfig, MalformedJsonHasLineAndColumn) {
  const auto place = [](const std::string& text) {
    const std::string error = read(text).error;
    const std::size_t end = error.find(": not valid JSON");
    return end == std::string::npos ? "none: " + error : error.substr(0, end);
  };
  EXPECT_EQ(place("{\n  \"steps_per_print\": 1,\n  oops\n}"), "ds.json:3:3");
  EXPECT_EQ(place("{\n  \"steps_per_print\": 1,\n}"), "ds.json:3:1");
  EXPECT_EQ(place("{\"a\": 1"), "ds.json:1:8");  // just past the end
  EXPECT_EQ(place(""), "ds.json:1:1");
  EXPECT_EQ(place("// c\n{\"a\" 1}"), "ds.json:2:6");
  EXPECT_EQ(place("{} {}"), "ds.json:1:4");
  EXPECT_EQ(place("{\"a\": \"\xff\"}").rfind("ds.json:1:", 0), 0u);
  EXPECT_EQ(read("[]").error, "ds.json: must be a JSON object, is array");
  // Too large for any number type, or none: their keys refuse them.
  for (const char* number : {"1e999", "NaN", "1000000000000000019884624838656"})
    EXPECT_NE(read(std::string("{\"train_batch_size\": ") + number + "}").error.find("train_batch_size"),
              std::string::npos);
}

TEST(DeepSpeedConfig, RefusesHostileStructure) {
  EXPECT_EQ(read(R"({"steps_per_print": 1, "steps_per_print": 2})").error,
            "ds.json: key \"steps_per_print\" is given twice in one object");
  EXPECT_EQ(read(std::string(100000, '[')).error, "ds.json: nested deeper than 32 levels");
  EXPECT_EQ(read(std::string((1 << 20) + 1, ' ')).error,
            "ds.json: larger than 1048576 bytes: this is no DeepSpeed configuration");
  EXPECT_EQ(read("{\"a\\nb\": 1}").error,
            "ds.json: unknown key \"a\\x0ab\"; remove it (docs/deepspeed-config.md lists the known keys)");
  EXPECT_EQ(read(R"({"train_batch_size": 1e300})").error,
            "ds.json: train_batch_size is 1e+300; it must be a whole number from 1 to 1000000000000");
}

TEST(DeepSpeedConfig, ReadsAFile) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "so_deepspeed_config_test.json";
  std::ofstream(file) << superoffload_recipe;
  TrainOptions options;
  OptionOrigins origins;
  apply_deepspeed_config(file.string(), 1, options, origins);
  EXPECT_EQ(options.offload_ratio, 0.9);
  std::filesystem::remove(file);
  for (const std::string& bad : {file.string(), std::string(testing::TempDir())}) {  // gone; a directory
    try {
      apply_deepspeed_config(bad, 1, options, origins);
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("cannot open " + bad + ": "), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("; check --deepspeed_config"), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace so
