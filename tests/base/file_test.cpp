#include "base/file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/quantities.h"
#include "support/child_process.h"
#include "support/io.h"

namespace so {
namespace {

using io_test::expect_error;
using io_test::read_file;
using io_test::run_in_child;
using io_test::TemporaryDirectory;
using io_test::write_file;

TEST(Printable, EscapesControlCharactersAndCutsAtACharacter) {
  EXPECT_EQ(printable("model.weight"), "model.weight");
  EXPECT_EQ(printable("a\nb\x7f"), "a\\x0ab\\x7f");
  EXPECT_EQ(printable("a\x1b[2J\u009b2J\x9b\u202e.\u2028"), "a\\x1b[2J\\x9b2J\\x9b\\u202e.\\u2028");
  EXPECT_EQ(printable("größe", 3), "gr...");  // the third byte is half of the ö
  EXPECT_EQ(printable("größe", 4), "grö...");
}

TEST(ByteCount, ReadsWell) {
  EXPECT_EQ(format_bytes(0), "0 bytes");
  EXPECT_EQ(format_bytes(1), "1 byte");
  EXPECT_EQ(format_bytes(9'999), "9999 bytes");
  EXPECT_EQ(format_bytes(10'000), "10.0 kB");
  EXPECT_EQ(format_bytes(999'949), "999.9 kB");
  EXPECT_EQ(format_bytes(999'951), "1.0 MB");
  EXPECT_EQ(format_bytes(16'060'522'496), "16.1 GB");
}

TEST(File, WritesAnywhereAndReadsBack) {
  TemporaryDirectory directory;
  const auto path = directory / "data";
  {
    File file = File::create(path);
    file.preallocate(1 << 16);
    std::vector<std::thread> threads;
    for (int t = 3; t >= 0; --t) {
      threads.emplace_back([&file, t] {
        const std::vector<char> part(1 << 14, static_cast<char>('a' + t));
        file.pwrite_all(io_test::bytes_of(part), static_cast<std::uint64_t>(t) << 14);
      });
    }
    for (auto& thread : threads) thread.join();
    file.sync();
    file.close();
    EXPECT_FALSE(file.is_open());
  }
  const File file = File::open(path);
  ASSERT_EQ(file.size(), 1u << 16);
  std::vector<char> part(4);
  file.pread_exact(std::as_writable_bytes(std::span(part)), (1 << 14) - 2);
  EXPECT_EQ(std::string(part.data(), 4), "aabb");
  expect_error([&] { file.pread_exact(std::as_writable_bytes(std::span(part)), (1 << 16) - 1); },
               {"data", "ends at byte 65536"});
}

TEST(File, AppendsAndCreatesOnlyNewFiles) {
  TemporaryDirectory directory;
  File::append(directory / "log").write_all(std::string_view("one\n"));
  File::append(directory / "log").write_all(std::string_view("two\n"));
  EXPECT_EQ(read_file(directory / "log"), "one\ntwo\n");
  expect_error([&] { File::create_new(directory / "log"); }, {"cannot create", "log", "File exists"});
}

TEST(File, NothingIsWrittenThroughALink) {
  TemporaryDirectory directory;
  write_file(directory / "precious", "kept");
  std::filesystem::create_symlink("precious", directory / "link");
  for (const auto open : {File::create, File::update, File::append, File::create_new})
    expect_error([&] { open(directory / "link"); }, {"cannot ", "link"});
  expect_error([&] { write_text_file_atomically(directory / "link", "lost"); },
               {"link is a link, which is not replaced"});
  EXPECT_EQ(read_file(directory / "precious"), "kept");
  EXPECT_TRUE(std::filesystem::is_symlink(directory / "link"));
  File::open(directory / "link");  // reading is another matter
}

TEST(File, NamesPathAndReason) {
  TemporaryDirectory directory;
  expect_error([&] { File::open(directory / "absent"); }, {"cannot open", "absent", "No such file"});
  expect_error([&] { File::open(directory.path()); }, {"a directory"});
  ASSERT_EQ(::mkfifo((directory / "fifo").c_str(), 0600), 0);
  expect_error([&] { File::open(directory / "fifo"); }, {"not a regular file"});  // and does not wait for a writer
}

TEST(File, MovesLeaveNothingOpenTwice) {
  TemporaryDirectory directory;
  write_file(directory / "a", "a");
  write_file(directory / "b", "b");
  File a = File::open(directory / "a");
  File b = File::open(directory / "b");
  const int descriptor = b.descriptor();
  a = std::move(b);
  EXPECT_EQ(a.descriptor(), descriptor);
  EXPECT_EQ(a.path(), directory / "b");
  File c(std::move(a));
  EXPECT_EQ(c.descriptor(), descriptor);
  EXPECT_FALSE(a.is_open());  // NOLINT(bugprone-use-after-move): a moved-from File is closed
}

TEST(File, AFullDiskSaysHowMuchIsMissing) {
  TemporaryDirectory directory;
  const std::string result = run_in_child([&]() -> std::string {
    if (!io_test::mount_small_file_system(directory.path(), 1 << 16)) return "no mount";
    File file = File::create(directory / "big");
    file.pwrite_all(io_test::bytes_of(std::vector<char>(1 << 15, 'x')), 0);
    try {
      file.preallocate(std::uint64_t{1} << 30);
      return "preallocate did not fail";
    } catch (const Error& error) {
      std::string text = error.what();
      try {
        file.pwrite_all(io_test::bytes_of(std::vector<char>(1 << 17, 'x')), 0);
        return "pwrite_all did not fail";
      } catch (const Error& second) {
        return text + "|" + second.what();
      }
    }
  });
  if (result == "no mount") GTEST_SKIP() << "neither root nor user namespaces";
  EXPECT_NE(result.find("no space left on " + (directory / "big").string() + ": needs 1.1 GB, "), result.npos)
      << result;
  EXPECT_NE(result.find(" free|no space left on "), result.npos) << result;
}

// Needs no privileges: the limit on file sizes stands in for the full disk.
TEST(File, ALimitOnFileSizesIsNamed) {
  TemporaryDirectory directory;
  const std::string result = run_in_child([&]() -> std::string {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 16, 1 << 16};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return "setrlimit";
    File file = File::create(directory / "big");
    file.preallocate(1 << 16);
    file.preallocate((1 << 16) + 1);
    return "no failure";
  });
  EXPECT_EQ(result.find("threw: cannot write " + (directory / "big").string() + " (65.5 kB): File too large"), 0u)
      << result;
  EXPECT_NE(result.find("ulimit -f"), result.npos) << result;
}

TEST(File, PreallocatesWhereBlocksCannotBeClaimed) {
  TemporaryDirectory directory;
  const std::string result = run_in_child([&]() -> std::string {
    if (!io_test::deny_system_call(SYS_fallocate, EOPNOTSUPP)) return "no filter";
    File file = File::create(directory / "data");
    file.preallocate(12345);
    const std::string size = std::to_string(file.size());
    try {
      file.preallocate(std::uint64_t{1} << 60);
      return "no failure";
    } catch (const Error& error) {
      return size + " " + error.what();
    }
  });
  if (result == "no filter") GTEST_SKIP() << "no seccomp";
  EXPECT_EQ(result.find("12345 no space left on "), 0u) << result;
}

// Bytes of the mapping that begins there which are in this process's memory.
std::size_t resident(const std::byte* begin) {
  std::istringstream maps(read_file("/proc/self/smaps"));
  const std::string address = fmt::format("{:x}-", reinterpret_cast<std::uintptr_t>(begin));
  std::size_t kilobytes = 0;
  std::string line;
  while (std::getline(maps, line) && !line.starts_with(address)) continue;
  while (std::getline(maps, line) && std::sscanf(line.c_str(), "Rss: %zu kB", &kilobytes) != 1) continue;
  return kilobytes << 10;
}

// The page cache has all of it, in folios that are large, but smaller than what the processor maps as one: of those the
// kernel would give back all.
TEST(MappedFile, GivesBackWhatWasMappedBesideAPart) {
  TemporaryDirectory directory;
  constexpr std::size_t piece = 700'000, pieces = 48, size = piece * pieces;
  {
    const std::string written(512 << 10, 'a');
    std::ofstream out(directory / "large", std::ios::binary);
    for (std::size_t at = 0; at < size; at += written.size())
      out.write(written.data(), static_cast<std::streamsize>(std::min(written.size(), size - at)));
  }
  const MappedFile map(directory / "large");
  const std::string expected(piece, 'a');
  const auto touch = [&](std::size_t i) {
    EXPECT_EQ(std::memcmp(map.bytes().data() + i * piece, expected.data(), piece), 0);
  };
  for (std::size_t i = 0; i < pieces; ++i) touch(i);
  EXPECT_GE(resident(map.bytes().data()), size);
  map.give_back(map.bytes());
  EXPECT_EQ(resident(map.bytes().data()), 0u);
  for (std::size_t i = 0; i < pieces; ++i) {
    touch(i);
    map.give_back(map.bytes().subspan(i * piece, piece));
  }
  EXPECT_EQ(resident(map.bytes().data()), 0u);
  map.give_back(map.bytes().first(0));
}

TEST(MappedFile, MapsWholeFiles) {
  TemporaryDirectory directory;
  write_file(directory / "empty", "");
  write_file(directory / "text", "hello");
  EXPECT_TRUE(MappedFile(directory / "empty").bytes().empty());
  MappedFile map(directory / "text");
  map.advise(MappedFile::Advice::sequential);
  MappedFile moved(std::move(map));
  EXPECT_EQ(map.size(), 0u);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(moved.bytes().data()), moved.size()), "hello");
}

TEST(TextFile, RefusesMoreThanAsked) {
  TemporaryDirectory directory;
  write_file(directory / "text", "0123456789");
  EXPECT_EQ(read_text_file(directory / "text", 10), "0123456789");
  expect_error([&] { read_text_file(directory / "text", 9); }, {"text", "10 bytes", "9 bytes"});
}

TEST(TextFile, ReplacesWholeAndCleansUpAfterAFailure) {
  TemporaryDirectory directory;
  write_text_file_atomically(directory / "text", "old");
  write_text_file_atomically(directory / "text", "new");
  EXPECT_EQ(read_file(directory / "text"), "new");
  std::filesystem::create_directory(directory / "taken");
  expect_error([&] { write_text_file_atomically(directory / "taken", "x"); }, {"cannot replace", "taken"});
  expect_error([&] { write_text_file_atomically(directory / "absent/x", "x"); }, {"cannot create", "absent/x"});
  EXPECT_EQ(io_test::names_in(directory.path()), (std::vector<std::string>{"taken", "text"}));
}

TEST(TextFile, SurvivesBeingKilled) {
  TemporaryDirectory directory;
  const auto path = directory / "text";
  const std::string even(200'000, 'e'), odd(100'000, 'o');
  write_text_file_atomically(path, even);
  bool changed = false;
  // Twelve kills at growing delays; if a slow machine got nothing done in that time, longer ones.
  for (int round = 0; round < 12 || (!changed && round < 60); ++round) {
    ASSERT_TRUE(io_test::kill_child_after(round < 12 ? 500 + 700 * round : 50'000 * (round - 11), [&] {
      for (;;) {
        write_text_file_atomically(path, odd);
        write_text_file_atomically(path, even);
      }
    }));
    const std::string text = read_file(path);
    EXPECT_TRUE(text == even || text == odd) << text.size();
    changed = changed || text == odd;
  }
  EXPECT_TRUE(changed);  // else the children never got to writing
}

TEST(FreeSpace, AsksTheNearestAncestor) {
  TemporaryDirectory directory;
  EXPECT_GT(free_space(directory.path()), 0u);
  EXPECT_GT(free_space(directory / "not/yet/there"), 0u);
}

// Vectors from the FNV draft (draft-eastlake-fnv, section "Test values").
}  // namespace
}  // namespace so
