#include "cli/guard.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

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

  const Outcome bug = guarded([]() -> int { throw Bug("count < limit"); });
  EXPECT_EQ(bug.code, 70);
  EXPECT_EQ(bug.message, "superoffload: internal error, please report it: count < limit");

  const Outcome memory = guarded([]() -> int { throw std::bad_alloc(); });
  EXPECT_EQ(memory.code, 1);
  EXPECT_EQ(memory.message, "superoffload: out of memory");

  const Outcome system = guarded([]() -> int { throw std::runtime_error("disk full"); });
  EXPECT_EQ(system.code, 1);
  EXPECT_EQ(system.message, "superoffload: disk full");
}

}  // namespace
}  // namespace so
