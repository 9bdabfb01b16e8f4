#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <utility>

#include "base/error.h"
#include "base/file_io.h"

namespace so {
namespace {

class Files : public ::testing::Test {
 protected:
  Files() {
    std::string name = (std::filesystem::temp_directory_path() / "superoffload-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    directory_ = name;
  }
  ~Files() override {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  std::filesystem::path directory_;
};

void write(const std::filesystem::path& path, std::string_view text) { std::ofstream(path, std::ios::binary) << text; }

TEST_F(Files, MapsTheContent) {
  write(directory_ / "a", "hello");
  MappedFile first(directory_ / "a", MappedFile::Access::sequential);
  EXPECT_EQ(first.text(), "hello");
  EXPECT_EQ(first.bytes().size(), 5u);
  MappedFile second = std::move(first);
  EXPECT_EQ(second.text(), "hello");
  EXPECT_TRUE(first.text().empty());
  write(directory_ / "empty", "");
  second = MappedFile(directory_ / "empty", MappedFile::Access::random);
  EXPECT_TRUE(second.text().empty());
}

TEST_F(Files, RefusesWhatCannotBeMapped) {
  EXPECT_THROW(MappedFile(directory_ / "absent", MappedFile::Access::random), Error);
  EXPECT_THROW(MappedFile(directory_, MappedFile::Access::random), Error);
  const auto pipe = directory_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(MappedFile(pipe, MappedFile::Access::random), Error);  // at once: nobody writes to it
}

TEST_F(Files, AMappingOutlivesTheReplacementOfItsFile) {
  write(directory_ / "a", "old");
  write(directory_ / "b", "new!");
  const MappedFile mapped(directory_ / "a", MappedFile::Access::random);
  replace_file(directory_ / "b", directory_ / "a");
  EXPECT_EQ(mapped.text(), "old");
  EXPECT_EQ(MappedFile(directory_ / "a", MappedFile::Access::random).text(), "new!");
  EXPECT_FALSE(std::filesystem::exists(directory_ / "b"));
  EXPECT_THROW(replace_file(directory_ / "b", directory_ / "a"), Error);
}

TEST_F(Files, WritesAtPositionAndOffset) {
  const auto path = directory_ / "a";
  FileDescriptor file(::creat(path.c_str(), 0600));
  ASSERT_TRUE(file);
  const auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); };
  write_all(file, bytes("0123"), path);
  write_all_at(file, bytes("ab"), 1, path);
  write_all(file, bytes("45"), path);
  sync_file(file, path);
  EXPECT_EQ(MappedFile(path, MappedFile::Access::random).text(), "0ab345");
  const FileDescriptor closed;
  EXPECT_THROW(write_all(closed, bytes("x"), path), Error);
  EXPECT_THROW(write_all_at(closed, bytes("x"), 0, path), Error);
  EXPECT_THROW(sync_file(closed, path), Error);
}

}  // namespace
}  // namespace so
