// Where AdamW's moments lie: an address together with the type of what is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "base/error.h"

namespace so {

// An array of fp32 or bf16 numbers, owned by someone else; F and H are float and bf16, or both const.
template <class F, class H>
class MomentPointer {
  using Void = std::conditional_t<std::is_const_v<F>, const void, void>;

 public:
  MomentPointer() = default;
  MomentPointer(std::nullptr_t) {}
  MomentPointer(F* array) : data_(array) {}
  MomentPointer(H* array) : data_(array), half_(true) {}
  template <class F2, class H2>
  MomentPointer(const MomentPointer<F2, H2>& other) requires(std::is_const_v<F> && !std::is_const_v<F2>) {
    *this =
        other.dtype() == DType::bf16 ? MomentPointer(other.template as<H2>()) : MomentPointer(other.template as<F2>());
  }

  DType dtype() const { return half_ ? DType::bf16 : DType::f32; }
  std::size_t element_size() const { return half_ ? sizeof(H) : sizeof(F); }
  Void* data() const { return data_; }
  explicit operator bool() const { return data_ != nullptr; }
  // The address as float* or bf16* (const, for a view). Bug if the array is of the other type.
  template <class T>
  T* as() const {
    static_assert(std::is_same_v<T, F> || std::is_same_v<T, H>);
    SO_CHECK(half_ == (std::is_same_v<T, H>), "moments in {}", name_of(dtype()));
    return static_cast<T*>(data_);
  }
  // `elements` further on.
  MomentPointer operator+(std::ptrdiff_t elements) const {
    return half_ ? MomentPointer(static_cast<H*>(data_) + elements) : MomentPointer(static_cast<F*>(data_) + elements);
  }

 private:
  Void* data_ = nullptr;
  bool half_ = false;
};

using Moments = MomentPointer<float, bf16>;
using MomentsView = MomentPointer<const float, const bf16>;

}  // namespace so
