// Parquet and Arrow files, held to JSONL of the same records (tests/fixtures/data/tables).
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/chat/chat_renderer.h"
#include "data/data_file.h"
#include "data/data_files.h"
#include "data/dataset.h"
#include "data/one_record.h"
#include "data_test_util.h"
#include "support/paths.h"
#include "support/python.h"

namespace so {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using test::error_of;
using test::read_file;
using test::write_file;

fs::path table_fixture(const std::string& name) { return fs::path(test::fixtures()) / "data" / "tables" / name; }

std::vector<std::string> rows_of_file(const fs::path& path) {
  const DataFile file(path);
  const auto records = file.records();
  std::vector<RawRecord> block;
  std::vector<std::string> rows;
  while (records->next(block))
    for (const RawRecord& record : block) {
      EXPECT_EQ(record.row, file.is_table() ? std::ssize(rows) : -1);
      rows.emplace_back(record.json);
    }
  EXPECT_DOUBLE_EQ(records->done(), 1) << path;
  return rows;
}

class Tables : public testing::Test {
 protected:
  void SetUp() override {
    ::signal(SIGPIPE, SIG_IGN);  // as main() has it
    if (!test::find_pyarrow()) GTEST_SKIP() << test::kNoPyarrow;
  }
  std::string at(const std::string& name) const { return (directory_.path / name).string(); }
  // The tokens of a file, from a new cache.
  std::vector<test::Ids> tokens(const fs::path& path, std::uint64_t* key = nullptr) {
    ThreadPool pool("test", {0, 0}, false);
    const TokenDataset dataset = open_dataset({path, {.max_length = 512}, at("cache")}, encoder_, pool);
    std::vector<test::Ids> all;
    for (std::int64_t i = 0; i < dataset.size(); ++i) {
      const DocumentView document = dataset.document(i);
      all.emplace_back(document.ids.begin(), document.ids.end());
      all.emplace_back(document.targets.begin(), document.targets.end());
    }
    if (key != nullptr) *key = dataset.key();
    return all;
  }
  std::string refusal(const fs::path& path) {
    return error_of([&] { tokens(path); });
  }

  test::TemporaryDirectory directory_;
  test::ByteEncoder encoder_;
};

TEST_F(Tables, HaveTheRecordsOfJsonLines) {
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {"chat.jsonl", {"chat.parquet", "chat.feather.arrow"}},
      {"alpaca.jsonl", {"alpaca.parquet"}},
      {"prompt.jsonl", {"prompt.parquet"}},
      {"tokens.jsonl", {"tokens.parquet"}},
      {"masks.jsonl", {"masks.parquet"}},
      {"sharegpt.jsonl", {"sharegpt.arrow"}},
  };
  for (const auto& [lines, tables] : cases) {
    const std::vector<std::string> wanted = rows_of_file(table_fixture(lines));
    EXPECT_GE(wanted.size(), 4u);
    for (const char* table : tables) {
      const std::vector<std::string> got = rows_of_file(table_fixture(table));
      ASSERT_EQ(got.size(), wanted.size()) << table;
      for (std::size_t i = 0; i < got.size(); ++i) {
        nlohmann::json record = nlohmann::json::parse(wanted[i]);
        record.erase("id");  // means nothing
        EXPECT_EQ(nlohmann::json::parse(got[i]), record) << table << ", row " << i;
      }
    }
  }
}

