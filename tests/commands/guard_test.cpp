#include "commands/program/guard.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>

#include "base/error.h"

namespace so {
namespace {

struct Outcome {
  int code;
  std::string message;
};

Outcome guarded(const std::function<int()>& body) {
  Outcome o{};
  o.code = run_guarded(body, o.message);
  return o;
}

TEST(Guard, ExitCodes) {
  EXPECT_EQ(guarded([] { return 0; }).code, 0);
  EXPECT_EQ(guarded([] { return 0; }).message, "");
  EXPECT_EQ(guarded([] { return 130; }).code, 130);

  const Outcome user = guarded([]() -> int { fail("x.json: no such key"); });
  EXPECT_EQ(user.code, 2);
  EXPECT_EQ(user.message, "superoffload: x.json: no such key");

  const Outcome longer = guarded([]() -> int { fail("x.json: \"{}\" is not there", std::string(100'000, 'a')); });
  EXPECT_LT(longer.message.size(), 6000u);
  EXPECT_TRUE(longer.message.ends_with("aaa\" is not there")) << longer.message;
  std::string table;
  for (int i = 0; i < 1000; ++i) table += "a line of a table\n";
  EXPECT_EQ(guarded([&]() -> int { fail("{}", table); }).message, "superoffload: " + table);

  const Outcome bug = guarded([]() -> int { throw Bug("count < limit"); });
  EXPECT_EQ(bug.code, 70);
  EXPECT_EQ(bug.message, "superoffload: internal error, please report it: count < limit");

  const Outcome memory = guarded([]() -> int { throw std::bad_alloc(); });
  EXPECT_EQ(memory.code, 1);
  EXPECT_EQ(memory.message, "superoffload: out of memory");

  const Outcome length = guarded([]() -> int { throw std::length_error("vector::_M_default_append"); });
  EXPECT_EQ(length.code, 1);
  EXPECT_EQ(length.message, "superoffload: out of memory: something is larger than an array can be");

  const Outcome threads = guarded(
      []() -> int { throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again), "x"); });
  EXPECT_EQ(threads.code, 1);
  EXPECT_EQ(threads.message,
            "superoffload: the system refused what the program needs: Resource temporarily unavailable (threads; raise "
            "`ulimit -u` or `-v`, or give a smaller --cpu_threads)");

  const Outcome file = guarded([]() -> int {
    throw std::filesystem::filesystem_error("status", "/a\nb", std::make_error_code(std::errc::permission_denied));
  });
  EXPECT_EQ(file.code, 2);
  EXPECT_EQ(file.message, "superoffload: cannot use /a\\x0ab: Permission denied");

  const Outcome system = guarded([]() -> int { throw std::runtime_error("disk full"); });
  EXPECT_EQ(system.code, 1);
  EXPECT_EQ(system.message, "superoffload: disk full");

  // An exception that nobody expected is a fault of the program.
  const Outcome other = guarded([]() -> int { throw std::out_of_range("[json.exception] two\nlines"); });
  EXPECT_EQ(other.code, 70);
  EXPECT_EQ(other.message, "superoffload: internal error, please report it: [json.exception] two\\x0alines");
  EXPECT_EQ(guarded([]() -> int { throw 3; }).code, 70);
}

}  // namespace
}  // namespace so
