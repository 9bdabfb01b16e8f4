// main() of the test programs: GoogleTest's, with the labels of label.h in filters.
#include <fnmatch.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <sstream>
#include <stdexcept>

#include "support/label.h"

namespace so::test {
namespace {

const std::map<std::string, Label> labels{{"sweep", Label::sweep},
                                          {"slow", Label::slow},
                                          {"no_asan", Label::no_asan},
                                          {"no_tsan", Label::no_tsan},
                                          {"tsan", Label::tsan}};

std::multimap<Label, std::string>& marked() {
  static std::multimap<Label, std::string> all;
  return all;
}

bool is_a_test(const char* pattern) {
  const testing::UnitTest& program = *testing::UnitTest::GetInstance();
  for (int s = 0; s < program.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *program.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t)
      if (fnmatch(pattern, (suite.name() + std::string(".") + suite.GetTestInfo(t)->name()).c_str(), 0) == 0)
        return true;
  }
  return false;
}

void check_marked() {
  for (const auto& [label, tests] : marked()) {
    bool found = false;
    std::istringstream patterns(tests);
    for (std::string pattern; !found && std::getline(patterns, pattern, ':');) found = is_a_test(pattern.c_str());
    if (!found) throw std::runtime_error("a label marks \"" + tests + "\", and there is no such test");
  }
}

// A label that marks nothing in this program stays, as the name of no test.
std::string expand(std::string filter) {
  for (std::size_t at = 0; (at = filter.find('@', at)) != std::string::npos; ++at) {
    const std::string name = filter.substr(at + 1, filter.find_first_of(":-", at) - at - 1);
    if (!labels.contains(name)) throw std::runtime_error("there is no label @" + name);
    std::string tests;
    const auto [begin, end] = marked().equal_range(labels.at(name));
    for (auto each = begin; each != end; ++each) tests += (tests.empty() ? "" : ":") + each->second;
    if (!tests.empty()) filter.replace(at, 1 + name.size(), tests);
  }
  return filter;
}

}  // namespace

Labelled::Labelled(Label label, const std::string& tests) { marked().emplace(label, tests); }

std::string each_of(const std::string& prefix, std::initializer_list<const char*> names) {
  std::string tests;
  for (const char* name : names) tests += (tests.empty() ? "" : ":") + prefix + name;
  return tests;
}

std::string covered_families(const std::string& prefix) {
  return each_of(prefix, {"smollm3_v4", "glm4", "glm4_v4", "granite_v4", "llama_untied", "llama_v4", "mistral",
                          "mixtral_v4", "olmo2_v4", "phi3_short", "phi3_v4", "qwen2", "qwen3_untied_v4", "seed_oss"});
}

std::string rearranged_families(const std::string& prefix) {
  return each_of(prefix, {"gemma4", "llama_bias", "ministral3", "qwen3_5", "qwen3_5_bias", "qwen3_5_moe", "qwen3_moe"});
}

}  // namespace so::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  try {
    so::test::check_marked();
    testing::GTEST_FLAG(filter) = so::test::expand(testing::GTEST_FLAG(filter));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return RUN_ALL_TESTS();
}
