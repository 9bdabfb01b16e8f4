#include "data/dataset.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <set>
#include <thread>

#include "base/progress.h"
#include "data_test_util.h"
#include "io/cache_directory.h"

namespace so {
namespace {

using test::ByteEncoder;
using test::error_of;
using test::Ids;
using test::read_file;
using test::TemporaryDirectory;
using test::write_file;

// Counts what it encodes, to tell a cache hit from a rebuild.
class CountingEncoder : public ByteEncoder {
 public:
  Ids encode(std::string_view text, bool add_special_tokens) const override {
    if (text != "a") ++calls;  // "a" is what ExampleBuilder probes with
    return ByteEncoder::encode(text, add_special_tokens);
  }
  mutable std::atomic<int> calls{0};
};

class Dataset : public ::testing::Test {
 protected:
  TemporaryDirectory directory_;
  ThreadPool pool_{"test", {0, 1, 2}, false};
  CountingEncoder encoder_;
  DatasetOptions options_{.file = directory_.path / "data.jsonl",
                          .example = {.max_length = 6},
                          .cache_directory = directory_.path / "cache",
                          .fallback_directory = {}};

  TokenDataset open() { return open_dataset(options_, encoder_, pool_); }
  // Opens; true if that took a new cache.
  bool builds() {
    encoder_.calls = 0;
    open();
    return encoder_.calls > 0;
  }
  std::filesystem::path cache_file() const {
    for (const auto& entry : std::filesystem::directory_iterator(options_.cache_directory))
      if (entry.path().extension() == ".tokens") return entry.path();
    return {};
  }
};

std::string text_of(const TokenDataset& dataset, std::int64_t document) {
  std::string text;
  for (const std::int32_t id : dataset.document(document).ids) text += id < 256 ? static_cast<char>(id) : '$';
  return text;
}

TEST_F(Dataset, TokenisesInRecordOrderAndCounts) {
  write_file(options_.file, "{\"text\":\"abc\"}\n{\"text\":\"\"}\n{\"text\":\"abcdefgh\"}\n{\"text\":\"x\"}\n");
  const TokenDataset dataset = open();
  ASSERT_EQ(dataset.size(), 3);
  EXPECT_EQ(text_of(dataset, 0), "abc$");
  EXPECT_EQ(text_of(dataset, 1), "abcdef");
  EXPECT_EQ(text_of(dataset, 2), "x$");
  EXPECT_EQ(dataset.counts(), (DatasetCounts{.records = 4,
                                             .documents = 3,
                                             .truncated = 1,
                                             .dropped = 1,
                                             .tokens = 12,
                                             .trained_tokens = 9,
                                             .longest = 6}));
}

TEST_F(Dataset, DoesNotDependOnThreadsOrBlocks) {
  std::string content = "[";
  for (int i = 0; i < 10000; ++i) content += fmt::format("{}{{\"text\":\"{}\"}}\n", i == 0 ? "" : ",", i);
  write_file(options_.file, content + "]");
  const TokenDataset dataset = open();
  ASSERT_EQ(dataset.size(), 10000);
  for (std::int64_t i = 0; i < 10000; ++i) ASSERT_EQ(text_of(dataset, i), std::to_string(i) + "$");
  const std::string parallel = read_file(cache_file());
  std::filesystem::remove(cache_file());
  ThreadPool one("test", {}, false);
  open_dataset(options_, encoder_, one);
  EXPECT_TRUE(read_file(cache_file()) == parallel);
}

TEST_F(Dataset, BlamesTheFirstBadRecord) {
  std::string content;
  for (int i = 0; i < 9000; ++i) content += i >= 5000 && i % 3 == 0 ? "{\"text\":1}\n" : "{\"text\":\"ab\"}\n";
  write_file(options_.file, content);
  for (int attempt = 0; attempt < 5; ++attempt)
    EXPECT_EQ(error_of([&] { open(); }), options_.file.string() + ":5002: \"text\" is a number; it must be a string");
  // Nothing half made is left: only the lock.
  EXPECT_TRUE(cache_file().empty());
}

TEST_F(Dataset, RefusesMixedFormats) {
  write_file(options_.file, "{\"text\":\"ab\"}\n\n{\"instruction\":\"a\",\"output\":\"b\"}\n");
  EXPECT_EQ(error_of([&] { open(); }), options_.file.string() +
                                           ":3: this is an Alpaca record, the file began with a text record on line 1; "
                                           "a file holds one kind only");
}

// An encoder of bytes for a model that has a chat template; '$' stands for its end token.
class ChatByteEncoder : public ByteEncoder {
 public:
  Ids encode(std::string_view text, bool add_special_tokens) const override {
    Ids ids = ByteEncoder::encode(text, add_special_tokens);
    std::replace(ids.begin(), ids.end(), std::int32_t{'$'}, kEnd);
    return ids;
  }
  ChatTemplate chat_template() const override {
    ChatTemplate chat;
    chat.text = source;
    chat.source = "chat_template.jinja";
    chat.special_tokens = chat.stop_tokens = {"$"};
    return chat;
  }
  std::string source =
      "{% for m in messages %}{{ m.role[0] + ':' + m.content + '$' }}{% endfor %}{{ 'a:' if add_generation_prompt }}";
};

TEST_F(Dataset, RefusesConversationsWithoutAnAnswer) {
  options_.example.max_length = 100;
  write_file(options_.file, R"({"messages":[{"role":"user","content":"a"},{"role":"narrator","content":"b"}]})");
  const ChatByteEncoder encoder;
  const std::string error = error_of([&] { open_dataset(options_, encoder, pool_); });
  EXPECT_NE(error.find("none of the 1 records has a token to train on; of a conversation"), std::string::npos) << error;
}

TEST_F(Dataset, RendersConversations) {
  ::signal(SIGPIPE, SIG_IGN);
  options_.example.max_length = 100;
  std::string content;
  for (int i = 0; i < 100; ++i)
    content += fmt::format(R"({{"messages":[{{"role":"user","content":"{}"}},{{"role":"assistant","content":"b"}},)"
                           R"({{"role":"user","content":"c"}},{{"role":"assistant","content":"d"}}]}})"
                           "\n",
                           i);
  write_file(options_.file, content);
  ChatByteEncoder encoder;
  std::set<std::uint64_t> keys;
  const auto trained = [&] {
    const TokenDataset dataset = open_dataset(options_, encoder, pool_);
    keys.insert(dataset.key());
    EXPECT_EQ(dataset.size(), 100);
    EXPECT_EQ(text_of(dataset, 42), "u:42$a:b$u:c$a:d$");
    std::string text;
    for (const std::int32_t id : dataset.document(42).targets)
      text += id == kIgnored ? '.' : id == ByteEncoder::kEnd ? '$' : static_cast<char>(id);
    return text;
  };
  EXPECT_EQ(trained(), "......b$......d$.");  // the header "a:" is the prompt's
  options_.example.mask_history = true;
  EXPECT_EQ(trained(), "..............d$.");
  options_.example = {.max_length = 100, .train_on_prompt = true};
  EXPECT_EQ(trained(), ":42$a:b$u:c$a:d$.");
  encoder.source += "{# another template #}";
  trained();
  EXPECT_EQ(keys.size(), 4U);
}

// Of a template whose prompt depends on what the last message says: that one record's mask is no other record's.
TEST_F(Dataset, MasksAConversationAlikeBesideAnyOthers) {
  ::signal(SIGPIPE, SIG_IGN);
  options_.example.max_length = 100;
  ChatByteEncoder encoder;
  encoder.source =
      "{% for m in messages %}{{ m.role[0] + ':' + ('<> ' if m.role == 'assistant' else '') + m.content + '$' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ 'a:' + ('<> ' if messages[-1].content.endswith('!') else '') }}{% endif %}";
  const auto record = [](const std::string& asked) {
    return R"({"messages":[{"role":"user","content":")" + asked + R"("},{"role":"assistant","content":"b"}]})" + "\n";
  };
  const auto trained = [&](const std::string& content) {
    write_file(options_.file, content);
    const TokenDataset dataset = open_dataset(options_, encoder, pool_);
    std::vector<int> counts;
    for (std::int64_t d = 0; d < dataset.size(); ++d) {
      const auto& targets = dataset.document(d).targets;
      counts.push_back(
          static_cast<int>(std::count_if(targets.begin(), targets.end(), [](auto id) { return id >= 0; })));
    }
    return counts;
  };
  EXPECT_EQ(trained(record("a")), (std::vector<int>{5}));
  EXPECT_EQ(trained(record("a!")), (std::vector<int>{2}));
  EXPECT_EQ(trained(record("a") + record("a!") + record("a")), (std::vector<int>{5, 2, 5}));
  EXPECT_EQ(trained(record("a!") + record("a") + record("a!")), (std::vector<int>{2, 5, 2}));
  std::string many;
  std::vector<int> expected;
  for (int i = 0; i < 300; ++i) {
    many += record(i % 3 == 0 ? "a!" : "a");
    expected.push_back(i % 3 == 0 ? 2 : 5);
  }
  EXPECT_EQ(trained(many), expected);
}

TEST_F(Dataset, BlamesTheRecordThatTheTemplateRefuses) {
  ::signal(SIGPIPE, SIG_IGN);
  ChatByteEncoder encoder;
  encoder.source =
      "{% for m in messages %}{{ raise_exception('no tools') if m.role == 'tool' }}{{ m.content }}{% endfor %}";
  write_file(options_.file,
             "{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"}]}\n"
             "{\"messages\":[{\"role\":\"tool\",\"content\":\"a\"}]}\n");
  EXPECT_EQ(error_of([&] { open_dataset(options_, encoder, pool_); }),
            options_.file.string() + ":2: the chat template refuses the messages: no tools");
  ByteEncoder without;
  EXPECT_EQ(error_of([&] { open_dataset(options_, without, pool_); }), "there is no chat template");
}

