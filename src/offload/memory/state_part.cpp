#include "offload/memory/state_part.h"

#include <algorithm>
#include <cstddef>

#include "base/bf16_arrays.h"
#include "base/error.h"

namespace so {
StatePart::StatePart(StateArray moment, Tensor codes, float* scales, const ParameterLayout& layout, Range range)
    : values_(codes), moment_(moment), scales_(scales) {
  SO_CHECK(moment != StateArray::master && codes.dtype() == DType::u8 && codes.size() == range.size(),
           "{} codes of {} elements", codes.size(), range.size());
  const std::int64_t first = layout.block_at(range.begin).index;
  for (int p = layout.first_ending_after(range.begin); p < layout.count() && layout.range(p).begin < range.end; ++p) {
    const Range part = common(layout.range(p), range);
    if (part.size() <= 0) continue;
    const ParameterLayout::BlockPlace at = layout.block_at(part.begin);
    runs_.push_back({{part.begin - range.begin, part.end - range.begin}, at.index - first, at.offset});
    scale_count_ = at.index - first + moment_blocks(at.offset + part.size());
  }
}

StatePart StatePart::slice(Range elements) const {
  SO_CHECK(0 <= elements.begin && elements.begin <= elements.end && elements.end <= size(), "elements [{}, {}) of {}",
           elements.begin, elements.end, size());
  StatePart part(Tensor(
      static_cast<std::byte*>(values_.data()) + static_cast<std::size_t>(elements.begin) * size_of(values_.dtype()),
      values_.dtype(), {elements.size()}));
  if (!has_codes()) return part;
  part.moment_ = moment_;
  std::int64_t skipped = -1;  // scales before the part's
  for (const Run& run : runs_) {
    const Range inside = common(run.elements, elements);
    if (inside.size() <= 0) continue;
    const std::int64_t in_block = run.in_block + inside.begin - run.elements.begin,
                       scale = run.first_scale + in_block / moment_block;
    if (skipped < 0) skipped = scale;
    part.runs_.push_back(
        {{inside.begin - elements.begin, inside.end - elements.begin}, scale - skipped, in_block % moment_block});
    part.scale_count_ = scale - skipped + moment_blocks(in_block % moment_block + inside.size());
  }
  part.scales_ = scales_ + std::max<std::int64_t>(skipped, 0);
  return part;
}

StatePart StatePart::moved(void* values, float* scales) const {
  StatePart there = *this;
  there.values_ = Tensor(values, values_.dtype(), {size()});
  there.scales_ = scales;
  return there;
}

std::int64_t StatePart::cut_before(std::int64_t element) const {
  for (const Run& run : runs_)
    if (run.elements.begin < element && element < run.elements.end)
      return std::max(run.elements.begin, element - (run.in_block + element - run.elements.begin) % moment_block);
  return element;
}

void StatePart::decode(std::span<float> to) const {
  SO_CHECK(static_cast<std::int64_t>(to.size()) == size(), "{} numbers of {}", to.size(), size());
  if (values_.dtype() == DType::f32) return (void)std::copy_n(values_.as<float>(), to.size(), to.data());
  if (values_.dtype() == DType::bf16) return widen_bf16(values_.as<bf16>(), to.data(), to.size());
  const auto* const codes = values_.as<std::uint8_t>();
  std::fill(to.begin(), to.end(), 0.0f);
  for (const Run& run : runs_)
    decode_moments(moment_of(moment_), {codes + run.elements.begin, static_cast<std::size_t>(run.elements.size())},
                   scales_ + run.first_scale, run.in_block, to.data() + run.elements.begin);
}

void StatePart::encode(std::span<const float> from) const {
  SO_CHECK(static_cast<std::int64_t>(from.size()) == size(), "{} numbers of {}", from.size(), size());
  if (values_.dtype() == DType::f32) return (void)std::copy_n(from.data(), from.size(), values_.as<float>());
  if (values_.dtype() == DType::bf16) return round_to_bf16(from.data(), values_.as<bf16>(), from.size());
  auto* const codes = values_.as<std::uint8_t>();
  for (const Run& run : runs_) {
    SO_CHECK(run.in_block == 0, "a part begins {} elements after a block does", run.in_block);
    encode_moments(
        moment_of(moment_),
        from.subspan(static_cast<std::size_t>(run.elements.begin), static_cast<std::size_t>(run.elements.size())),
        codes + run.elements.begin, scales_ + run.first_scale);
  }
}

}  // namespace so
