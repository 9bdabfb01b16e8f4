// Non-owning views of memory with a dtype and a shape.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/error.h"

namespace so {

// A contiguous row-major tensor somewhere in memory. Owns nothing; copying it copies the view. Up to four dimensions.
// Typed access checks the dtype. A default-constructed Tensor is empty (no data); ops take that for "absent".
class Tensor {
 public:
  Tensor() = default;
  Tensor(void* data, DType dtype, std::initializer_list<std::int64_t> shape)
      : Tensor(data, dtype, std::span(shape.begin(), shape.size())) {}
  Tensor(void* data, DType dtype, std::span<const std::int64_t> shape)
      : data_(static_cast<std::byte*>(data)), dtype_(dtype) {
    SO_CHECK(shape.size() <= dims_.size(), "{} dimensions", shape.size());
    rank_ = static_cast<int>(shape.size());
    for (int i = 0; i < rank_; ++i) dims_[i] = shape[i];
  }

  explicit operator bool() const { return data_ != nullptr; }
  DType dtype() const { return dtype_; }
  int rank() const { return rank_; }
  std::int64_t dim(int i) const {
    SO_CHECK(i >= 0 && i < rank_, "dimension {} of {}", i, rank_);
    return dims_[i];
  }
  std::span<const std::int64_t> shape() const { return {dims_.data(), static_cast<std::size_t>(rank_)}; }
  std::int64_t size() const {  // elements
    std::int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= dims_[i];
    return n;
  }
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * size_of(dtype_); }
  void* data() const { return data_; }

  template <class T>
  T* as() const {
    SO_CHECK(dtype_ == dtype_of<T>, "asked for {}, holds {}", name_of(dtype_of<T>), name_of(dtype_));
    return reinterpret_cast<T*>(data_);
  }
  template <class T>
  std::span<T> span() const {
    return {as<T>(), static_cast<std::size_t>(size())};
  }

  // Same memory, another shape with the same number of elements.
  Tensor reshape(std::initializer_list<std::int64_t> shape) const {
    Tensor t(data_, dtype_, shape);
    SO_CHECK(t.size() == size(), "reshape of {} elements to {}", size(), t.size());
    return t;
  }
  // Rows [begin, begin+count) of the first dimension.
  Tensor rows(std::int64_t begin, std::int64_t count) const {
    SO_CHECK(rank_ >= 1 && begin >= 0 && count >= 0 && begin + count <= dims_[0], "rows [{}, +{}) of {}", begin, count,
             dims_[0]);
    Tensor t = *this;
    t.dims_[0] = count;
    const std::int64_t row = dims_[0] == 0 ? 0 : size() / dims_[0];
    t.data_ += static_cast<std::size_t>(begin * row) * size_of(dtype_);
    return t;
  }

 private:
  std::byte* data_ = nullptr;
  DType dtype_ = DType::f32;
  int rank_ = 0;
  std::array<std::int64_t, 4> dims_{};
};

std::string shape_string(std::span<const std::int64_t> shape);  // "[2, 3]"

}  // namespace so
