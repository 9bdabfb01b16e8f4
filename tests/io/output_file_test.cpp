#include "io/output_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "device/trace.h"
#include "io/trace_file.h"
#include "support/errors.h"
#include "support/files.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

class OutputFiles : public testing::Test {
 protected:
  void expect_refused(const fs::path& path, std::vector<std::string> parts) const {
    parts.push_back("--trace");
    const auto names = [&] {
      std::vector<std::string> all;
      for (const auto& entry : fs::recursive_directory_iterator(directory_.path()))
        all.push_back(entry.path().string());
      return all;
    };
    const auto before = names();
    expect_in(refusal([&] { require_output_file(path, "--trace", is_own_trace); }), parts);
    EXPECT_EQ(names(), before);
  }
  TemporaryDirectory directory_;
};

TEST_F(OutputFiles, NewOnesAndOurOwnAreTaken) {
  const fs::path file = directory_ / "t.json";
  require_output_file(file, "--trace", is_own_trace);
  EXPECT_FALSE(fs::exists(file)) << "asking makes nothing";
  write_file(file, "");
  require_output_file(file, "--trace", is_own_trace);
  write_trace_file(file, Trace{});
  require_output_file(file, "--trace", is_own_trace);
}

TEST_F(OutputFiles, WhatOthersWroteIsRefused) {
  const fs::path file = directory_ / "thesis.tex";
  for (const char* text : {"mine", "{", R"({"traceEvents":[]})", R"({"traceEvents":[{"name":"another program's"}]})"}) {
    write_file(file, text);
    expect_refused(file, {file.string(), "did not write it"});
    EXPECT_EQ(read_file(file), text);
  }
  EXPECT_NO_THROW(require_output_file(file, "--output", is_own_trace, /*overwrite=*/true));
}

// With the permission to overwrite, too.
TEST_F(OutputFiles, OnlyRegularFilesAreReplaced) {
  write_trace_file(directory_ / "t.json", Trace{});
  fs::create_symlink(directory_ / "t.json", directory_ / "link");
  fs::create_symlink(directory_ / "nowhere", directory_ / "dangling");
  ASSERT_EQ(::mkfifo((directory_ / "fifo").c_str(), 0600), 0);
  for (const auto& [path, what] :
       std::vector<std::pair<fs::path, const char*>>{{directory_ / "link", "symbolic link"},
                                                     {directory_ / "dangling", "symbolic link"},
                                                     {directory_ / "fifo", "FIFO"},
                                                     {directory_.path(), "directory"},
                                                     {"/dev/null", "device"},
                                                     {"/dev/full", "device"}}) {
    expect_refused(path, {path.string(), what});
    EXPECT_THROW(require_output_file(path, "--output", is_own_trace, /*overwrite=*/true), Error) << path;
  }
  for (const fs::path& path : {directory_ / "", directory_ / ".", fs::path("..")}) expect_refused(path, {});
}

TEST_F(OutputFiles, DirectoriesAreNotMade) {
  const fs::path file = directory_ / "none" / "below" / "t.json";
  expect_refused(file, {file.parent_path().string() + " does not exist"});
  write_file(directory_ / "file", "");
  expect_refused(directory_ / "file" / "t.json", {(directory_ / "file").string()});
  // But for the one that the command makes.
  require_output_file(directory_ / "out" / "t.json", "--trace", is_own_trace, false, directory_ / "out" / "");
  EXPECT_FALSE(fs::exists(directory_ / "out"));
}

}  // namespace
}  // namespace so::test
