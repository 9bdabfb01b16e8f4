#include "base/finite.h"

#include <cstdint>
#include <cstring>

#include "base/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "base/finite.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace so::finite {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// A vector of elements, which need not be aligned.
template <class D>
HWY_INLINE hn::Vec<D> load_bytes(D d, const std::uint8_t* at) {
#if HWY_TARGET == HWY_SCALAR  // whose unaligned load is an ordinary one
  hn::TFromD<D> element;
  std::memcpy(&element, at, sizeof element);
  return hn::Set(d, element);
#else
  return hn::LoadU(d, reinterpret_cast<const hn::TFromD<D>*>(at));
#endif
}

// Returns the index of the first block with an element that is not finite; `blocks` if there is none.
// `exponent`: the exponent's bits of an element, of which `lowest` is the lowest. An exponent of ones alone carries
// into the sign's place when its lowest bit is added, and the mask has cleared that place.
template <class U>
std::size_t first_bad_block(const std::uint8_t* data, std::size_t blocks, std::size_t block_bytes, U exponent,
                            U lowest) {
  const hn::ScalableTag<U> d;
  const auto mask = hn::Set(d, exponent), low = hn::Set(d, lowest);
  const auto carry = [&](const std::uint8_t* at) HWY_ATTR { return hn::Add(hn::And(load_bytes(d, at), mask), low); };
  const std::size_t step = hn::Lanes(d) * sizeof(U);
  const auto sign = hn::Set(d, static_cast<U>(U{1} << (8 * sizeof(U) - 1)));
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::uint8_t* const begin = data + block * block_bytes;
    auto even = hn::Zero(d), odd = even;
    for (std::size_t i = 0; i < block_bytes; i += 2 * step) {
      even = hn::Or(even, carry(begin + i));
      odd = hn::Or(odd, carry(begin + i + step));
    }
    if (!hn::AllTrue(d, hn::Eq(hn::And(hn::Or(even, odd), sign), hn::Zero(d)))) return block;
  }
  return blocks;
}

std::size_t first_bad_block_16(const std::uint8_t* data, std::size_t blocks, std::size_t block_bytes,
                               std::uint32_t exponent, std::uint32_t lowest) {
  return first_bad_block(data, blocks, block_bytes, static_cast<std::uint16_t>(exponent),
                         static_cast<std::uint16_t>(lowest));
}
std::size_t first_bad_block_32(const std::uint8_t* data, std::size_t blocks, std::size_t block_bytes,
                               std::uint32_t exponent, std::uint32_t lowest) {
  return first_bad_block(data, blocks, block_bytes, exponent, lowest);
}

}  // namespace HWY_NAMESPACE
}  // namespace so::finite
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so {
namespace finite {
namespace {

HWY_EXPORT(first_bad_block_16);
HWY_EXPORT(first_bad_block_32);

// The bits of an element's exponent, and the lowest of them.
struct ExponentBits {
  std::uint32_t all, lowest;
};

constexpr ExponentBits exponent_bits(DType dtype) {
  if (dtype == DType::bf16) return {0x7f80u, 0x0080u};
  if (dtype == DType::f16) return {0x7c00u, 0x0400u};
  return {0x7f80'0000u, 0x0080'0000u};
}

}  // namespace
}  // namespace finite

std::size_t find_non_finite(DType dtype, const void* data, std::size_t count) {
  using namespace finite;
  SO_CHECK(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16, "elements of {}", name_of(dtype));
  constexpr std::size_t block = 4096;  // bytes: a whole number of pairs of vectors, whatever their length
  const ExponentBits exponent = exponent_bits(dtype);
  const std::size_t size = size_of(dtype);
  const auto* const begin = static_cast<const std::uint8_t*>(data);
  const std::size_t blocks = count * size / block;
  const std::size_t bad =
      size == 2 ? HWY_DYNAMIC_DISPATCH(first_bad_block_16)(begin, blocks, block, exponent.all, exponent.lowest)
                : HWY_DYNAMIC_DISPATCH(first_bad_block_32)(begin, blocks, block, exponent.all, exponent.lowest);
  // The block that has one, or what is left: element by element.
  for (std::size_t i = bad * block / size; i < count; ++i) {
    std::uint32_t element = 0;
    std::memcpy(&element, begin + i * size, size);  // little-endian: the low bytes
    if ((element & exponent.all) == exponent.all) return i;
  }
  return count;
}

}  // namespace so
#endif
