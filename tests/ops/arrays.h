// Arrays for the tests of ops: owned memory of a dtype, filled reproducibly, readable as double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "base/tensor.h"
#include "base/thread_pool.h"
#include "device/device.h"

namespace so::testing {

// Half the distance between neighbours, relative: the error of one rounding.
inline double unit_roundoff(DType type) { return type == DType::bf16 ? 0x1p-8 : 0x1p-24; }

class Array {
 public:
  Array(DType type, std::vector<std::int64_t> shape)
      : shape_(std::move(shape)),
        size_(std::accumulate(shape_.begin(), shape_.end(), std::int64_t{1}, std::multiplies<>())),
        bytes_(static_cast<std::size_t>(size_) * size_of(type)),
        type_(type) {}

  static Array random(DType type, std::vector<std::int64_t> shape, unsigned seed, double magnitude = 1) {
    Array a(type, std::move(shape));
    std::mt19937 generator(seed);
    for (std::int64_t i = 0; i < a.size_; ++i)
      a.set(i, magnitude * (2.0 * static_cast<double>(generator()) / 4294967296.0 - 1.0));
    return a;
  }
  static Array filled(DType type, std::vector<std::int64_t> shape, double value) {
    Array a(type, std::move(shape));
    for (std::int64_t i = 0; i < a.size_; ++i) a.set(i, value);
    return a;
  }
  static Array of(const std::vector<std::int32_t>& values) {
    Array a(DType::i32, {static_cast<std::int64_t>(values.size())});
    if (!values.empty()) std::memcpy(a.bytes_.data(), values.data(), a.bytes_.size());
    return a;
  }

  Tensor tensor() { return {bytes_.data(), type_, std::span<const std::int64_t>(shape_)}; }
  DType type() const { return type_; }
  std::int64_t size() const { return size_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  double operator[](std::int64_t i) const {
    if (type_ == DType::bf16) return read<bf16>(i);
    if (type_ == DType::i32) return read<std::int32_t>(i);
    if (type_ == DType::u8) return read<std::uint8_t>(i);
    return read<float>(i);
  }
  void set(std::int64_t i, double value) {
    if (type_ == DType::bf16)
      write(i, bf16(static_cast<float>(value)));
    else
      write(i, static_cast<float>(value));
  }

 private:
  template <class T>
  T read(std::int64_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
    return value;
  }
  template <class T>
  void write(std::int64_t i, T value) {
    std::memcpy(bytes_.data() + static_cast<std::size_t>(i) * sizeof(T), &value, sizeof(T));
  }

  std::vector<std::int64_t> shape_;
  std::int64_t size_;
  std::vector<std::byte> bytes_;
  DType type_;
};

// A copy of an array in a device's memory. Must not outlive the array.
class Mirror {
 public:
  Mirror(Stream& stream, Array& array)
      : array_(array),
        stream_(stream),
        buffer_(stream.device().allocate(MemoryKind::device, std::max<std::size_t>(array.bytes().size(), 1), "array")) {
    if (array.bytes().empty()) return;
    stream_.copy(buffer_.data(), array.bytes().data(), array.bytes().size());
    stream_.synchronize();
  }
  Tensor tensor() const {
    const Tensor t = array_.tensor();
    return {buffer_.data(), t.dtype(), t.shape()};
  }
  // The array becomes what the device has. Waits for the stream.
  void fetch() {
    if (array_.bytes().empty()) return stream_.synchronize();
    stream_.copy(array_.tensor().data(), buffer_.data(), array_.bytes().size());
    stream_.synchronize();
  }

 private:
  Array& array_;
  Stream& stream_;
  Buffer buffer_;
};

// A pool of `threads`, not pinned: more threads than cores are fine.
inline ThreadPool make_pool(int threads) {
  return ThreadPool("test", std::vector<int>(static_cast<std::size_t>(threads)), false);
}

// The result that an op should give, in double, and how far off rounding alone may take it.
struct Expected {
  std::vector<double> value, tolerance;
  explicit Expected(std::int64_t size) : value(static_cast<std::size_t>(size)), tolerance(value) {}
};

inline void expect_close(const Array& got, const Expected& expected, const char* what) {
  ASSERT_EQ(static_cast<std::size_t>(got.size()), expected.value.size()) << what;
  double largest = 0;
  for (std::int64_t i = 0; i < got.size(); ++i) {
    const double value = expected.value[static_cast<std::size_t>(i)];
    largest = std::max(largest, std::abs(value));
    ASSERT_LE(std::abs(got[i] - value), expected.tolerance[static_cast<std::size_t>(i)])
        << what << " element " << i << ": " << got[i] << ", should be " << value;
  }
  // A reference of zeros would let anything small pass.
  EXPECT_TRUE(largest > 0 || got.size() == 0) << what;
}

}  // namespace so::testing