TEST_F(Dataset, WarnsWhenNothingTeachesToStop) {
  ::signal(SIGPIPE, SIG_IGN);
  ChatByteEncoder encoder;
  options_.example.max_length = 100;
  write_file(options_.file,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}\n");
  const auto said = [&] {
    ::testing::internal::CaptureStderr();
    open_dataset(options_, encoder, pool_);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said().find("may not learn to stop"), std::string::npos);
  encoder.source = "{% for m in messages %}{{ m.role[0] + ':' + m.content + '\\n' }}{% endfor %}";
  EXPECT_NE(said().find("generation stops at $, and none of the first 1 conversations trains such a token"),
            std::string::npos);
}

TEST_F(Dataset, RefusesFilesWithoutRecords) {
  const std::string name = options_.file.string();
  for (const char* content : {"", "\n\n", "[]", "\xef\xbb\xbf"}) {
    write_file(options_.file, content);
    EXPECT_EQ(error_of([&] { open(); }), name + ": the file holds no records");
  }
  write_file(options_.file, "{\"instruction\":\"a\",\"output\":\"b\"}\n");
  EXPECT_EQ(error_of([&] { open(); }),
            name + ": none of the 1 records has a trained token within max_length = 6; raise it");
  std::filesystem::remove(options_.file);
  EXPECT_NE(error_of([&] { open(); }).find("cannot open " + name), std::string::npos);
  std::filesystem::create_directory(options_.file);
  EXPECT_NE(error_of([&] { open(); }).find("it is a directory"), std::string::npos);
}

