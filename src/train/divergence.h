// A run that went wrong: numbers that are not finite are found, named where they began, and kept out of what is saved.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "device/arena.h"
#include "model/decoder.h"
#include "offload/engine.h"

namespace so {

// A run's state is not fit to be saved. Not an Error, since neither an option nor a file is wrong: exit_failure.
class Divergence : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Before values of a tensor are written to a file of `directory`. Throws Divergence naming the tensor, what of it is
// written ("weight", "first moment", ...), and that nothing was saved, if one is Inf or NaN.
void require_finite_for_save(DType dtype, const void* values, std::size_t count, std::string_view tensor,
                             std::string_view what, const std::filesystem::path& directory);

// Before values that were read are used. Throws Error naming file and tensor if one is Inf or NaN.
void require_finite_as_read(std::span<const float> values, std::string_view tensor, const std::filesystem::path& file);

// Where the numbers of a step whose loss is not finite began to be so, for a message: the first activation in the order
// of the forward pass, which is run again, and a weight of that layer if one is not finite itself. `losses` is
// overwritten. Empty if all is finite this time, or if the arena has no room for the search. Waits.
std::string find_non_finite_activation(const Decoder& decoder, Ops& ops, Stream& stream, const DeviceBatch& batch,
                                       OffloadEngine& engine, Arena& arena, Tensor losses);

// "steps 12 to 21 (10 in a row) were skipped": of a streak that ends with `last`.
std::string describe_streak(std::int64_t last, std::int64_t in_a_row);

}  // namespace so
