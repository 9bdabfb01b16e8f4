// The libraries that a run uses or may use, and their versions, as they say them themselves.
#pragma once

#include <string>
#include <vector>

namespace so {

struct Library {
  std::string check;         // "cudnn"
  std::string name;          // "cuDNN"
  std::string version = {};  // empty: it is not there
  std::string reason = {};   // then: the loader's words
};

// cuBLASLt, cuDNN and NCCL, loaded as the program would. They stay loaded.
std::vector<Library> ask_libraries();

}  // namespace so