TEST_F(Dataset, NamesTheRecordWhoseTextCannotBeEncoded) {
  encoder_.vocabulary = 256;
  write_file(options_.file, "\n{\"text\":\"ab\"}");
  EXPECT_EQ(error_of([&] { open(); }).find(options_.file.string() + ":2: the tokenizer gives token 256"), 0u);
}

TEST_F(Dataset, RebuildsExactlyWhenSomethingThatMattersChanged) {
  write_file(options_.file, "{\"text\":\"abc\"}\n");
  EXPECT_TRUE(builds());
  EXPECT_FALSE(builds());

  // Time and name do not matter, content does, also at the same size and time.
  const auto time = std::filesystem::last_write_time(options_.file);
  std::filesystem::last_write_time(options_.file, time + std::chrono::hours(1));
  EXPECT_FALSE(builds());
  write_file(options_.file, "{\"text\":\"abd\"}\n");
  std::filesystem::last_write_time(options_.file, time);
  EXPECT_TRUE(builds());
  EXPECT_EQ(text_of(open(), 0), "abd$");
  EXPECT_FALSE(builds());

  options_.example.max_length = 7;
  EXPECT_TRUE(builds());
  options_.example.train_on_prompt = true;
  EXPECT_TRUE(builds());
  encoder_.print = "other bytes";
  EXPECT_TRUE(builds());
  encoder_.end_id = 255;
  EXPECT_TRUE(builds());
  encoder_.vocabulary = 300;
  EXPECT_TRUE(builds());
  EXPECT_FALSE(builds());
}

