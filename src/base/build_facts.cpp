#include "base/build_facts.h"

#include <fmt/format.h>

namespace so {

std::string why_built_without_cuda() { return SO_WITHOUT_CUDA; }

std::string build_text() {
  const std::string without = why_built_without_cuda();
  const std::string cuda = without.empty() ? "with " SO_WITH_CUDA : fmt::format("without CUDA ({})", without);
  return cuda + SO_WITH_OTHERS;
}

}  // namespace so
