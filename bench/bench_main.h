// The benchmarks' programs share this.
#pragma once

#include <cstdio>

#include "base/error.h"

namespace so::bench {

// Runs the program. An error is one line, and exit code 2.
inline int run_program(int (*program)(int argc, char** argv), int argc, char** argv) {
  try {
    return program(argc, argv);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}

}  // namespace so::bench