TEST_F(Dataset, RebuildsADamagedCache) {
  write_file(options_.file, "{\"text\":\"abc\"}\n");
  open();
  const std::string good = read_file(cache_file());
  std::string flipped = good;
  flipped[40] = static_cast<char>(flipped[40] ^ 1);
  std::string other_token = good, other_entry = good;
  other_token[512] = static_cast<char>(other_token[512] ^ 1);  // where the documents begin
  other_entry.back() = static_cast<char>(other_entry.back() ^ 1);
  std::string older = good;
  older[8] = 1;  // the version
  for (const std::string& bad :
       {std::string(), good.substr(0, good.size() - 1), flipped, other_token, other_entry, older}) {
    write_file(cache_file(), bad);
    EXPECT_TRUE(builds());
    EXPECT_TRUE(read_file(cache_file()) == good);
  }
  // A killed run's temporary file is no obstacle, and goes.
  const std::filesystem::path rest = cache_file().string() + ".tmp-1-0";
  std::filesystem::remove(cache_file());
  write_file(rest, "rest");
  EXPECT_TRUE(builds());
  EXPECT_FALSE(std::filesystem::exists(rest));
}

TEST_F(Dataset, IsMadeOnceByConcurrentCallers) {
  std::string content;
  for (int i = 0; i < 500; ++i) content += "{\"text\":\"ab\"}\n";
  write_file(options_.file, content);
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&] {
      ThreadPool own("test", {0, 1}, false);
      EXPECT_EQ(open_dataset(options_, encoder_, own).size(), 500);
    });
  for (auto& caller : callers) caller.join();
  EXPECT_EQ(encoder_.calls, 500);
}

class CacheSize : public Dataset, public testing::WithParamInterface<const char*> {};

