// Other things may stand where a file is read: a FIFO must not hang the program, an endless or huge file must not eat
// the memory, and what the file system refuses is said in our words. A hang shows as the test's time limit.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>

#include "support/paths.h"
#include "support/published_models.h"
#include "support/refusal.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

// A kind of node that may stand there, and the words of the refusal.
struct Stand {
  std::string name;
  std::function<void(const fs::path&)> put;
  std::string said;

  friend void PrintTo(const Stand& stand, std::ostream* out) { *out << stand.name; }
};

const std::vector<Stand>& stands() {
  static const std::vector<Stand> all{
      {"Fifo", [](const fs::path& p) { ASSERT_EQ(::mkfifo(p.c_str(), 0600), 0); }, "not a regular file"},
      {"Device", [](const fs::path& p) { fs::create_symlink("/dev/zero", p); }, "not a regular file"},
      {"Directory", [](const fs::path& p) { fs::create_directory(p); }, "directory"},
      {"LoopOfLinks", [](const fs::path& p) { fs::create_symlink(p.filename(), p); },
       "Too many levels of symbolic links"},
      {"HugeFile",
       [](const fs::path& p) {
         write_file(p, "");
         fs::resize_file(p, std::uintmax_t{1} << 36);
       },
       ""},
  };
  return all;
}

class StandsInPlace : public testing::TestWithParam<Stand> {
 protected:
  StandsInPlace() {
    const auto& qwen = *std::find_if(published_models().begin(), published_models().end(),
                                     [](const PublishedModel& m) { return m.name == "Qwen3"; });
    write_small_files(qwen, temporary_ / "model");
    write_json(temporary_ / "model/special_tokens_map.json", {{"eos_token", "<|im_end|>"}});
    write_json(temporary_ / "model/config.json", config_of(qwen));
    write_file(temporary_ / "data.jsonl", "{\"text\": \"Add.\"}\n");
    write_file(temporary_ / "other.json", "{}");
  }
  void put(const fs::path& path) {
    fs::remove(path);
    GetParam().put(path);
  }
  void expect_refused(std::vector<std::string> words, const std::string& file) {
    words.insert(words.begin(), test::binary());
    expect_refusal(run(words, temporary_.path()), {fs::path(file).filename().string(), GetParam().said});
  }
  std::string path(const std::string& name) const { return (temporary_ / name).string(); }

  TemporaryDirectory temporary_;
};

TEST_P(StandsInPlace, OfATokenizersFile) {
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"}) {
    const std::string before = read_file(temporary_ / "model" / name);
    ASSERT_NO_FATAL_FAILURE(put(temporary_ / "model" / name));
    expect_refused({"tokenize", "--model", path("model"), "--text", "a"}, name);
    fs::remove(temporary_ / "model" / name);
    write_file(temporary_ / "model" / name, before);
  }
}

TEST_P(StandsInPlace, OfTheConfigOrTheWeights) {
  const std::vector<std::string> train{"train",        "--model",   path("model"), "--data", path("data.jsonl"),
                                       "--output_dir", path("out"), "--max_steps", "1",      "--device",
                                       "cpu"};
  ASSERT_NO_FATAL_FAILURE(put(temporary_ / "model/model.safetensors.index.json"));
  expect_refused(train, "model.safetensors.index.json");
  if (GetParam().name != "HugeFile") {  // its first bytes say that there is no header
    ASSERT_NO_FATAL_FAILURE(put(temporary_ / "model/model.safetensors"));
    expect_refused(train, "model.safetensors");
  }
  ASSERT_NO_FATAL_FAILURE(put(temporary_ / "model/config.json"));
  expect_refused(train, "config.json");
  expect_refused({"plan", "--model", path("model")}, "config.json");
  if (GetParam().name != "Directory")  // then it is the directory's config.json that is missed
    expect_refused({"init", "--config", path("model/config.json"), "--output_dir", path("new")}, "");
  EXPECT_FALSE(fs::exists(temporary_ / "out"));
}

TEST_P(StandsInPlace, OfAFileThatAnOptionNames) {
  ASSERT_NO_FATAL_FAILURE(put(temporary_ / "other.json"));
  expect_refused({"plan", "--model", "qwen3-0.6b", "--hardware", path("other.json")}, "other.json");
  expect_refused({"train", "--model", path("model"), "--data", path("data.jsonl"), "--output_dir", path("out"),
                  "--deepspeed_config", path("other.json")},
                 "other.json");
  expect_refused({"tokenize", "--model", path("model"), "--file", path("other.json")}, "other.json");
}

INSTANTIATE_TEST_SUITE_P(Kinds, StandsInPlace, testing::ValuesIn(stands()),
                         [](const auto& tested) { return tested.param.name; });

TEST(StandardInput, AnEndlessOneIsRefused) {
  TemporaryDirectory temporary;
  const std::string tokenizer = test::fixtures() + "/tokenizer/qwen3";
  expect_refusal(run({"/bin/sh", "-c", test::binary() + " tokenize --stdin --model '" + tokenizer + "' </dev/zero"},
                     temporary.path()),
                 {"standard input", "give a file"});
}

class FileSystemRefusals : public RefusalTest {};

TEST_F(FileSystemRefusals, NamesThatAreTooLong) {
  const std::string name(300, 'n');
  expect_refused(command().set("model", (temporary_ / name).string()), {"File name too long"});
  expect_refused(command().set("data", (temporary_ / name).string()), {"File name too long"});
  expect_refusal(run({test::binary(), "plan", "--model", name}, temporary_.path()), {"File name too long"});
  expect_refusal(run({test::binary(), "plan", "--model", "qwen3-4b", "--hardware", name}, temporary_.path()),
                 {"File name too long"});
  expect_refusal(run({test::binary(), "tokenize", "--model", name, "--text", "a"}, temporary_.path()),
                 {"File name too long"});
}

TEST_F(FileSystemRefusals, LoopsOfLinks) {
  fs::create_symlink("loop", temporary_ / "loop");
  const std::string loop = (temporary_ / "loop").string();
  for (const char* option : {"model", "data"})
    expect_refused(command().set(option, loop), {"loop", "Too many levels of symbolic links"});
}

TEST_F(FileSystemRefusals, DirectoriesWithoutRights) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  fs::permissions(model(), fs::perms::none);
  expect_refused({"model", "Permission denied"});
  fs::permissions(model(), fs::perms::owner_all);
}

}  // namespace
}  // namespace so::test
