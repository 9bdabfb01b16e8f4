// A piece of a model's weights on its way from a file into place.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace so {

// The forms in which a receiver wants weights.
struct WeightForms {
  bool wide = false;    // fp32
  bool narrow = false;  // bf16, rounded to nearest even where the file has more
};

// Consecutive elements from `begin` of the flat range of parameters on, in the forms that were asked for; a form that
// was not is empty. In pinned memory that holds until work which is enqueued now has run, or in the place that its
// receiver had named for it.
struct WeightPiece {
  std::int64_t begin = 0;
  std::span<const float> wide;
  std::span<const bf16> narrow;

  std::int64_t size() const { return static_cast<std::int64_t>(wide.empty() ? narrow.size() : wide.size()); }
};

}  // namespace so