// Fields that a struct has and a message lacks are not there for the template, and the others have their order.
TEST_F(Tables, HaveConversationsThatRenderAlike) {
  ChatTemplate chat;
  chat.text = "{% for m in messages %}{{ m.role }}:{{ m | tojson }}{{ '</s>' }}{% endfor %}";
  chat.source = "chat_template.jinja";
  chat.special_tokens = {"</s>"};
  const ChatRenderer renderer(chat);
  const auto text = [&](const std::string& record) {
    ordered_json sorted = ordered_json::parse(record);
    for (ordered_json& message : sorted["messages"]) message = nlohmann::json::parse(message.dump());
    const std::string ordered = sorted.dump();
    const std::string_view view = ordered;
    const RenderedChat rendered = renderer.render(std::span(&view, 1), TrainedTurns::all).at(0);
    EXPECT_EQ(rendered.error, "");
    return rendered.text();
  };
  const std::vector<std::string> lines = rows_of_file(table_fixture("chat.jsonl"));
  const std::vector<std::string> rows = rows_of_file(table_fixture("chat.parquet"));
  for (std::size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(text(rows.at(i)), text(lines[i]));
}

TEST_F(Tables, TrainOnTheTokensOfJsonLines) {
  for (const std::string name : {"alpaca", "prompt", "tokens", "masks"}) {
    std::uint64_t of_lines = 0, of_table = 0;
    EXPECT_EQ(tokens(table_fixture(name + ".parquet"), &of_table), tokens(table_fixture(name + ".jsonl"), &of_lines));
    EXPECT_NE(of_table, of_lines);
    // A copy of another name, and of another time, finds the same cache.
    fs::copy_file(table_fixture(name + ".parquet"), at(name + "-copy.parquet"));
    ThreadPool pool("test", {0}, false);
    DatasetSource copy({at(name + "-copy.parquet"), {.max_length = 512}, at("cache")}, encoder_, pool);
    EXPECT_TRUE(copy.makes_cache()) << "the copy has a name of its own";
    EXPECT_NE(copy.cache().string().find(fmt::format("{:016x}", of_table)), std::string::npos);
    EXPECT_GE(copy.most_cache_bytes(), copy.count_cache_bytes());
  }
  const auto record = [&](std::vector<fs::path> files, std::int64_t number) {
    return read_one_record(files, number, encoder_, {.max_length = 512});
  };
  const fs::path table = table_fixture("prompt.parquet"), lines = table_fixture("prompt.jsonl");
  const OneRecord row = record({table}, 4), line = record({lines}, 4);
  EXPECT_EQ(row.documents.at(0).ids, line.documents.at(0).ids);
  EXPECT_EQ(row.location, table_fixture("prompt.parquet").string() + ": row 3");
  EXPECT_NE(error_of([&] { record({table}, 10); }).find("prompt.parquet: the file has 9 records"), std::string::npos);
  // Rows of several files are counted as if they stood in one.
  EXPECT_EQ(record({lines, table}, 9).location, record({lines}, 9).location);
  EXPECT_EQ(record({lines, table}, 13).location, row.location);
  EXPECT_EQ(error_of([&] { record({table, lines}, 19); }), "2 files have 18 records, and number 19 is asked for");
}

TEST_F(Tables, ColumnsThatAreNotReadAreNamed) {
  const auto unread = [&](const char* name) { return DataFile(table_fixture(name)).records()->unread_columns(); };
  EXPECT_EQ(unread("masks.parquet"), std::vector<std::string>{"photo"});
  EXPECT_EQ(unread("chat.feather.arrow"), std::vector<std::string>{"id"});
  EXPECT_EQ(unread("tokens.jsonl"), std::vector<std::string>{});
  ThreadPool pool("test", {0}, false);
  const TokenDataset masks =
      open_dataset({table_fixture("masks.parquet"), {.max_length = 512}, at("cache")}, encoder_, pool);
  EXPECT_EQ(masks.notes().count(NoteKind::unread_column, "photo"), 1);
  EXPECT_EQ(masks.notes().count(NoteKind::packed_row), 2);
  EXPECT_EQ(masks.size(), 6);
}

TEST_F(Tables, SavedByDatasetsHaveItsRowsInOrder) {
  std::vector<std::string> rows;
  for (const fs::path& file : all_files(data_files(table_fixture("saved").string(), "--data", DataUse::training)))
    for (const std::string& row : rows_of_file(file)) rows.push_back(row);
  EXPECT_EQ(rows, rows_of_file(table_fixture("chat.parquet")));

  const auto split = [&](DataUse use) {
    const DataPart files = all_files(data_files(table_fixture("splits").string(), "--data", use));
    EXPECT_EQ(files.size(), 1u);
    return rows_of_file(files.at(0));
  };
  const std::vector<std::string> training = split(DataUse::training), validation = split(DataUse::evaluation);
  EXPECT_EQ(training, std::vector(rows.begin(), rows.begin() + 40));
  EXPECT_EQ(validation.size(), 9u);
  EXPECT_EQ(validation.at(1), rows.at(42)) << "a row that was filtered out";
  EXPECT_EQ(rows_of_file(table_fixture("splits/test/data-00000-of-00001.arrow")),
            std::vector(rows.begin() + 50, rows.end()));
}

TEST_F(Tables, ThatCannotBeUsedAreRefusedWithTheReason) {
  const auto refused = [&](const fs::path& path, const std::string& why) {
    const std::string error = refusal(path);
    EXPECT_NE(error.find(path.string()), std::string::npos) << error;
    EXPECT_NE(error.find(why), std::string::npos) << path << ": " << error;
  };
  refused(table_fixture("foreign.parquet"), R"(it has the columns "question", "answer", "url"; rename them)");
  refused(table_fixture("null.parquet"), "row 1: the record has none of the keys");
  refused(table_fixture("not_utf8.parquet"), R"(column "text", rows 0 to 1: not valid UTF-8)");
  refused(table_fixture("empty.parquet"), "the file holds no records");
  write_file(at("text.parquet"), "instruction,output\n1,2\n");
  refused(at("text.parquet"), "neither Parquet nor Arrow");
  write_file(at("nothing.arrow"), "");
  refused(at("nothing.arrow"), "the file is empty");
  write_file(at("pointer.parquet"),
             "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, '0') + "\nsize 12345\n");
  refused(at("pointer.parquet"), "LFS");
}

// However much of a file is missing, its rows are not taken for all of them.
TEST_F(Tables, ThatAreCutOffAreRefused) {
  for (const std::string name : {"chat.parquet", "chat.feather.arrow", "saved/data-00000-of-00002.arrow"}) {
    const std::string whole = read_file(table_fixture(name));
    const std::string extension = fs::path(name).extension();
    for (const std::size_t left :
         {whole.size() - 1, whole.size() - 8, whole.size() / 2, std::size_t{100}, std::size_t{6}}) {
      write_file(at("cut" + extension), std::string_view(whole).substr(0, left));
      const std::string error = error_of([&] { rows_of_file(at("cut" + extension)); });
      EXPECT_NE(error.find("cut" + extension), std::string::npos) << name << ", " << left << " bytes: " << error;
    }
  }
  // Damage in the middle is pyarrow's to find; whatever it says, nothing else than rows or an error comes of it.
  std::string damaged = read_file(table_fixture("chat.parquet"));
  for (std::size_t i = 200; i < damaged.size() - 200; i += 97) damaged[i] = static_cast<char>(damaged[i] ^ 0x55);
  write_file(at("damaged.parquet"), damaged);
  EXPECT_NE(error_of([&] { rows_of_file(at("damaged.parquet")); }).find("damaged"), std::string::npos);
}

TEST(TablesWithoutPyarrow, AreRefusedWithTheCommandThatInstallsIt) {
  ::signal(SIGPIPE, SIG_IGN);
  test::TemporaryDirectory directory;
  ::setenv("PATH", directory.path.c_str(), 1);
  if (std::system("/usr/bin/python3 -c 'import pyarrow' 2>/dev/null") == 0)
    GTEST_SKIP() << "the system's Python has pyarrow";
  const DataFile file(table_fixture("prompt.parquet"));
  const std::string error = error_of([&] { file.records(); });
  EXPECT_NE(error.find("prompt.parquet: "), std::string::npos) << error;
  EXPECT_NE(error.find("ENV/bin/pip install pyarrow"), std::string::npos) << error;
}

class DataDirectories : public testing::Test {
 protected:
  void put(const std::string& name, const std::string& text = "{}") const {
    fs::create_directories((directory_.path / name).parent_path());
    write_file(directory_.path / name, text);
  }
  std::string names(const std::string& directory, DataUse use = DataUse::training) const {
    std::string all;
    for (const fs::path& file : files_of_directory(directory_.path / directory, "--data", use))
      all += fs::relative(file, directory_.path / directory).string() + " ";
    return all;
  }
  std::string left_out(const std::string& directory) const {
    std::vector<fs::path> files;
    files_of_directory(directory_.path / directory, "--data", DataUse::training, &files);
    std::string all;
    for (const fs::path& file : files) all += file.filename().string() + " ";
    return all;
  }
  std::string refusal(const std::string& directory, DataUse use = DataUse::training) const {
    return error_of([&] { names(directory, use); });
  }

  test::TemporaryDirectory directory_;
};

TEST_F(DataDirectories, OfTheHubStandForASplit) {
  for (const char* name :
       {"README.md", "dataset_infos.json", "data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet",
        "data/validation-00000-of-00001-0a1b.parquet", "data/test-00000-of-00001.parquet"})
    put(std::string("hub/") + name);
  const std::string train = "train-00000-of-00002.parquet train-00001-of-00002.parquet ";
  EXPECT_EQ(names("hub/data"), train);
  EXPECT_EQ(names("hub"), "data/train-00000-of-00002.parquet data/train-00001-of-00002.parquet ");
  EXPECT_EQ(names("hub/data", DataUse::evaluation), "validation-00000-of-00001-0a1b.parquet ");
  fs::remove(directory_.path / "hub/data/validation-00000-of-00001-0a1b.parquet");
  EXPECT_EQ(names("hub/data", DataUse::evaluation), "test-00000-of-00001.parquet ");
  fs::remove(directory_.path / "hub/data/test-00000-of-00001.parquet");
  EXPECT_EQ(names("hub/data", DataUse::evaluation), train) << "one split alone is what an evaluation means";

  put("converted/train/0000.parquet");
  put("converted/test/0000.parquet");
  EXPECT_EQ(names("converted"), "train/0000.parquet ");
  EXPECT_EQ(names("converted", DataUse::evaluation), "test/0000.parquet ");

  put("lines/train.jsonl");
  put("lines/test.jsonl");
  EXPECT_EQ(names("lines"), "train.jsonl ");
  put("lines/more.jsonl");
  EXPECT_EQ(names("lines"), "train.jsonl ") << "as load_dataset";
  EXPECT_EQ(left_out("lines"), "more.jsonl test.jsonl ");
}

// The splits are those of load_dataset("json", data_dir=...) of datasets 5.2, but that capitals count, and that files
// of no split are trained on where none is for training.
TEST_F(DataDirectories, FilesForEvaluationAreNotTrainedOn) {
  struct Case {
    std::vector<const char*> files;
    std::string training, evaluation;
  };
  const std::vector<Case> cases = {
      {{"data_train.jsonl", "data_test.jsonl"}, "data_train.jsonl ", "data_test.jsonl "},
      {{"data.jsonl", "data_test.jsonl", "more.jsonl"}, "data.jsonl more.jsonl ", "data_test.jsonl "},
      {{"a-dev.jsonl", "a-test.jsonl", "a.jsonl"}, "a.jsonl ", "a-dev.jsonl "},
      {{"my.valid.jsonl", "my.training.jsonl", "EVAL.jsonl"}, "my.training.jsonl ", "my.valid.jsonl "},
      {{"Test 1.jsonl", "x.jsonl", "val0.jsonl", "x_evaluation_2.json"}, "x.jsonl ", "val0.jsonl "},
      {{"latest.jsonl", "contest.jsonl", "developer.jsonl", "trainer.jsonl", "values.jsonl"},
       "contest.jsonl developer.jsonl latest.jsonl trainer.jsonl values.jsonl ",
       "contest.jsonl developer.jsonl latest.jsonl trainer.jsonl values.jsonl "},
      {{"json-train.arrow", "cache-0123456789abcdef.arrow", "cache-00ff_00000_of_00002.arrow", "dataset_info.json"},
       "json-train.arrow ",
       "json-train.arrow "},
      {{"json-train-00000-of-00001.arrow", "json-test-00000-of-00001.arrow"},
       "json-train-00000-of-00001.arrow ",
       "json-test-00000-of-00001.arrow "},
      {{"train_1/a.jsonl", "train_2/a.jsonl", "my-test/a.jsonl"},
       "train_1/a.jsonl train_2/a.jsonl ",
       "my-test/a.jsonl "},
  };
  int number = 0;
  for (const Case& c : cases) {
    const std::string directory = "case" + std::to_string(number++);
    for (const char* file : c.files) put(directory + "/" + file);
    EXPECT_EQ(names(directory), c.training) << c.files[0];
    EXPECT_EQ(names(directory, DataUse::evaluation), c.evaluation) << c.files[0];
  }
  EXPECT_EQ(left_out("case2"), "a-dev.jsonl a-test.jsonl ");
  EXPECT_EQ(left_out("case6"), "cache-00ff_00000_of_00002.arrow cache-0123456789abcdef.arrow ");

  for (const std::string name : {"only/x_test.jsonl", "alone/test.jsonl", "sharded/test-00000-of-00001.parquet"}) {
    put(name);
    const std::string directory = name.substr(0, name.find('/'));
    EXPECT_NE(refusal(directory).find("for "), std::string::npos) << refusal(directory);
    EXPECT_EQ(names(directory, DataUse::evaluation), name.substr(directory.size() + 1) + " ");
    // A file, or a pattern, that is named is meant.
    EXPECT_EQ(data_files((directory_.path / name).string(), "--data", DataUse::training).at(0).size(), 1U);
    EXPECT_EQ(data_files((directory_.path / directory / "*").string(), "--data", DataUse::training).at(0).size(), 1U);
  }
  EXPECT_NE(refusal("only").find("by their names all files are for evaluation (x_test.jsonl is one)"),
            std::string::npos);
  put("derived/cache-0123.arrow");
  EXPECT_NE(refusal("derived").find("but cache-*.arrow, which datasets derives from others"), std::string::npos);
}

TEST_F(DataDirectories, WithoutTheSplitThatIsNeededAreRefused) {
  put("ultra/train_sft-00000-of-00001.parquet");
  put("ultra/train_gen-00000-of-00001.parquet");
  EXPECT_NE(refusal("ultra").find("splits train_gen, train_sft, several of which are for training"), std::string::npos)
      << refusal("ultra");
  EXPECT_NE(refusal("ultra").find("ultra/train_gen*.parquet\""), std::string::npos) << refusal("ultra");
  put("twice/a.parquet");
  put("twice/a.jsonl");
  EXPECT_NE(refusal("twice").find("perhaps the same records twice"), std::string::npos) << refusal("twice");
  put("configs/en/x.parquet");
  put("configs/de/x.parquet");
  EXPECT_NE(refusal("configs").find("name one of them: de, en"), std::string::npos) << refusal("configs");

  put("dict/dataset_dict.json", R"({"splits": ["a", "b"]})");
  EXPECT_NE(refusal("dict").find("splits a, b"), std::string::npos) << refusal("dict");
  put("dict/dataset_dict.json", R"({"splits": ["train", "../.."]})");
  EXPECT_NE(refusal("dict").find("names the split train, which is not there"), std::string::npos) << refusal("dict");
  put("dict/dataset_dict.json", "[]");
  EXPECT_NE(refusal("dict").find("\"splits\" must be a list"), std::string::npos) << refusal("dict");

  put("saved/dataset_info.json");
  for (const char* bad : {"{}", R"({"_data_files": [{}]})", R"({"_data_files": [{"filename": "../x.arrow"}]})"}) {
    put("saved/state.json", bad);
    EXPECT_NE(refusal("saved").find("\"_data_files\" must be"), std::string::npos) << refusal("saved");
  }
  put("saved/state.json", R"({"_data_files": [{"filename": "x.arrow"}]})");
  EXPECT_NE(refusal("saved").find("names x.arrow, which is not there"), std::string::npos) << refusal("saved");
  put("saved/state.json", "{");
  EXPECT_NE(refusal("saved").find("not valid JSON"), std::string::npos) << refusal("saved");
}

}  // namespace
}  // namespace so
