#include "io/hub_cache.h"

#include <gtest/gtest.h>

#include <map>

#include "io/hub_snapshot.h"
#include "support/hub_cache.h"
#include "support/io.h"

namespace so {
namespace {

namespace fs = std::filesystem;
using io_test::expect_error;
using io_test::write_file;

std::string found_name(std::string_view text, HubKind kind) {
  const auto name = hub_name(text, kind);
  return name ? name->id + "|" + name->revision + "|" + name->inside : "none";
}

TEST(HubName, IsWhatTheClientTakes) {
  const std::pair<std::string, std::string> names[] = {
      {"Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B||"},
      {"a/b", "a/b||"},
      {"_a/b_.c-d", "_a/b_.c-d||"},
      {"a/b@v1.0", "a/b|v1.0|"},
      {"a/b@refs/pr/3", "a/b|refs/pr/3|"},
      {std::string(96, 'a') + "/" + std::string(96, 'b'), std::string(96, 'a') + "/" + std::string(96, 'b') + "||"}};
  for (const auto& [text, parts] : names) {
    EXPECT_EQ(found_name(text, HubKind::model), parts);
    EXPECT_EQ(found_name(text, HubKind::dataset), parts);
  }
  EXPECT_EQ(found_name("a/b@feature/x", HubKind::model), "a/b|feature/x|");
  for (const std::string text : {"",           "a",           "gpt2",
                                 "/a/b",       "./a/b",       "../a",
                                 "a/..",       "a/.",         "a//b",
                                 "a/b/",       "a/b/c",       "-a/b",
                                 "a/-b",       "a-/b",        "a/b-",
                                 ".a/b",       "a/.b",        "a/b.",
                                 "a/b--c",     "a--b/c",      "a/b..c",
                                 "a/b.git",    "a b/c",       "a/b c",
                                 "a/b\n",      "caf\u00e9/b", "a/b:c",
                                 "a/b@",       "a/b@..",      "a/b@../../x",
                                 "a/b@x/../y", "a/b@/x",      "a/b@x//y",
                                 "a/b@x/",     "a/b@-x",      "a/b@x\ny",
                                 "a/b@x\\y",   "a/b@x..y",    "data/config.json"})
    EXPECT_EQ(found_name(text, HubKind::model), "none") << text;
  EXPECT_EQ(found_name(std::string(97, 'a') + "/b", HubKind::model), "none");
}

TEST(HubName, OfADataSetMayGoOn) {
  const std::pair<std::string_view, std::string_view> names[] = {
      {"a/b/en", "a/b||en"},
      {"a/b/en/", "a/b||en"},
      {"a/b/data/train-*", "a/b||data/train-*"},
      {"a/b@v1/en/x.jsonl", "a/b|v1|en/x.jsonl"},
      {"a/b@refs/convert/parquet/default/train", "a/b|refs/convert/parquet|default/train"}};
  for (const auto& [text, parts] : names) EXPECT_EQ(found_name(text, HubKind::dataset), parts);
  for (const std::string_view text : {"a/b/../c", "a/b/.", "a/b//c", "a/b@v1/..", "data/train.jsonl", "data/a.parquet",
                                      "data/train.json/x", "a/b/x\ny"})
    EXPECT_EQ(found_name(text, HubKind::dataset), "none") << text;
}

class HubPlaces : public testing::Test {
 protected:
  Environment environment() const {
    return [this](const char* name) -> const char* {
      const auto found = variables_.find(name);
      return found == variables_.end() ? nullptr : found->second.c_str();
    };
  }
  std::string cache() const { return hub_cache(environment()).string(); }

