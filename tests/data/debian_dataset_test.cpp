// scripts/make_debian_dataset.sh on package lists of our own.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <map>
#include <set>

#include "data/records.h"
#include "data_test_util.h"
#include "support/paths.h"

namespace so {
namespace {

using test::TemporaryDirectory;
using test::write_file;

class DebianDataset : public ::testing::Test {
 protected:
  TemporaryDirectory directory_;

  // An apt-cache that prints `packages` packages, with everything that has to be escaped, skipped or cut.
  void make_lists(int packages) {
    std::string lists;
    for (int i = 0; i < packages; ++i) {
      lists += fmt::format(
          "Package: pkg{0}\nVersion: 1\nDepends: libc6 (>= 2.34), liba | libb, libc6 (<< 3), dep{0}:any, last{0}\n"
          "Description: says \"hello\" to C:\\new\\{0} in caf\xc3\xa9s\n a long text\n that is not used\n"
          "Tag: a::b,\n c::d\nSection: universe/utils\nHomepage: https://example.org/{0}\n\n",
          i);
      lists += fmt::format("Package: pkg{0}-dbg\nDescription: debugging symbols for pkg{0}\nSection: debug\n\n", i);
      lists += fmt::format("Package: pkg{0}\nDescription: another version of package {0}\nSection: web\n\n", i);
    }
    write_file(directory_.path / "lists", lists);
    write_file(directory_.path / "apt-cache",
               "#!/bin/sh\n[ \"$1\" = dumpavail ] || exit 1\ncat '" + (directory_.path / "lists").string() + "'\n");
    std::filesystem::permissions(directory_.path / "apt-cache", std::filesystem::perms::owner_all);
  }

  int run(const std::string& arguments) {
    const std::string command = "cd '" + directory_.path.string() + "' && PATH=\"$PWD:$PATH\" sh " +
                                test::source_tree() + "/scripts/make_debian_dataset.sh " + arguments + " 2>messages";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::vector<AlpacaRecord> read(const std::string& name) {
    const std::string content = test::read_file(directory_.path / name);
    RecordReader reader(name, content);
    RecordParser parser(name, 1);
    std::vector<AlpacaRecord> records;
    for (RawRecord raw; reader.next(raw);) records.push_back(std::get<AlpacaRecord>(parser.parse(raw)));
    return records;
  }
};

TEST_F(DebianDataset, MakesDisjointSetsOfEscapedRecords) {
  make_lists(2500);
  ASSERT_EQ(run("out/train.jsonl out/eval.jsonl"), 0) << test::read_file(directory_.path / "messages");
  const auto train = read("out/train.jsonl"), eval = read("out/eval.jsonl");
  EXPECT_EQ(train.size(), 2300u);
  EXPECT_EQ(eval.size(), 200u);
  std::set<std::string> seen;  // every output names its package, so equal outputs are the same package
  std::map<std::string, int> kinds;
  bool quotes = false, depends = false;
  for (const auto* set : {&train, &eval}) {
    for (const AlpacaRecord& r : *set) {
      seen.insert(r.output);
      if (set == &eval) ++kinds[r.instruction.substr(0, 4) + r.instruction.substr(r.instruction.size() - 3)];
      const std::string text = r.input + r.output;
      EXPECT_EQ(text.find("dbg"), std::string::npos);
      EXPECT_EQ(text.find("web"), std::string::npos);
      const auto at = text.find("says \"hello\" to C:\\new\\");
      quotes |= at != std::string::npos && text.find(" in caf\xc3\xa9s", at) != std::string::npos;
      depends |= r.output.find("depends on libc6, liba, dep") != std::string::npos &&
                 r.output.find(", among others. It provides: says") != std::string::npos;
    }
  }
  EXPECT_EQ(seen.size(), 2500u);
  EXPECT_TRUE(quotes);
  EXPECT_TRUE(depends);
  EXPECT_EQ(kinds.size(), 4u);  // every kind of question is evaluated
  for (const auto& [kind, count] : kinds) EXPECT_EQ(count, 50) << kind;

  const std::string before = test::read_file(directory_.path / "out/train.jsonl");
  ASSERT_EQ(run("out/train.jsonl out/eval.jsonl"), 0);
  EXPECT_TRUE(test::read_file(directory_.path / "out/train.jsonl") == before);
}

TEST_F(DebianDataset, PicksAtEvenDistancesFromALongList) {
  make_lists(7001);
  ASSERT_EQ(run("train.jsonl eval.jsonl"), 0);
  EXPECT_EQ(read("train.jsonl").size(), 6000u);
  EXPECT_EQ(read("eval.jsonl").size(), 200u);
}

TEST_F(DebianDataset, SaysWhatToDoWithoutLists) {
  make_lists(10);
  EXPECT_EQ(run("train.jsonl eval.jsonl"), 2);
  EXPECT_NE(test::read_file(directory_.path / "messages").find("run 'apt-get update' as root first"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(directory_.path / "train.jsonl"));
  EXPECT_EQ(run("train.jsonl"), 2);
  EXPECT_EQ(run("same same"), 2);
}

}  // namespace
}  // namespace so
