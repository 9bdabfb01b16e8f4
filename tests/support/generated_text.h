// Documents that repeat what a table of the program says: between the marks
//   <!-- generated: NAME -->
//   <!-- end -->
// stands generated text. SO_UPDATE_DOCS=1 in a test's environment renews it instead of comparing:
//   SO_UPDATE_DOCS=1 build/bin/test_cli --gtest_filter='Docs.*'
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "support/paths.h"

namespace so {

inline void expect_generated_text(const std::string& document, const std::string& name, const std::string& expected) {
  const std::string file = test::source_tree() + "/docs/" + document;
  std::ifstream in(file);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  const std::string begin = "<!-- generated: " + name + " -->\n";
  const std::size_t mark = text.find(begin);
  ASSERT_NE(mark, std::string::npos) << file << " has no " << begin;
  const std::size_t from = mark + begin.size(), to = text.find("<!-- end -->", from);
  ASSERT_NE(to, std::string::npos) << file << ": no end after " << begin;
  if (std::getenv("SO_UPDATE_DOCS") != nullptr) {
    std::ofstream(file) << text.replace(from, to - from, expected);
  } else {
    EXPECT_EQ(text.substr(from, to - from), expected) << "run this test with SO_UPDATE_DOCS=1 to renew " << file;
  }
}

}  // namespace so
