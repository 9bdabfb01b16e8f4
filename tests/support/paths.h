// Where this build and its sources lie. The paths are compiled into paths.cpp alone, so that all other test objects are
// the same in every checkout and a compiler cache serves them.
#pragma once

#include <string>

namespace so::test {

std::string binary();       // the program built beside these tests
std::string source_tree();  // the checkout's root
std::string fixtures();     // its tests/fixtures

}  // namespace so::test
