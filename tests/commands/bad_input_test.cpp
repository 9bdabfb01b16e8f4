// Mistakes a user can make in model directory and data: each is refused with its name, before anything is written.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

#include "support/refusal.h"

namespace so::test {
namespace {

using nlohmann::json;

// The header of a safetensors file as JSON, and the bytes after it.
struct SafetensorsParts {
  json header;
  std::string data;
};

SafetensorsParts take_apart(const std::filesystem::path& path) {
  const std::string bytes = read_file(path);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  return {json::parse(bytes.substr(sizeof length, length)), bytes.substr(sizeof length + length)};
}

void put_together(const std::filesystem::path& path, const SafetensorsParts& parts) {
  const std::string header = parts.header.dump();
  const std::uint64_t length = header.size();
  write_file(path, std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + parts.data);
}

class BadModel : public RefusalTest {
 protected:
  // Changes the header of the weights, leaving the data as it is.
  void edit_header(const std::function<void(json&)>& edit) const {
    SafetensorsParts parts = take_apart(weights());
    edit(parts.header);
    put_together(weights(), parts);
  }
  const std::string tensor_ = "model.layers.1.self_attn.k_proj.weight";
};

// The others prove nothing unless the unchanged copy runs.
TEST_F(BadModel, TheUnchangedCopyRuns) {
  const Outcome o = run(command().words(), temporary_.path());
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_TRUE(std::filesystem::exists(output() / "model.safetensors"));
  EXPECT_EQ(read_file(output() / "notes.txt"), "of an earlier run\n");
}

TEST_F(BadModel, MissingDirectory) {
  expect_refused(command().set("model", (temporary_ / "nowhere").string()), {(temporary_ / "nowhere").string()});
}
TEST_F(BadModel, ADirectoryThatIsAFile) { expect_refused(command().set("model", data().string()), {data().string()}); }
TEST_F(BadModel, MissingConfig) {
  std::filesystem::remove(config());
  expect_refused({"config.json"});
}
TEST_F(BadModel, BrokenConfig) {
  write_file(config(), read_file(config()).substr(0, 200));
  expect_refused({"config.json"});
}
TEST_F(BadModel, ConfigThatIsNoObject) {
  write_file(config(), "[]\n");
  expect_refused({"config.json"});
}
TEST_F(BadModel, MissingWeights) {
  std::filesystem::remove(weights());
  expect_refused({model().string(), "safetensors"});
}
TEST_F(BadModel, TruncatedWeights) {
  const std::string bytes = read_file(weights());
  write_file(weights(), bytes.substr(0, bytes.size() - 1000));
  expect_refused({"model.safetensors"});
}
TEST_F(BadModel, EmptyWeights) {
  write_file(weights(), "");
  expect_refused({"model.safetensors"});
}
TEST_F(BadModel, HeaderLengthBeyondTheFile) {
  std::string bytes = read_file(weights());
  const std::uint64_t length = std::uint64_t{1} << 62;
  std::memcpy(bytes.data(), &length, sizeof length);
  write_file(weights(), bytes);
  expect_refused({"model.safetensors"});
}
TEST_F(BadModel, OffsetsBeyondTheFile) {
  edit_header([&](json& h) { h[tensor_]["data_offsets"] = {h[tensor_]["data_offsets"][0], std::uint64_t{1} << 60}; });
  expect_refused({"model.safetensors", tensor_});
}
TEST_F(BadModel, OverlappingOffsets) {
  edit_header(
      [&](json& h) { h[tensor_]["data_offsets"] = h["model.layers.0.self_attn.k_proj.weight"]["data_offsets"]; });
  expect_refused({"model.safetensors"});
}
TEST_F(BadModel, SizeThatContradictsTheShape) {
  edit_header([&](json& h) { h[tensor_]["shape"] = {32, 31}; });
  expect_refused({"model.safetensors", tensor_});
}
TEST_F(BadModel, IntegerWeight) {
  // Half as many elements of twice the size, so that only the dtype is wrong for the file itself.
  edit_header([&](json& h) {
    h[tensor_]["dtype"] = "int64";
    h[tensor_]["shape"] = {32, 16};
  });
  expect_refused({tensor_, "int64"});
}
TEST_F(BadModel, UnknownDtype) {
  edit_header([&](json& h) { h[tensor_]["dtype"] = "F13"; });
  expect_refused({tensor_, "F13"});
}
TEST_F(BadModel, WrongShape) {
  edit_header([&](json& h) { h[tensor_]["shape"] = {16, 64}; });
  expect_refused({tensor_, "[16, 64]", "[32, 32]"});
}
TEST_F(BadModel, MissingTensor) {
  edit_header([&](json& h) {
    h["model.layers.1.self_attn.k_projection.weight"] = h[tensor_];
    h.erase(tensor_);
  });
  expect_refused({tensor_});
}
TEST_F(BadModel, ExtraTensor) {
  SafetensorsParts parts = take_apart(weights());
  parts.header["model.layers.1.self_attn.sinks"] = {
      {"dtype", "F32"}, {"shape", {4}}, {"data_offsets", {parts.data.size(), parts.data.size() + 16}}};
  parts.data += std::string(16, '\0');
  put_together(weights(), parts);
  expect_refused({"model.layers.1.self_attn.sinks"});
}
TEST_F(BadModel, MissingShard) {
  std::filesystem::remove_all(model());
  std::filesystem::copy(model_fixture("llama-sharded") / "model", model(), std::filesystem::copy_options::recursive);
  std::filesystem::remove(model() / "model-00002-of-00003.safetensors");
  expect_refused({"model-00002-of-00003.safetensors"});
}

// config.json: what is not understood must be refused if it changes the result, and only then.
class BadConfig : public RefusalTest {
 protected:
  void set(const std::string& key, const json& value) const {
    edit_json(config(), [&](json& c) { c[key] = value; });
  }
};

TEST_F(BadConfig, UnknownKeyIsIgnored) {
  set("a_key_of_the_future", {{"nested", true}});
  const Outcome o = run(command().words(), temporary_.path());
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(read_json(output() / "config.json").at("a_key_of_the_future"), json({{"nested", true}}));
}
TEST_F(BadConfig, UnknownArchitecture) {
  edit_json(config(), [](json& c) {
    c["architectures"] = {"PerceiverForCausalLM"};
    c["model_type"] = "perceiver";
  });
  expect_refused({"PerceiverForCausalLM"});
}
TEST_F(BadConfig, UnsupportedActivation) {
  set("hidden_act", "gelu");
  expect_refused({"config.json", "hidden_act", "gelu"});
}
TEST_F(BadConfig, UnsupportedRope) {
  set("rope_parameters", {{"rope_type", "spiral"}, {"rope_theta", 10000.0}});
  expect_refused({"config.json", "spiral"});
}
TEST_F(BadConfig, DropoutIsNotLeftOutSilently) {
  set("attention_dropout", 0.1);
  expect_refused({"config.json", "attention_dropout"});
}
TEST_F(BadConfig, ThatFloat16BecomesBfloat16IsSaid) {
  edit_json(config(), [](json& c) {
    c.erase("torch_dtype");
    c["dtype"] = "float16";
  });
  const Outcome o = run(command().without("dtype").flag("dry_run").words(), temporary_.path());
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_NE(o.err.find("stored in float16; computed, and written, is in bfloat16"), std::string::npos) << o.err;
}
TEST_F(BadConfig, KeysThatContradictEachOther) {
  set("model_type", "llama");
  expect_refused({"config.json", "model_type", "'llama'", "Qwen3ForCausalLM"});
}
TEST_F(BadConfig, WrongTypeOfValue) {
  set("hidden_size", "thirty-two");
  expect_refused({"config.json", "hidden_size"});
}
TEST_F(BadConfig, NegativeSize) {
  set("num_hidden_layers", -2);
  expect_refused({"config.json", "num_hidden_layers"});
}
TEST_F(BadConfig, ZeroHeads) {
  set("num_attention_heads", 0);
  expect_refused({"config.json", "num_attention_heads"});
}
TEST_F(BadConfig, HeadsThatDoNotDivide) {
  set("num_key_value_heads", 3);
  expect_refused({"config.json", "num_key_value_heads"});
}
TEST_F(BadConfig, MissingSize) {
  edit_json(config(), [](json& c) { c.erase("intermediate_size"); });
  expect_refused({"config.json", "intermediate_size"});
}

class BadData : public RefusalTest {
 protected:
  // The message must lead the reader to the line.
  void expect_line_refused(std::size_t line, std::vector<std::string> needles = {}) const {
    needles.push_back(data().string() + ":" + std::to_string(line));
    expect_refused(needles);
  }
};

TEST_F(BadData, MissingFile) {
  std::filesystem::remove(data());
  expect_refused({data().string()});
}
TEST_F(BadData, EmptyFile) {
  write_file(data(), "");
  expect_refused({data().string()});
}
TEST_F(BadData, OnlyBlankLines) {
  write_file(data(), "\n\n  \n");
  expect_refused({data().string()});
}
TEST_F(BadData, CutInTheMiddle) {
  const auto lines = lines_of(read_file(data()));
  const std::string bytes = read_file(data());
  write_file(data(), bytes.substr(0, bytes.size() - lines.back().size() / 2));
  expect_line_refused(lines.size());
}

struct BadRecord {
  const char* name;
  std::size_t line;
  const char* record;
  std::vector<std::string> needles;
};
class BadRecords : public BadData, public testing::WithParamInterface<BadRecord> {};
TEST_P(BadRecords, AreRefusedByTheirLine) {
  replace_record(GetParam().line, GetParam().record);
  expect_line_refused(GetParam().line, GetParam().needles);
}
INSTANTIATE_TEST_SUITE_P(
    All, BadRecords,
    testing::Values(
        BadRecord{"NotJson", 3, "input_ids: 3 4 5", {}}, BadRecord{"NotAnObject", 4, "[3, 4, 5]", {}},
        BadRecord{"UnknownRecord", 2, R"({"question": "why", "answer": "because"})", {}},
        BadRecord{"LabelsOfAnotherLength", 5, R"({"input_ids":[3,4,5],"labels":[3,4]})", {"labels"}},
        BadRecord{"IdThatIsNoInteger", 3, R"({"input_ids":[3,4.5,5],"labels":[3,4,5]})", {"input_ids"}},
        BadRecord{"IdBeyondTheVocabulary", 3, R"({"input_ids":[3,251,5],"labels":[3,4,5]})", {"251"}},
        BadRecord{"NegativeId", 3, R"({"input_ids":[3,-1,5],"labels":[3,4,5]})", {"-1"}},
        BadRecord{"LabelBeyondTheVocabulary", 7, R"({"input_ids":[3,4,5],"labels":[3,4,900]})", {"900"}},
        BadRecord{"NegativeLabelOtherThanTheIgnoredOne", 7, R"({"input_ids":[3,4,5],"labels":[3,-7,5]})", {"-7"}}),
    [](const auto& tested) { return std::string(tested.param.name); });

TEST_F(BadData, TextWithoutATokenizer) {
  write_file(data(), R"({"instruction": "Add.", "input": "1 and 1", "output": "2"})"
                     "\n");
  expect_refused({"tokenizer.json"});
}
TEST_F(BadData, BrokenTokenizer) {
  write_file(data(), R"({"instruction": "Add.", "input": "1 and 1", "output": "2"})"
                     "\n");
  write_file(model() / "tokenizer.json", R"({"version": "1.0", "model": {"type": "BPE")");
  expect_refused({"tokenizer.json"});
}

}  // namespace
}  // namespace so::test
