// Labels say which builds run a test. They stand in the test's own file, above the tests that they mark:
//
//   SO_LABEL(sweep, "Plan.Expects*");
//
// In --gtest_filter "@sweep" stands for the tests with that label, for ctest (tests/CMakeLists.txt) and by hand:
// test_plan --gtest_filter=-@sweep. A misspelt label does not compile, and a test program in which a label marks no
// test does not start, so that its build fails.
#pragma once

#include <initializer_list>
#include <string>

namespace so::test {

enum class Label {
  sweep,    // many cases of what other tests take too: in the release build alone, and not among the quick tests
  slow,     // holds threads up at random, and takes seconds: started first, and not among the quick tests
  no_asan,  // not under the address sanitizer
  no_tsan,  // not under the thread sanitizer: what one thread does, or more of the same between threads
  tsan,     // of the rooms of whole runs, what the thread sanitizer sees too
};

struct Labelled {
  // tests: as in --gtest_filter, without a negative part. They mark at least one test between them.
  Labelled(Label, const std::string& tests);
};

// Their tests by a parameter's name: PREFIX with each name behind it.
std::string each_of(const std::string& prefix, std::initializer_list<const char*> names);
// The families of models of which others have the code.
std::string covered_families(const std::string& prefix);
// More of them, whose blocks and kernels are those of others but for their arrangement. Sanitizers, which look at what
// code does to memory and not at numbers, see them load and take a step, and the rest with the others.
std::string rearranged_families(const std::string& prefix);

}  // namespace so::test

#define SO_LABEL_JOINED(label, tests, count) \
  static const so::test::Labelled so_labelled_##count { so::test::Label::label, tests }
#define SO_LABEL_COUNTED(label, tests, count) SO_LABEL_JOINED(label, tests, count)
#define SO_LABEL(label, tests) SO_LABEL_COUNTED(label, tests, __COUNTER__)
