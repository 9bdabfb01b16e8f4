#include "optim/clip.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace so {

float clip_coefficient(double norm, double max_norm) {
  SO_CHECK(std::isfinite(norm) && norm >= 0.0, "clipping to a norm of {}", norm);
  SO_CHECK(!std::isnan(max_norm), "max_norm is NaN");
  if (max_norm <= 0.0) return 1.0f;
  return static_cast<float>(std::min(1.0, max_norm / (norm + 1e-6)));
}

}  // namespace so