TEST_P(CacheSize, IsKnownBefore) {
  std::string content;
  for (int i = 0; i < 300; ++i) content += GetParam();
  write_file(options_.file, content);
  options_.example.train_on_prompt = true;  // so that nothing is dropped
  for (const int max_length : {6, 1000}) {
    options_.example.max_length = max_length;
    for (const bool specials : {false, true}) {
      encoder_.begin = encoder_.end = specials;
      encoder_.print = specials ? "with" : "without";
      DatasetSource source(options_, encoder_, pool_);
      ASSERT_TRUE(source.makes_cache());
      const std::uint64_t most = source.most_cache_bytes(), counted = source.count_cache_bytes();
      EXPECT_FALSE(std::filesystem::exists(source.cache()));
      const TokenDataset made = source.open();
      EXPECT_EQ(std::filesystem::file_size(source.cache()), counted);
      EXPECT_GE(most, counted);
      // The shape of a record costs a little, and the words of the template.
      EXPECT_LE(most, 512 + static_cast<std::uint64_t>(made.size()) * (16 + 8 * 400));
      EXPECT_FALSE(DatasetSource(options_, encoder_, pool_).makes_cache()) << "one that is there costs nothing";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, CacheSize,
                         testing::Values("{\"text\":\"ab\"}\n", "{\"instruction\":\"a\",\"output\":\"b\"}\n",
                                         "{\"instruction\":\"a\",\"input\":\"c\",\"output\":\"b\"}\n",
                                         "{\"input_ids\":[1,2,3,4]}\n"));

// A file that is at fault further on is refused by who opens it, not by who asks for its size.
TEST_F(Dataset, TheSizeOfADamagedFileIsNoQuestion) {
  write_file(options_.file, "[{\"text\":\"ab\"}, {\"text\":\"cd\"}, ");
  DatasetSource source(options_, encoder_, pool_);
  EXPECT_GT(source.most_cache_bytes(), 0u);
  const std::string refusal = error_of([&] { source.open(); });
  EXPECT_NE(refusal.find("the file ends before the array does"), std::string::npos) << refusal;
  EXPECT_EQ(refusal, error_of([&] { open(); }));
}

// Sets environment variables for one test and puts the old values back.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    ::setenv(name, value.c_str(), 1);
  }
  ~Environment() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

TEST(CacheDirectory, FollowsTheEnvironment) {
  using Paths = std::vector<std::filesystem::path>;
  const Environment home("HOME", "/home/u"), xdg("XDG_CACHE_HOME", "/xdg");
  EXPECT_EQ(cache_directories("/chosen", "/out"), Paths{"/chosen"});
  EXPECT_EQ(cache_directories("", ""), Paths{"/xdg/superoffload"});
  EXPECT_EQ(cache_directories("", "/out"), (Paths{"/xdg/superoffload", "/out"}));
  const Environment relative("XDG_CACHE_HOME", "relative");
  EXPECT_EQ(cache_directories("", ""), Paths{"/home/u/.cache/superoffload"});
  const Environment homeless("HOME", "");
  EXPECT_EQ(cache_directories("", "/out"), Paths{"/out"});
  EXPECT_NE(error_of([] { cache_directories("", ""); }).find("neither XDG_CACHE_HOME nor HOME"), std::string::npos);
}

// In a directory that others may write to a run keeps its caches apart, and what others put there is not read.
TEST_F(Dataset, ASharedDirectoryHasAPartForEachUser) {
  write_file(options_.file, "{\"text\":\"abc\"}\n");
  const std::filesystem::path shared = directory_.path / "shared";
  std::filesystem::create_directory(shared);
  options_.cache_directory = shared;
  for (const unsigned mode : {01777u, 0777u, 0770u}) {
    std::filesystem::permissions(shared, static_cast<std::filesystem::perms>(mode));
    const std::filesystem::path own = shared / fmt::format("superoffload-{}", ::geteuid());
    EXPECT_EQ(DatasetSource(options_, encoder_, pool_).cache().parent_path(), own);
    open();
    EXPECT_FALSE(DatasetSource(options_, encoder_, pool_).makes_cache());
    EXPECT_EQ(std::filesystem::status(own).permissions(), std::filesystem::perms::owner_all);
    // A part that is not this user's alone is no place either.
    std::filesystem::permissions(own, static_cast<std::filesystem::perms>(0777));
    EXPECT_NE(error_of([&] { open(); }).find("others may write to it (mode 0777)"), std::string::npos);
    std::filesystem::remove_all(own);
  }
  std::filesystem::permissions(shared, static_cast<std::filesystem::perms>(0755));
  EXPECT_EQ(DatasetSource(options_, encoder_, pool_).cache().parent_path(), shared);
}

TEST_F(Dataset, FallsBackToTheOutputDirectoryWhereTheDefaultCannotBeWritten) {
  write_file(options_.file, "{\"text\":\"abc\"}\n");
  const std::filesystem::path obstacle = directory_.path / "file";
  write_file(obstacle, "");  // a directory cannot be made under a file, whoever runs this
  const Environment xdg("XDG_CACHE_HOME", obstacle.string());
  options_.cache_directory.clear();
  EXPECT_NE(error_of([&] { open(); }).find("cannot write the token cache to " + obstacle.string() + "/superoffload"),
            std::string::npos);
  options_.fallback_directory = directory_.path / "out";
  EXPECT_TRUE(builds());
  EXPECT_FALSE(builds());
  // A directory the user named has no fallback.
  options_.cache_directory = obstacle / "below";
  EXPECT_NE(error_of([&] { open(); }).find("choose another cache directory"), std::string::npos);
}

TEST(Progress, SaysHowFarAndHowLong) {
  EXPECT_EQ(progress_text("tokenising f", 0.25, "10 records", 3.0), "tokenising f: 25%, 10 records, 9 s left");
  EXPECT_EQ(progress_text("t", 0.5, "d", 600), "t: 50%, d, 10 min left");
  EXPECT_EQ(progress_text("t", 0, "d", 5), "t: 0%, d");
  EXPECT_EQ(progress_text("t", 0.999, "d", 10), "t: 99%, d, 1 s left");
}

}  // namespace
}  // namespace so
