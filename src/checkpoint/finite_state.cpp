#include "checkpoint/finite_state.h"

#include <fmt/format.h>

#include "base/divergence_error.h"
#include "base/file.h"
#include "base/finite.h"

namespace so {

void require_finite_for_save(DType dtype, const void* values, std::size_t count, std::string_view tensor,
                             std::string_view what, const std::filesystem::path& directory) {
  const std::size_t at = find_non_finite(dtype, values, count);
  if (at == count) return;
  throw Divergence(fmt::format(
      "{} was not written: a {} of '{}' is not finite, so the run has diverged; what was saved before it is "
      "untouched; lower --lr, or look at the data",
      printable_path(directory), what, tensor));
}

}  // namespace so
