// A part of an array of optimizer state as it lies, in host or in device memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/tensor.h"
#include "offload/schedule/parameter_layout.h"
#include "optim/moment_codec.h"
#include "optim/moments.h"

namespace so {

enum class StateArray : std::uint8_t { master, first_moment, second_moment };

// Which moment an array holds that is no array of masters.
constexpr Moment moment_of(StateArray array) {
  return array == StateArray::first_moment ? Moment::first : Moment::second;
}

// Consecutive elements: numbers, or 8-bit codes with their blocks' scales (optim/moment_blocks.h), of which padding
// between parameters has none and is 0. A value: the memory is someone else's.
class StatePart {
 public:
  // Numbers [n], fp32 or bf16.
  explicit StatePart(Tensor numbers) : values_(numbers) {}
  // Codes [n] of a moment's elements `range`. `scales`: from that of the first element's block on.
  StatePart(StateArray moment, Tensor codes, float* scales, const ParameterLayout& layout, Range range);

  Tensor values() const { return values_; }
  std::int64_t size() const { return values_.size(); }
  bool has_codes() const { return values_.dtype() == DType::u8; }
  std::span<float> scales() const { return {scales_, static_cast<std::size_t>(scale_count_)}; }

  // Elements [begin, end) of it.
  StatePart slice(Range elements) const;
  // The same elements where they lie elsewhere.
  StatePart moved(void* values, float* scales) const;
  // The last element up to `element` before which it may be cut without cutting a block: `element` itself, of numbers.
  std::int64_t cut_before(std::int64_t element) const;

  // In host memory: as fp32, and made of fp32. Codes are rounded to nearest, and the part must have whole blocks then.
  void decode(std::span<float> to) const;
  void encode(std::span<const float> from) const;

 private:
  // Elements of one parameter.
  struct Run {
    Range elements;
    std::int64_t first_scale = 0, in_block = 0;  // of the first element, and the block's elements before it
  };

  Tensor values_;
  StateArray moment_ = StateArray::master;
  float* scales_ = nullptr;
  std::int64_t scale_count_ = 0;
  std::vector<Run> runs_;
};

}  // namespace so
