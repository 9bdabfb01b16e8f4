#include "base/shared_library.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

namespace so {
namespace {

TEST(SharedLibrary, IsTheFirstThatCanBeLoaded) {
  const std::vector<std::string> files{"", "libno_such_library.so.7", "libm.so.6"};
  const SharedLibrary library = load_library(files);
  ASSERT_NE(library.handle, nullptr);
  EXPECT_EQ(library.reason, "");
  double (*function)(double) = nullptr;
  SymbolFinder find(library);
  find(function, "fabs");
  ASSERT_NE(function, nullptr);
  EXPECT_EQ(function(-3.0), 3.0);
  EXPECT_EQ(find.missing(), nullptr);
  find(function, "no_such_function");
  EXPECT_EQ(function, nullptr);
  EXPECT_STREQ(find.missing(), "no_such_function");
}

TEST(SharedLibrary, SaysWhatTheLoaderSaidOfTheFirst) {
  const std::vector<std::string> files{"libno_such_library.so.7", "", "/no/such/other.so"};
  const SharedLibrary library = load_library(files);
  EXPECT_EQ(library.handle, nullptr);
  EXPECT_NE(library.reason.find("libno_such_library.so.7"), std::string::npos) << library.reason;
}

// A test program lies in no package: then there are the loader's search and what the build found.
TEST(SharedLibrary, OfNvidiaIsSearchedForByTheLoader) {
  const std::vector<std::string> files = nvidia_files("libcudnn.so.9", "cudnn", "/opt/lib/libcudnn.so.9");
  EXPECT_EQ(files, (std::vector<std::string>{"libcudnn.so.9", "/opt/lib/libcudnn.so.9"}));
}

}  // namespace
}  // namespace so
