// The emulated processor runs the instruction set and the vector length that scripts/test_aarch64.sh asks for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "optim/cpu/adamw_kernels.h"

namespace so {
namespace {

std::string expected(const char* variable) {
  const char* value = std::getenv(variable);
  return value ? value : "";
}

TEST(Target, IsTheOneAskedFor) {
  if (expected("SO_EXPECT_TARGET").empty()) GTEST_SKIP() << "no instruction set is asked for";
  const auto& tables = adamw::kernel_tables();
  EXPECT_EQ(tables.front().name, expected("SO_EXPECT_TARGET"));
  EXPECT_EQ(std::to_string(tables.front().lanes), expected("SO_EXPECT_LANES"));
}

TEST(Target, EverySetOfTheProcessorIsThere) {
  const auto& tables = adamw::kernel_tables();
  const auto lanes = [&](std::string_view name) -> std::size_t {
    const auto found = std::find_if(tables.begin(), tables.end(), [&](const auto& t) { return t.name == name; });
    return found == tables.end() ? 0 : found->lanes;
  };
  EXPECT_EQ(lanes("NEON"), 4u);
  EXPECT_EQ(lanes("scalar"), 1u);
  // The code for vectors of any length runs at the length of this processor.
  const std::size_t scalable = tables.front().name == "NEON" ? 0 : tables.front().lanes;
  EXPECT_EQ(lanes("SVE"), scalable);
  EXPECT_EQ(lanes("SVE2"), scalable);
}

}  // namespace
}  // namespace so
