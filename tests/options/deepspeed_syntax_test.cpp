// DeepSpeed files as files: comments, malformed and hostile JSON, files that are not there.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "options/deepspeed_text.h"
#include "options/hjson.h"

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
  EXPECT_EQ(read("{}\n  /* never closed").error, "ds.json:2:3: not valid JSON: this comment has no end; add */");
}

TEST(DeepSpeedConfig, MalformedJsonHasLineAndColumn) {
  const auto place = [](const std::string& text) {
    const std::string error = read(text).error;
    const std::size_t end = error.find(": not valid JSON");
    return end == std::string::npos ? "none: " + error : error.substr(0, end);
  };
  EXPECT_EQ(place("{\n  \"steps_per_print\": 1,\n  oops\n}"), "ds.json:3:3");
  EXPECT_EQ(place("{\"a\": 1"), "ds.json:1:8");  // just past the end
  EXPECT_EQ(place(""), "ds.json:1:1");
  EXPECT_EQ(place("// c\n{\"a\" 1}"), "ds.json:2:2");
  EXPECT_EQ(place("{} {}"), "ds.json:1:4");
  EXPECT_EQ(place("{\"a\": \"\xff\"}").rfind("ds.json:1:", 0), 0u);
  EXPECT_EQ(read("[]").error, "ds.json: must be a JSON object, is array");
  // Too large for any number type, or none: their keys refuse them.
  for (const char* number : {"1e999", "1000000000000000019884624838656"})
    EXPECT_NE(read(std::string("{\"train_batch_size\": ") + number + "}").error.find("train_batch_size"),
              std::string::npos);
}

// The results of Python's hjson 3.1.0, with which DeepSpeed reads its files.
TEST(DeepSpeedConfig, ReadsHjson) {
  const std::pair<const char*, const char*> cases[] = {
      {"{\n  train_batch_size: 1\n  # comment\n  zero_optimization: {\n    stage: 2\n  }\n}\n",
       R"({"train_batch_size":1,"zero_optimization":{"stage":2}})"},
      {"{\"train_batch_size\": 24,}", R"({"train_batch_size":24})"},
      {"{a: [1, 2,], b: [1\n 2\n], c: [x\n y\n],}", R"({"a":[1,2],"b":[1,2],"c":["x","y"]})"},
      {"a: 1\nb: {c: true, d: null\n e: false}\n", R"({"a":1,"b":{"c":true,"d":null,"e":false}})"},
      {"{a: 'it is \"b\"', \"c\": \"d's\", 'e': 'f\\'g'}", R"({"a":"it is \"b\"","c":"d's","e":"f'g"})"},
      {"{device: cpu\n n: -1.5e-3 // less\n o: 5 /* more */, p: 2 # rest\n}",
       R"({"device":"cpu","n":-0.0015,"o":5,"p":2})"},
      {"{a: cpu, b: 1\n}", R"({"a":"cpu, b: 1"})"},
      {"{a: cpu # b\n}", R"({"a":"cpu # b"})"},
      {"{a: 01\nb: +4\nc: 1.\nd: .5\ne: truely\nf: NaN\n}",
       R"({"a":"01","b":"+4","c":"1.","d":".5","e":"truely","f":"NaN"})"},
      {"{\r\n  a: b c\r\n  d: 1\r\n}\r\n", R"({"a":"b c","d":1})"},
      {"{\"\": \"\\u00e4\\n\", \"a.b\":\"x\" c:\"y\"}", R"({"":"\u00e4\n","a.b":"x","c":"y"})"},
  };
  for (const auto& [text, expected] : cases) {
    SCOPED_TRACE(text);
    try {
      EXPECT_EQ(parse_hjson(text, "ds.json"), nlohmann::json::parse(expected));
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
  const std::pair<const char*, const char*> errors[] = {
      {"{a: 1,\n b 2}", "ds.json:2:2: not valid JSON: \"b 2\" is no name with a : behind it"},
      {"{a:\n 1,, b: 2}", "ds.json:2:4: not valid JSON: the name of a value should be here"},
      {"{a: [1,, 2]}", "ds.json:1:8: not valid JSON: a value should be here"},
      {"{\n\"a: 1\n}", "ds.json:2:1: not valid JSON: the quote that opens here is not closed"},
      {"{a: {b: 1}\n", "ds.json:2:1: not valid JSON: the file ends within an object; add }"},
      {"{a: [1\n", "ds.json:2:1: not valid JSON: the file ends within a list; add ]"},
      {"{a: }", "ds.json:1:5: not valid JSON: a value should be here"},
      {"{a b: 1}", "ds.json:1:2: not valid JSON: \"a b\" is no name with a : behind it"},
      {"{a: cpu}", "ds.json:1:9: not valid JSON: the file ends within an object; add }"},
      {"{a: '''b'''}", "ds.json:1:5: not valid JSON: texts between ''' are not read; write it in quotes"},
      {"{a: \"\\q\"}",
       "ds.json:1:5: not valid JSON: this text has an escape or a control character that JSON does not know"},
      {"{a: 1}}", "ds.json:1:7: not valid JSON: the end of the file should be here"},
      {"{a: 1\n a: 2}", "ds.json:2:2: key \"a\" is given twice in one object"},
      {"# nothing\n", "ds.json:1:1: not valid JSON: the file is empty"},
  };
  for (const auto& [text, message] : errors) EXPECT_EQ(read(text).error, message) << text;
}

// What other programs call a configuration, in YAML or JSON.
TEST(DeepSpeedConfig, OtherProgramsFilesAreNamed) {
  for (
      const auto& [text, start] :
      {std::pair(
           "compute_environment: LOCAL_MACHINE\ndebug: false\ndeepspeed_config:\n  zero_stage: 3\n",
           "ds.json: compute_environment is a key of Accelerate, not of DeepSpeed; give the DeepSpeed file that it "
           "names as deepspeed_config_file"),
       {"{\"distributed_type\": \"DEEPSPEED\"}", "ds.json: distributed_type is a key of Accelerate"},
       {"# a\nbase_model: x\ndatasets:\n  - path: a\n    type: b\n",
        "ds.json: base_model is a key of axolotl, not of DeepSpeed; give the DeepSpeed file that it names as deepspeed"},
       {"### model\nmodel_name_or_path: x\nstage: sft\n", "ds.json: model_name_or_path is a key of a trainer"},
       {"model: m\ndata:\n- a\n",
        "ds.json: data is a key of this program's options, not of DeepSpeed; give it as "
        "--config"}}) {
    const std::string error = read(text).error;
    EXPECT_EQ(error.substr(0, std::string_view(start).size()), start) << error;
  }
}

TEST(DeepSpeedConfig, RefusesHostileStructure) {
  EXPECT_EQ(read(R"({"steps_per_print": 1, "steps_per_print": 2})").error,
            "ds.json:1:24: key \"steps_per_print\" is given twice in one object");
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
