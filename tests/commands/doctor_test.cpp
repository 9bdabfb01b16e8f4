// superoffload doctor as a user runs it, on whatever machine this is. Nothing here changes the machine: --apply and
// --undo are tested on trees of files (tests/doctor/partition_test.cpp).
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "support/files.h"
#include "support/label.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/refusal.h"

namespace so::test {
namespace {

Outcome doctor(const std::vector<std::string>& options, const Limits& limits = {}) {
  const TemporaryDirectory folder;
  std::vector<std::string> command{binary(), "doctor"};
  command.insert(command.end(), options.begin(), options.end());
  return run(command, folder.path(), limits);
}

// The names in the first column of the table of checks.
std::set<std::string> documented_checks() {
  std::ifstream in(source_tree() + "/docs/doctor.md");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  std::set<std::string> names;
  const std::size_t from = text.find("## Checks"), to = text.find("## JSON");
  const std::regex row(R"(\n\|((?: `[a-z_]+`,?)+) \|)"), name("`([a-z_]+)`");
  const std::string table = text.substr(from, to - from);
  for (std::sregex_iterator i(table.begin(), table.end(), row), end; i != end; ++i) {
    const std::string names_of_row = (*i)[1].str();
    for (std::sregex_iterator j(names_of_row.begin(), names_of_row.end(), name); j != end; ++j)
      names.insert((*j)[1].str());
  }
  return names;
}

TEST(Doctor, TextAndJsonSayTheSame) {
  const Outcome text = doctor({}), json = doctor({"--json"});
  const auto j = nlohmann::json::parse(json.out);
  EXPECT_EQ(json.exit_code, j.at("wrong") == 0 ? 0 : 1) << json.out;
  EXPECT_EQ(text.exit_code, json.exit_code);
  EXPECT_EQ(text.err + json.err, "");
  const std::set<std::string> documented = documented_checks();
  EXPECT_GE(documented.size(), 20u);
  const std::set<std::string> verdicts{"ok", "costs", "wrong", "unknown"};
  for (const auto& finding : j.at("findings")) {
    EXPECT_TRUE(documented.contains(finding.at("check").get<std::string>())) << finding;
    EXPECT_TRUE(verdicts.contains(finding.at("verdict").get<std::string>())) << finding;
    EXPECT_NE(text.out.find(finding.at("subject").get<std::string>() + " "), std::string::npos) << finding;
  }
}

TEST(Doctor, EveryCheckIsDocumented) {
  std::set<std::string> names;
  const std::regex name(R"(\.check = "([a-z_]+)\")");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(source_tree() + "/src/doctor")) {
    if (!entry.is_regular_file()) continue;
    const std::string text = read_file(entry.path());
    for (std::sregex_iterator i(text.begin(), text.end(), name), end; i != end; ++i) names.insert((*i)[1].str());
  }
  names.insert({"cublaslt", "cudnn", "nccl", "cache_folder", "temporary_folder"});
  EXPECT_EQ(names, documented_checks());
}

TEST(Doctor, ALimitOfThisProcessIsSeen) {
  const Outcome o = doctor({"--json"}, {.resources = {{RLIMIT_MEMLOCK, 65536}}});
  const auto j = nlohmann::json::parse(o.out);
  for (const auto& finding : j.at("findings"))
    if (finding.at("check") == "locked_memory") {
      EXPECT_EQ(finding.at("found"), "65.5 kB");
      EXPECT_NE(finding.at("mend").get<std::string>().find("ulimit -l unlimited"), std::string::npos);
      return;
    }
  ADD_FAILURE() << o.out;
}

SO_LABEL(no_asan, "Doctor.IsNamedByPlansForSuperchips");
TEST(Doctor, IsNamedByPlansForSuperchips) {
  const auto planned = [](const char* hardware) {
    const TemporaryDirectory folder;
    const Outcome o =
        run({binary(), "plan", "--model", "qwen3-4b", "--batch_size", "1", "--hardware", hardware, "--verbose"},
            folder.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return o.out;
  };
  for (const char* superchip : {"gh200", "gb200"})
    EXPECT_NE(planned(superchip).find("superoffload doctor says there what to switch on (docs/superchips.md)"),
              std::string::npos);
  EXPECT_EQ(planned("h200").find("doctor"), std::string::npos);
}

TEST(Doctor, OptionsThatHaveNothingToDoAreRefused) {
  const auto said = [](const std::vector<std::string>& options) {
    const Outcome o = doctor(options);
    EXPECT_EQ(o.exit_code, 2) << o.out;
    EXPECT_EQ(o.out, "");
    return o.err;
  };
  EXPECT_EQ(said({"--apply"}), "superoffload: --apply is about memory partitions: add --partition\n");
  EXPECT_EQ(said({"--gpus", "2"}), "superoffload: --gpus is about memory partitions: add --partition\n");
  EXPECT_EQ(said({"--partition", "--apply", "--undo"}),
            "superoffload: --apply and --undo exclude each other: give one of them\n");
  EXPECT_EQ(
      said({"--partition", "--undo", "--feeding_cores", "2"}),
      "superoffload: --feeding_cores has nothing to do with --undo, which goes by the record of --apply: remove it\n");
  EXPECT_NE(said({"--partition", "--adamw_bandwidth", "101"}).find("--adamw_bandwidth: 101"), std::string::npos);
}

}  // namespace
}  // namespace so::test