  std::map<std::string, std::string> variables_{{"HOME", "/home/me"}};
};

TEST_F(HubPlaces, AreTheClients) {
  EXPECT_EQ(cache(), "/home/me/.cache/huggingface/hub");
  variables_["XDG_CACHE_HOME"] = "/x";
  EXPECT_EQ(cache(), "/x/huggingface/hub");
  variables_["HF_HOME"] = "~/hf";
  EXPECT_EQ(cache(), "/home/me/hf/hub");
  variables_["HF_HOME"] = "$BASE/${USER}s/$absent";
  variables_["BASE"] = "/base";
  variables_["USER"] = "me";
  EXPECT_EQ(cache(), "/base/mes/$absent/hub");
  variables_["HF_HOME"] = "";
  EXPECT_EQ(cache(), "/x/huggingface/hub");
  variables_["HUGGINGFACE_HUB_CACHE"] = "/older";
  EXPECT_EQ(cache(), "/older");
  variables_["HF_HUB_CACHE"] = "here/hub";
  EXPECT_EQ(cache(), (fs::current_path() / "here" / "hub").string());
}

TEST_F(HubPlaces, OfflineIsWhatTheClientTakesForIt) {
  EXPECT_FALSE(hub_is_offline(environment()));
  for (const char* yes : {"1", "ON", "yes", "True"}) {
    variables_["HF_HUB_OFFLINE"] = yes;
    EXPECT_TRUE(hub_is_offline(environment())) << yes;
  }
  for (const char* no : {"0", "off", "no", "2"}) {
    variables_["HF_HUB_OFFLINE"] = no;
    EXPECT_FALSE(hub_is_offline(environment())) << no;
  }
  variables_["HF_HUB_OFFLINE"] = "";
  variables_["TRANSFORMERS_OFFLINE"] = "1";
  EXPECT_TRUE(hub_is_offline(environment()));
}

class HubCache : public test::HubCacheTest {
 protected:
  std::optional<HubSnapshot> find(std::string_view text, HubKind kind = HubKind::model) const {
    return find_hub_snapshot(cache(), hub_name(text, kind).value());
  }
  std::string missing(std::string_view text, HubUse use) const {
    const HubKind kind = use == HubUse::data ? HubKind::dataset : HubKind::model;
    return missing_of(find(text, kind).value(), use, hub_name(text, kind)->inside);
  }
};

TEST_F(HubCache, FindsWhatTheClientLaidOut) {
  const auto llama = find("tiny/llama");
  ASSERT_TRUE(llama);
  EXPECT_EQ(llama->directory, cache() / "models--tiny--llama" / "snapshots" / llama->commit);
  EXPECT_EQ(find("tiny/llama@main")->directory, llama->directory);
  EXPECT_EQ(find("tiny/llama@" + llama->commit)->directory, llama->directory);
  EXPECT_EQ(title_of_model(llama->directory.string()), "tiny/llama@" + llama->commit);
  EXPECT_EQ(title_of_model(llama->directory.string() + "/"), "tiny/llama@" + llama->commit);
  EXPECT_EQ(title_of_model("models/llama"), "models/llama");
  for (const char* absent : {"tiny/gemma", "tiny/llama@v1", "tiny/llama@pr", "tiny/llama@84359791"})
    EXPECT_FALSE(find(absent)) << absent;
  EXPECT_FALSE(find("tiny/llama@" + std::string(40, '0')));

  const auto chats = find("tiny/chats", HubKind::dataset), tagged = find("tiny/chats@v1", HubKind::dataset);
  ASSERT_TRUE(chats && tagged);
  EXPECT_NE(chats->commit, tagged->commit);
  EXPECT_EQ(find("tiny/chats@" + tagged->commit.substr(0, 8), HubKind::dataset)->commit, tagged->commit)
      << "the client keeps the short form that it was asked for";
  EXPECT_FALSE(find("tiny/chats"));
}

TEST_F(HubCache, SaysWhatIsMissingOfAModel) {
  for (const HubUse use : {HubUse::config, HubUse::small_files, HubUse::weights})
    EXPECT_EQ(missing("tiny/llama", use), "");
  EXPECT_EQ(missing("tiny/qwen3", HubUse::small_files), "");
  EXPECT_EQ(missing("tiny/qwen3", HubUse::weights), "model.safetensors");
  const fs::path llama = find("tiny/llama")->directory, repository = find("tiny/llama")->repository;
  // A link without its blob is a file that is being fetched.
  const fs::path shard = llama / "model-00002-of-00003.safetensors";
  fs::remove(fs::canonical(shard));
  EXPECT_EQ(missing("tiny/llama", HubUse::weights), "model-00002-of-00003.safetensors");
  EXPECT_EQ(missing("tiny/llama", HubUse::small_files), "");
  EXPECT_FALSE(has_unfinished_files(*find("tiny/llama")));
  write_file(repository / "blobs" / (std::string(64, 'a') + ".1a2b3c4d.incomplete"), "half");
  EXPECT_TRUE(has_unfinished_files(*find("tiny/llama")));
  write_file(repository / "blobs" / std::string(64, 'a'), "whole");
  EXPECT_FALSE(has_unfinished_files(*find("tiny/llama"))) << "another download has finished it";
  fs::remove(llama / "config.json");
  EXPECT_EQ(missing("tiny/llama", HubUse::config), "config.json");
}

TEST_F(HubCache, KnowsLessWithoutTheClientsList) {
  const HubSnapshot qwen = *find("tiny/qwen3"), llama = *find("tiny/llama");
  for (const HubSnapshot& each : {qwen, llama}) fs::remove_all(each.repository / "trees");
  EXPECT_EQ(missing("tiny/llama", HubUse::weights), "");
  EXPECT_EQ(missing("tiny/qwen3", HubUse::weights), "its weights");
  EXPECT_EQ(missing("tiny/qwen3", HubUse::small_files), "");
  write_file(qwen.directory / "pytorch_model.bin", "pickle");
  EXPECT_EQ(missing("tiny/qwen3", HubUse::weights), "") << "refused for what it is, by who opens it";
  fs::remove(qwen.directory / "pytorch_model.bin");
  const fs::path absent = qwen.repository / ".no_exist" / qwen.commit;
  fs::create_directories(absent);
  for (const char* name : {"model.safetensors", "model.safetensors.index.json"}) {
    EXPECT_EQ(missing("tiny/qwen3", HubUse::weights), "its weights");
    write_file(absent / name, "");
  }
  EXPECT_EQ(missing("tiny/qwen3", HubUse::weights), "") << "the repository has no such weights";
  // A list that is damaged, or of a later form, is none.
  for (const char* text :
       {"{", "[]", R"({"format_version": 2, "files": {"config.json": {}}})", R"({"format_version": 1})"}) {
    fs::create_directories(llama.repository / "trees");
    write_file(llama.repository / "trees" / (llama.commit + ".json"), text);
    EXPECT_EQ(missing("tiny/llama", HubUse::weights), "") << text;
  }
}

TEST_F(HubCache, SaysWhatIsMissingOfADataSet) {
  EXPECT_EQ(missing("tiny/chats", HubUse::data), "");
  EXPECT_EQ(missing("tiny/chats@v1", HubUse::data), "data/test-00000-of-00001.jsonl");
  EXPECT_EQ(missing("tiny/chats@v1/data/train-*", HubUse::data), "data/train-00001-of-00002.jsonl");
  EXPECT_EQ(missing("tiny/chats@v1/data/train-00000*", HubUse::data), "");
  EXPECT_EQ(missing("tiny/chats/data", HubUse::data), "");
  EXPECT_EQ(missing("tiny/chats/none", HubUse::data), "") << "the repository has no such files";
  const HubSnapshot chats = *find("tiny/chats@v1", HubKind::dataset);
  fs::remove_all(chats.repository / "trees");
  // Files say how many of them there are.
  EXPECT_EQ(missing("tiny/chats@v1", HubUse::data), "data/train-00001-of-00002.jsonl");
  EXPECT_EQ(missing("tiny/chats@v1/data/train-00000*", HubUse::data), "data/train-00001-of-00002.jsonl");
  EXPECT_EQ(missing("tiny/chats", HubUse::data), "");
  EXPECT_EQ(missing("tiny/chats/none", HubUse::data), "none");
  fs::remove_all(chats.directory / "data");
  EXPECT_EQ(missing("tiny/chats@v1", HubUse::data), "its data");
}

TEST_F(HubCache, AHostileOneLeadsNowhere) {
  const fs::path repository = cache() / "models--tiny--llama", reference = repository / "refs" / "main";
  write_file(cache() / "config.json", "{}");
  for (const std::string& text :
       {std::string("../.."), std::string("../../models--tiny--qwen3"), std::string(), std::string(39, 'a'),
        std::string(41, 'a'), std::string(40, 'A'), std::string(40, '/')}) {
    write_file(reference, text);
    expect_error([&] { find("tiny/llama"); }, {reference.string(), "no commit"});
  }
  fs::resize_file(reference, std::uintmax_t{1} << 30);
  expect_error([&] { find("tiny/llama"); }, {reference.string(), "1.1 GB"});
  fs::remove(reference);
  fs::create_symlink("main", reference);
  expect_error([&] { find("tiny/llama"); }, {reference.string(), "ymbolic links"});
  fs::remove(reference);
  fs::create_directory(reference);
  EXPECT_FALSE(find("tiny/llama"));

  const std::string commit(40, 'a');
  fs::create_directory_symlink(cache(), repository / "snapshots" / commit);
  expect_error([&] { find("tiny/llama@" + commit); }, {commit + " is a link"});
  fs::remove(repository / "snapshots" / commit);
  write_file(repository / "snapshots" / commit, "a file");
  EXPECT_FALSE(find("tiny/llama@" + commit));
  fs::rename(repository / "snapshots", repository / "elsewhere");
  fs::create_directory_symlink("elsewhere", repository / "snapshots");
  expect_error([&] { find("tiny/llama@" + commit); }, {"snapshots is a link"});
}

TEST_F(HubCache, LoopsAndHugeListsAreRefusedByName) {
  const HubSnapshot llama = *find("tiny/llama");
  fs::remove(llama.directory / "config.json");
  fs::create_symlink("config.json", llama.directory / "config.json");
  expect_error([&] { missing("tiny/llama", HubUse::config); }, {"config.json", "ymbolic links"});
  const fs::path list = llama.repository / "trees" / (llama.commit + ".json");
  fs::resize_file(list, std::uintmax_t{1} << 30);
  expect_error([&] { missing("tiny/llama", HubUse::config); }, {list.string(), "1.1 GB"});
  // A list of names that lead out of the snapshot is a list of names.
  write_file(list, R"({"format_version": 1, "files": {"../../../../secret.json": {}, "config.json": {}}})");
  write_file(cache() / "secret.json", "mine");
  fs::remove(llama.directory / "config.json");
  EXPECT_EQ(missing("tiny/llama", HubUse::weights), "config.json");
}

}  // namespace
}  // namespace so
