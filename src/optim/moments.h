// Where AdamW's moments lie: an address together with the format of what is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "base/error.h"
#include "optim/moment_blocks.h"

namespace so {

// Elements of a block that neither buckets nor ranks may cut.
inline std::int64_t block_elements(DType moments) { return moments == DType::u8 ? moment_block : 1; }

// Bytes of AdamW's state an element: its fp32 master weight and two moments, with their blocks' scales.
inline double state_bytes(DType moments) {
  const double scale = moments == DType::u8 ? sizeof(float) / static_cast<double>(moment_block) : 0;
  return sizeof(float) + 2 * (static_cast<double>(size_of(moments)) + scale);
}

// An array of fp32 or bf16 numbers, or of 8-bit codes (DType::u8) with an array of their blocks' scales, owned by
// someone else; F, H and B are float, bf16 and std::uint8_t, or all const.
template <class F, class H, class B>
class MomentPointer {
  using Void = std::conditional_t<std::is_const_v<F>, const void, void>;

 public:
  MomentPointer() = default;
  MomentPointer(std::nullptr_t) {}
  MomentPointer(F* array) : data_(array) {}
  MomentPointer(H* array) : data_(array), dtype_(DType::bf16) {}
  // The first code's block has the first of the scales, and `in_block` of its codes lie before.
  MomentPointer(B* codes, F* scales, std::int64_t in_block = 0)
      : data_(codes), scales_(scales), in_block_(in_block), dtype_(DType::u8) {}
  template <class F2, class H2, class B2>
  MomentPointer(const MomentPointer<F2, H2, B2>& other) requires(std::is_const_v<F> && !std::is_const_v<F2>)
      : data_(other.data()), scales_(other.scales()), in_block_(other.in_block()), dtype_(other.dtype()) {}
  // `scales`: of codes.
  static MomentPointer of(DType dtype, Void* data, F* scales, std::int64_t in_block = 0) {
    SO_CHECK(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::u8, "moments in {}", name_of(dtype));
    MomentPointer moments(static_cast<B*>(data), scales, dtype == DType::u8 ? in_block : 0);
    moments.dtype_ = dtype;
    return moments;
  }

  DType dtype() const { return dtype_; }
  std::size_t element_size() const { return dtype_ == DType::u8 ? 1 : dtype_ == DType::bf16 ? sizeof(H) : sizeof(F); }
  Void* data() const { return data_; }
  F* scales() const { return scales_; }
  std::int64_t in_block() const { return in_block_; }
  explicit operator bool() const { return data_ != nullptr; }
  // The address as float*, bf16* or std::uint8_t* (const, for a view). Bug if the array is of another type.
  template <class T>
  T* as() const {
    static_assert(std::is_same_v<T, F> || std::is_same_v<T, H> || std::is_same_v<T, B>);
    SO_CHECK(dtype_ == dtype_of<T>, "moments in {}", name_of(dtype_));
    return static_cast<T*>(data_);
  }
  // `elements`, not a negative number, further on.
  MomentPointer operator+(std::ptrdiff_t elements) const {
    MomentPointer further = *this;
    further.data_ = static_cast<B*>(data_) + elements * static_cast<std::ptrdiff_t>(element_size());
    if (dtype_ == DType::u8) {
      further.scales_ += (in_block_ + elements) / moment_block;
      further.in_block_ = (in_block_ + elements) % moment_block;
    }
    return further;
  }

 private:
  Void* data_ = nullptr;
  F* scales_ = nullptr;
  std::int64_t in_block_ = 0;
  DType dtype_ = DType::f32;
};

using Moments = MomentPointer<float, bf16, std::uint8_t>;
using MomentsView = MomentPointer<const float, const bf16, const std::uint8_t>;

}  // namespace so
