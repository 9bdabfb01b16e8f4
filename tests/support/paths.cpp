#include "support/paths.h"

namespace so::test {

std::string binary() { return SO_BINARY; }
std::string source_tree() { return SO_SOURCE_DIR; }
std::string fixtures() { return SO_SOURCE_DIR "/tests/fixtures"; }

}  // namespace so::test
