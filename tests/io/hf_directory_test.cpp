#include "io/hf_directory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "support/io.h"

namespace so {
namespace {

using io_test::bytes_of;
using io_test::expect_error;
using io_test::read_file;
using io_test::TemporaryDirectory;
using io_test::write_file;

namespace fs = std::filesystem;

constexpr const char* index_name = "model.safetensors.index.json";

std::vector<TensorSpec> small_model() {
  return {{"embed", DType::bf16, {10, 4}},
          {"a.weight", DType::f32, {6}},
          {"b.weight", DType::bf16, {2, 5}},
          {"head", DType::bf16, {3}}};
}

std::vector<std::uint8_t> content_of(const TensorSpec& spec) {
  std::vector<std::uint8_t> content(spec.bytes());
  std::iota(content.begin(), content.end(), static_cast<std::uint8_t>(spec.name.front()));
  return content;
}

void write_model(const fs::path& directory, std::uint64_t max_shard_bytes) {
  fs::create_directories(directory);
  write_file(directory / "config.json", "{\"model_type\": \"llama\"}");
  HfModelWriter writer(directory, small_model(), max_shard_bytes);
  for (const TensorSpec& spec : small_model()) writer.write(spec.name, 0, bytes_of(content_of(spec)));
  writer.finish();
}

void write_shard(const fs::path& path, const std::vector<std::string>& names) {
  std::vector<TensorSpec> specs;
  for (const std::string& name : names) specs.push_back({name, DType::u8, {1}});
  SafetensorsWriter writer(path, specs, {{"format", "pt"}});
  for (const std::string& name : names) writer.write(name, 0, bytes_of(std::vector<std::uint8_t>{7}));
  writer.finish();
}

// shard_plans.json: made by huggingface_hub, which transformers calls.
TEST(PlanShards, CutsAsTransformersDoes) {
  const auto cases = nlohmann::json::parse(read_file(io_test::fixture("shard_plans.json")));
  ASSERT_GT(cases.size(), 5u);
  for (const auto& expected : cases) {
    SCOPED_TRACE(expected.dump());
    std::vector<TensorSpec> specs;
    for (const std::int64_t size : expected["sizes"])
      specs.push_back({std::to_string(specs.size()), DType::u8, {size}});
    const auto shards = plan_shards(specs, expected["max_shard_bytes"].get<std::uint64_t>());
    nlohmann::json files = nlohmann::json::object();
    std::uint64_t total = 0;
    for (const Shard& shard : shards) {
      files[shard.file] = shard.tensors;
      total += shard.bytes;
    }
    EXPECT_EQ(files, expected["files"]);
    EXPECT_EQ(total, expected["total_size"].get<std::uint64_t>());
  }
}

class HfRoundTrip : public testing::TestWithParam<std::uint64_t> {};

TEST_P(HfRoundTrip, ReadsWhatWasWritten) {
  TemporaryDirectory directory;
  write_model(directory.path(), GetParam());
  const HfDirectory model(directory.path());
  EXPECT_EQ(model.config_json(), "{\"model_type\": \"llama\"}");
  EXPECT_EQ(model.total_bytes(), 80u + 24 + 20 + 6);
  EXPECT_EQ(model.tensor_names().size(), 4u);
  for (const TensorSpec& spec : small_model()) {
    ASSERT_TRUE(model.contains(spec.name));
    EXPECT_EQ(model.info(spec.name).shape, spec.shape);
    EXPECT_EQ(model.info(spec.name).dtype, spec.dtype);
    std::vector<std::uint8_t> content(spec.bytes());
    model.read_into(spec.name, std::as_writable_bytes(std::span(content)));
    EXPECT_EQ(content, content_of(spec));
    std::vector<std::uint8_t> two(2);
    model.read_into(spec.name, 3, std::as_writable_bytes(std::span(two)));
    EXPECT_EQ(two, (std::vector<std::uint8_t>{content[3], content[4]}));
    EXPECT_EQ(std::to_integer<std::uint8_t>(model.bytes(spec.name)[1]), content[1]);
  }
  // The order of names is that of the shards, so that loading reads each file once, front to back.
  std::vector<std::string> in_shard_order;
  for (const auto& shard : model.shards()) {
    in_shard_order.insert(in_shard_order.end(), shard.names().begin(), shard.names().end());
    EXPECT_EQ(&model.shard_of(shard.names().front()), &shard);
  }
  EXPECT_EQ(model.tensor_names(), in_shard_order);
  expect_error([&] { model.info("absent"); }, {"no tensor 'absent'"});
}
INSTANTIATE_TEST_SUITE_P(ShardSizes, HfRoundTrip, testing::Values(1000, 100, 50, 1));

TEST(HfModelWriter, WritesOneFileOrShardsWithAnIndex) {
  TemporaryDirectory directory;
  write_model(directory / "one", default_max_shard_bytes);
  EXPECT_EQ(io_test::names_in(directory / "one"), (std::vector<std::string>{"config.json", "model.safetensors"}));
  write_model(directory / "two", 104);
  EXPECT_EQ(io_test::names_in(directory / "two"),
            (std::vector<std::string>{"config.json", "model-00001-of-00002.safetensors",
                                      "model-00002-of-00002.safetensors", index_name}));
  const auto index = nlohmann::json::parse(read_file(directory / "two" / index_name));
  EXPECT_EQ(index["metadata"]["total_size"], 130);
  EXPECT_EQ(index["weight_map"]["a.weight"], "model-00001-of-00002.safetensors");
  EXPECT_EQ(index["weight_map"]["b.weight"], "model-00002-of-00002.safetensors");
  EXPECT_EQ(index["weight_map"].size(), 4u);
  EXPECT_EQ(SafetensorsReader(directory / "two" / "model-00002-of-00002.safetensors").metadata().at("format"), "pt");
}

TEST(HfModelWriter, WritesNoIndexBeforeEverythingIsThere) {
  TemporaryDirectory directory;
  HfModelWriter writer(directory.path(), small_model(), 104);
  EXPECT_EQ(writer.shard_count(), 2u);
  EXPECT_EQ(writer.total_bytes(), 130u);
  std::vector<std::thread> threads;
  for (const char* name : {"embed", "a.weight", "b.weight"}) {
    threads.emplace_back([&writer, name] {
      for (const TensorSpec& spec : small_model()) {
        if (spec.name == name) writer.write(name, 0, bytes_of(content_of(spec)));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  expect_error<Bug>([&] { writer.finish(); }, {"0 of 6 bytes of head"});
  EXPECT_FALSE(fs::exists(directory / index_name));
  expect_error<Bug>([&] { writer.write("absent", 0, {}); }, {"absent is not in the plan"});
}

TEST(HfDirectory, RefusesWhatIsNoModel) {
  TemporaryDirectory directory;
  expect_error([&] { HfDirectory{directory / "absent"}; }, {"absent is not a directory"});
  expect_error([&] { HfDirectory{directory.path()}; }, {"no config.json"});
  write_file(directory / "config.json", "{}");
  expect_error([&] { HfDirectory{directory.path()}; }, {"no weights", "model.safetensors", index_name});
  write_file(directory / "adapter_model.safetensors", "");
  expect_error([&] { HfDirectory{directory.path()}; }, {"an adapter", "merge"});
  write_file(directory / "pytorch_model.bin", "");
  expect_error([&] { HfDirectory{directory.path()}; }, {"pytorch_model.bin", "save_pretrained"});
}

TEST(HfDirectory, RefusesDisagreeingShards) {
  TemporaryDirectory directory;
  write_file(directory / "config.json", "{}");
  write_shard(directory / "m1.safetensors", {"a", "b"});
  write_shard(directory / "m2.safetensors", {"c"});
  const auto with_index = [&](std::string_view weight_map) {
    write_file(directory / index_name,
               "{\"metadata\":{\"total_size\":3},\"weight_map\":" + std::string(weight_map) + "}");
    return [&] { HfDirectory{directory.path()}; };
  };
  with_index(R"({"a":"m1.safetensors","b":"m1.safetensors","c":"m2.safetensors"})")();  // the good one
  expect_error(with_index(R"({"a":"m1.safetensors","b":"m1.safetensors","c":"m3.safetensors"})"),
               {"m3.safetensors is missing", "not complete"});
  expect_error(with_index(R"({"a":"m1.safetensors","b":"m1.safetensors","c":"m2.safetensors","d":"m2.safetensors"})"),
               {"lists tensor 'd' in m2.safetensors, which does not have it"});
  expect_error(with_index(R"({"a":"m1.safetensors","c":"m2.safetensors"})"),
               {"tensor 'b' is in", "m1.safetensors", "does not list it"});
  expect_error(with_index(R"({"a":"m1.safetensors","b":"m2.safetensors","c":"m2.safetensors"})"),
               {"tensor 'b' is in", "m1.safetensors", "lists it in m2.safetensors"});
  expect_error(with_index(R"({"a":"m1.safetensors","a":"m1.safetensors"})"), {"tensor 'a' appears twice"});
  write_shard(directory / "m2.safetensors", {"c", "a"});
  expect_error(with_index(R"({"a":"m1.safetensors","b":"m1.safetensors","c":"m2.safetensors"})"),
               {"tensor 'a' is in two shards", "m1.safetensors", "m2.safetensors"});
}

TEST(HfDirectory, PrefersTheSingleFileAsTransformersDoes) {
  TemporaryDirectory directory;
  write_model(directory.path(), default_max_shard_bytes);
  write_file(directory / index_name, R"({"weight_map":{"old":"gone.safetensors"}})");
  EXPECT_EQ(HfDirectory(directory.path()).tensor_names().size(), 4u);
}

// As huggingface_hub lays a cache out: models--OWNER--NAME/snapshots/REVISION/FILE -> ../../blobs/HASH.
class DownloadCache : public ::testing::Test {
 protected:
  DownloadCache() {
    write_model(directory_ / "made", 100);
    write_file(directory_ / "made" / "tokenizer.json", "{}");
    fs::create_directories(blobs());
    fs::create_directories(snapshot());
    for (const auto& name : io_test::names_in(directory_ / "made")) add(name, directory_ / "made" / name);
  }
  fs::path blobs() const { return directory_ / "models--a--b" / "blobs"; }
  fs::path snapshot() const { return directory_ / "models--a--b" / "snapshots" / "main"; }
  void add(const std::string& name, const fs::path& file) {
    const std::string blob = std::string(count_ % 2 == 0 ? 39 : 63, 'a') + static_cast<char>('0' + count_ % 10);
    ++count_;
    fs::rename(file, blobs() / blob);
    fs::create_symlink(fs::path("../../blobs") / blob, snapshot() / name);
  }
  void expect_refused(const std::string& name, const fs::path& target) {
    fs::remove(snapshot() / name);
    fs::create_symlink(target, snapshot() / name);
    expect_error([&] { HfDirectory{snapshot()}; }, {name, "is a link out of its directory, to ", "cp -L"});
    fs::remove(snapshot() / name);
  }

  TemporaryDirectory directory_;
  int count_ = 0;
};

TEST_F(DownloadCache, LinksToBlobsAreFollowed) {
  fs::create_directory_symlink(snapshot(), directory_ / "link");
  for (const fs::path& at : {snapshot(), directory_ / "link"}) {
    const HfDirectory model(at);
    EXPECT_EQ(model.tensor_names().size(), 4u);
    EXPECT_EQ(model.auxiliary_files(), std::vector<std::string>{"tokenizer.json"});
    const fs::path copy = directory_ / ("copy-of-" + at.filename().string());
    fs::create_directory(copy);
    model.copy_auxiliary_files(copy);
    EXPECT_FALSE(fs::is_symlink(copy / "tokenizer.json"));
    EXPECT_EQ(read_file(copy / "tokenizer.json"), "{}");
  }
}

// From version 2 of huggingface_hub on: models--a--b/blobs/HASH -> ../../blobs/HA/HASH, which other repositories share.
TEST_F(DownloadCache, LinksToWhatRepositoriesShareAreFollowed) {
  const fs::path file = snapshot() / "tokenizer.json", blob = blobs() / fs::read_symlink(file).filename();
  const std::string hash(64, 'c');
  const auto share = [&](const fs::path& folder) {
    fs::create_directories(directory_ / folder);
    fs::rename(fs::canonical(file), directory_ / folder / hash);
    fs::remove(blob);
    fs::create_symlink("../.." / folder / hash, blob);
  };
  share("blobs/cc");
  EXPECT_EQ(HfDirectory(snapshot()).auxiliary_files(), std::vector<std::string>{"tokenizer.json"});
  for (const char* folder : {"blobs/cd", "blobs", "blobs/cc/cc", "other/cc"}) {
    share(folder);
    expect_error([&] { HfDirectory{snapshot()}; }, {"tokenizer.json is a link out of its directory"});
  }
}

TEST_F(DownloadCache, NoOtherLinkOutOfItIs) {
  write_file(directory_ / "secret", "mine");
  write_file(blobs() / "notes", "mine");
  const std::string hash(40, 'b');
  fs::create_directory(blobs() / "deeper");
  write_file(blobs() / "deeper" / hash, "mine");
  fs::create_symlink(directory_ / "secret", blobs() / hash);
  for (const fs::path& target : {directory_ / "secret", fs::path("../../../secret"), fs::path("../../blobs/notes"),
                                 fs::path("../../blobs") / hash, fs::path("../../blobs/deeper") / hash})
    expect_refused("NOTICE.txt", target);
  for (const char* name : {"tokenizer.json", "config.json", "model.safetensors"}) {
    const fs::path kept = fs::exists(snapshot() / name) ? fs::read_symlink(snapshot() / name) : fs::path();
    expect_refused(name, directory_ / "secret");
    if (!kept.empty()) fs::create_symlink(kept, snapshot() / name);
  }
  // Inside they may lead anywhere.
  fs::create_directory(snapshot() / "deeper");
  write_file(snapshot() / "deeper" / "text", "theirs");
  fs::create_symlink("deeper/text", snapshot() / "LICENSE");
  EXPECT_EQ(HfDirectory(snapshot()).auxiliary_files(), (std::vector<std::string>{"LICENSE", "tokenizer.json"}));
}

TEST(HfDirectory, LinksOutOfItAreRefusedByName) {
  TemporaryDirectory directory;
  const fs::path model = directory / "model", outside = directory / "outside";
  write_model(model, 100);
  fs::create_directory(outside);
  write_file(outside / "rag.jinja", "mine");
  expect_error(
      [&] {
        fs::create_directory_symlink(outside, model / "additional_chat_templates");
        HfDirectory{model};
      },
      {"additional_chat_templates/rag.jinja is a link out of its directory, to ", "outside/rag.jinja"});
  expect_error([&] { copy_auxiliary_files(model, directory.path()); },
               {"additional_chat_templates/rag.jinja is a link"});
  fs::remove(model / "additional_chat_templates");

  // One that takes a file's place later is not followed either.
  write_file(model / "LICENSE", "theirs");
  HfDirectory opened(model);
  fs::remove(model / "LICENSE");
  fs::create_symlink(outside / "rag.jinja", model / "LICENSE");
  fs::create_directory(directory / "copy");
  expect_error([&] { opened.copy_auxiliary_files(directory / "copy"); }, {"LICENSE is a link out of its directory"});
}

TEST(HfDirectory, KnowsWhichFilesToCarryOver) {
  TemporaryDirectory directory;
  write_model(directory.path(), 100);
  const std::vector<std::string> carried{"LICENSE",
                                         "LICENSE.txt",
                                         "NOTICE",
                                         "USE_POLICY.md",
                                         "added_tokens.json",
                                         "additional_chat_templates/rag.jinja",
                                         "additional_chat_templates/tool_use.jinja",
                                         "chat_template.jinja",
                                         "chat_template.json",
                                         "generation_config.json",
                                         "merges.txt",
                                         "modeling_custom.py",
                                         "preprocessor_config.json",
                                         "processor_config.json",
                                         "special_tokens_map.json",
                                         "tekken.json",
                                         "tokenizer.json",
                                         "tokenizer.model",
                                         "tokenizer.model.v3",
                                         "tokenizer_config.json",
                                         "video_preprocessor_config.json",
                                         "vocab.json"};
  fs::create_directory(directory / "additional_chat_templates");
  for (const auto& name : carried) write_file(directory / name, name);
  write_file(directory / "additional_chat_templates/notes.md", "not a template");
  write_file(directory / "merges_of_everything.txt", "");
  fs::resize_file(directory / "merges_of_everything.txt", 600'000'000);  // sparse; data that somebody left there
  ASSERT_EQ(::mkfifo((directory / "vocab.txt").c_str(), 0600), 0);
  for (const char* name :
       {"trainer_state.json", "training_args.bin", "optimizer.pt", "pytorch_model.bin", "adapter_config.json",
        "consolidated.safetensors", "train_results.json", "README.md", "original.gguf"}) {
    write_file(directory / name, name);
  }
  fs::create_directory(directory / "tokenizer.json.d");
  const HfDirectory model(directory.path());
  EXPECT_EQ(model.auxiliary_files(), carried);
  fs::create_directory(directory / "copy");
  model.copy_auxiliary_files(directory / "copy");
  model.copy_auxiliary_files(directory / "copy");  // replaces what is there
  for (const auto& name : carried) EXPECT_EQ(read_file(directory / "copy" / name), name);
  expect_error([&] { model.copy_auxiliary_files(directory / "absent"); }, {"cannot create", "absent", "LICENSE"});
}

TEST(HfDirectory, HoldsItsSmallFiles) {
  TemporaryDirectory directory;
  const fs::path model = directory / "model", copy = directory / "copy";
  write_model(model, 100);
  fs::create_directories(model / "additional_chat_templates");
  for (const char* name : {"tokenizer.json", "additional_chat_templates/rag.jinja"}) write_file(model / name, name);
  HfDirectory opened(model);
  opened.hold_auxiliary_files();
  write_file(model / "tokenizer.json", "of another");
  fs::remove_all(model);
  fs::create_directory(copy);
  opened.copy_auxiliary_files(copy);
  for (const auto& name : opened.auxiliary_files()) EXPECT_EQ(read_file(copy / name), name);
  EXPECT_EQ(opened.auxiliary_files().size(), 2u);
}

// One that is too large to be held in memory: what has changed is not copied, and says so.
TEST(HfDirectory, ALargeFileThatChangesIsNotCopied) {
  TemporaryDirectory directory;
  const fs::path model = directory / "model", copy = directory / "copy";
  write_model(model, 100);
  write_file(model / "LICENSE", "theirs");
  write_file(model / "vocab.txt", "");
  fs::resize_file(model / "vocab.txt", 65'000'000);  // sparse
  HfDirectory opened(model);
  opened.hold_auxiliary_files();
  fs::create_directory(copy);
  fs::resize_file(model / "vocab.txt", 10);
  expect_error([&] { opened.copy_auxiliary_files(copy); }, {"vocab.txt has changed since it was opened"});
  std::vector<std::string> left_out;
  opened.copy_auxiliary_files(copy, [&](const std::string& name, const char*) { left_out.push_back(name); });
  EXPECT_EQ(left_out, std::vector<std::string>{"vocab.txt"});
  EXPECT_EQ(io_test::names_in(copy), std::vector<std::string>{"LICENSE"});
}

TEST(HfDirectory, HoldsThatItHasNone) {
  TemporaryDirectory directory;
  const fs::path model = directory / "model", copy = directory / "copy";
  write_model(model, 100);
  HfDirectory opened(model);
  opened.hold_auxiliary_files();
  fs::remove_all(model);
  fs::create_directory(copy);
  opened.copy_auxiliary_files(copy);
  EXPECT_TRUE(fs::is_empty(copy));
}

TEST(SafetensorsIndex, TakesWhatTransformersWrites) {
  const auto map = parse_safetensors_index(
      R"({"metadata": {"total_size": 16060522496, "x": [1, {"weight_map": {"no": -1.5}}, null, true], "y": "z"},
          "weight_map": {"a": "model-00001-of-00002.safetensors"}, "extra": [[]]})",
      "index");
  EXPECT_EQ(map, (std::map<std::string, std::string>{{"a", "model-00001-of-00002.safetensors"}}));
}

TEST(SafetensorsIndex, RefusesDamage) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "not valid JSON at byte"},
      {"[]", "the index may not be an array"},
      {"7", "the index may not be a number"},
      {"{}", "no weight_map"},
      {R"({"weight_map":{}})", "weight_map is empty"},
      {R"({"weight_map":[]})", "weight_map may not be an array"},
      {R"({"weight_map":"x"})", "weight_map may not be a string"},
      {R"({"weight_map":{"a":1}})", "tensor 'a' may not be a number"},
      {R"({"weight_map":{"a":{}}})", "tensor 'a' may not be an object"},
      {R"({"weight_map":{"a":["x"]}})", "tensor 'a' may not be an array"},
      {R"({"weight_map":{"a":"x"},"weight_map":{"b":"x"}})", "weight_map appears twice"},
      {R"({"weight_map":{"a":"../x"}})", "not in a file of this directory but in '../x'"},
      {R"({"weight_map":{"a":"/etc/passwd"}})", "not in a file of this directory"},
      {R"({"weight_map":{"a":".."}})", "not in a file of this directory"},
      {R"({"weight_map":{"a":""}})", "not in a file of this directory"},
      {R"({"weight_map":{"a":"x\u0000y"}})", "not in a file of this directory"},
      {R"({"metadata":)" + std::string(300'000, '['), "not valid JSON at byte"},
  };
  for (const auto& damage : cases) {
    SCOPED_TRACE(damage.first.substr(0, 80));
    expect_error([&] { parse_safetensors_index(damage.first, "index"); }, {"index: ", damage.second});
  }
}

}  // namespace
}  // namespace so
