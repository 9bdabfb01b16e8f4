// Which device is under test: the CPU, or a GPU when the environment says SO_TEST_DEVICE=cuda, or cuda:1 for
// the second one. The same tests run on both; ctest registers them twice where the build has the CUDA backend, the
// second time with the label gpu.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

namespace so::test {

inline std::string_view device_under_test() {
  const char* device = std::getenv("SO_TEST_DEVICE");
  return device ? device : "";
}
inline bool on_gpu() { return device_under_test().starts_with("cuda"); }

}  // namespace so::test

// For tests of what only the CPU backend promises.
#define SO_CPU_ONLY(why) \
  if (::so::test::on_gpu()) GTEST_SKIP() << "on the CPU only: " why
