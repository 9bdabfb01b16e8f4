// The Python packages that some tests need, where scripts/install_dependencies.sh put them.
#pragma once

#include <cstdlib>
#include <string>

#include "support/paths.h"

namespace so::test {

inline std::string path_with_test_python() {
  const char* path = std::getenv("PATH");
  return source_tree() + "/.deps/python/bin:" + (path == nullptr ? "" : path);
}

// Puts the tests' Python first in this process's PATH, and that of what it starts, and says whether pyarrow is there.
inline bool find_pyarrow() {
  ::setenv("PATH", path_with_test_python().c_str(), 1);
  return std::system("python3 -c 'import pyarrow' 2>/dev/null") == 0 ||
         std::system("/usr/bin/python3 -c 'import pyarrow' 2>/dev/null") == 0;
}

inline constexpr const char* kNoPyarrow = "pyarrow is not installed (scripts/install_dependencies.sh tests)";

}  // namespace so::test
