#include "commands/program/terminate.h"

#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace so {
namespace {

// Throws where no handler can be: on a thread of its own.
template <class E>
void end_by(const E& exception) {
  install_terminate_handler();
  std::thread([&] { throw exception; }).join();
}

TEST(TerminateDeathTest, OneLineAndADocumentedExitCode) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const testing::ExitedWithCode failure(1), internal(70);
  EXPECT_EXIT(end_by(std::bad_alloc()), failure, "^superoffload: out of memory\n$");
  EXPECT_EXIT(end_by(std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again))), failure,
              "^superoffload: Resource temporarily unavailable\n$");
  EXPECT_EXIT(end_by(std::runtime_error("no such thing")), internal, "^superoffload: no such thing\n$");
  EXPECT_EXIT(end_by(3), internal,
              "^superoffload: internal error, please report it: an exception of an unknown kind\n$");
  const auto without_exception = [] {
    install_terminate_handler();
    std::terminate();
  };
  EXPECT_EXIT(without_exception(), internal, "^superoffload: internal error, please report it: it ended itself\n$");
}

}  // namespace
}  // namespace so
