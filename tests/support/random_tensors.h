// Tensors with known contents on the device under test, for tests of operations. Everything reaches the device by its
// stream.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/tensor.h"
#include "base/thread_pool.h"
#include "device/device.h"
#include "support/device_rig.h"

namespace so::test {

// A tensor that owns its memory on the device of `stream`. Passes for the Tensor it holds.
class TestTensor {
 public:
  TestTensor() = default;
  // Contents unspecified; every byte is 0xff (NaN, or -1) so that an element an op forgets to write shows.
  TestTensor(Stream& stream, DType dtype, std::initializer_list<std::int64_t> shape) {
    const std::size_t bytes = Tensor(nullptr, dtype, shape).bytes();
    buffer_ = stream.device().allocate(MemoryKind::device, std::max<std::size_t>(bytes, 1), "test tensor");
    tensor_ = Tensor(buffer_.data(), dtype, shape);
    write(stream, std::vector<std::byte>(bytes, std::byte{0xff}));
  }
  // `values` rounded to the dtype (f32, bf16) or converted (i32, u8).
  TestTensor(Stream& stream, DType dtype, std::initializer_list<std::int64_t> shape, const std::vector<double>& values)
      : TestTensor(stream, dtype, shape) {
    SO_CHECK(tensor_.size() == static_cast<std::int64_t>(values.size()), "{} values for {}", values.size(),
             shape_string(tensor_.shape()));
    std::vector<std::byte> bytes(tensor_.bytes());
    for (std::size_t i = 0; i < values.size(); ++i) put(bytes.data(), i, values[i]);
    write(stream, bytes);
  }

  operator Tensor() const { return tensor_; }
  Tensor tensor() const { return tensor_; }

  // Waits for the stream.
  std::vector<std::byte> bytes(Stream& stream) const {
    SO_CHECK(tensor_, "an absent tensor has no bytes");
    std::vector<std::byte> result(tensor_.bytes());
    stream.copy(result.data(), tensor_.data(), result.size());
    stream.synchronize();
    return result;
  }
  // The elements, exactly. Waits for the stream.
  std::vector<double> values(Stream& stream) const {
    const std::vector<std::byte> raw = bytes(stream);
    std::vector<double> result(static_cast<std::size_t>(tensor_.size()));
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = get(raw.data(), i);
    return result;
  }

 private:
  void write(Stream& stream, const std::vector<std::byte>& bytes) {
    stream.copy(tensor_.data(), bytes.data(), bytes.size());
    stream.synchronize();
  }
  template <class T>
  static void put_as(std::byte* to, std::size_t i, T value) {
    std::memcpy(to + i * sizeof(T), &value, sizeof(T));
  }
  template <class T>
  static T get_as(const std::byte* from, std::size_t i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    return value;
  }
  void put(std::byte* to, std::size_t i, double value) const {
    switch (tensor_.dtype()) {
      case DType::f32:
        return put_as(to, i, static_cast<float>(value));
      case DType::bf16:
        return put_as(to, i, bf16(static_cast<float>(value)));
      case DType::i32:
        return put_as(to, i, static_cast<std::int32_t>(value));
      case DType::u8:
        return put_as(to, i, static_cast<std::uint8_t>(value));
      default:
        SO_BUG("no test values of {}", name_of(tensor_.dtype()));
    }
  }
  double get(const std::byte* from, std::size_t i) const {
    switch (tensor_.dtype()) {
      case DType::f32:
        return get_as<float>(from, i);
      case DType::bf16:
        return get_as<bf16>(from, i);
      case DType::i32:
        return get_as<std::int32_t>(from, i);
      case DType::u8:
        return get_as<std::uint8_t>(from, i);
      default:
        SO_BUG("no test values of {}", name_of(tensor_.dtype()));
    }
  }

  Buffer buffer_;
  Tensor tensor_;
};

// Uniform in [-magnitude, magnitude); the same for a seed on every machine.
inline std::vector<double> random_values(std::size_t count, unsigned seed, double magnitude = 1.0) {
  std::mt19937_64 generator(seed);
  std::vector<double> values(count);
  for (double& value : values) value = magnitude * (std::ldexp(static_cast<double>(generator() >> 11), -52) - 1.0);
  return values;
}

// Integers in [0, bound).
inline std::vector<double> random_indices(std::size_t count, unsigned seed, std::int64_t bound) {
  std::mt19937_64 generator(seed);
  std::vector<double> values(count);
  for (double& value : values) value = static_cast<double>(generator() % static_cast<std::uint64_t>(bound));
  return values;
}

inline TestTensor random_tensor(Stream& stream, DType dtype, std::initializer_list<std::int64_t> shape, unsigned seed,
                                double magnitude = 1.0) {
  const auto count = static_cast<std::size_t>(Tensor(nullptr, dtype, shape).size());
  return TestTensor(stream, dtype, shape, random_values(count, seed, magnitude));
}

// Half a unit in the last place, relative: the error of one rounding to the dtype.
inline double unit_roundoff(DType dtype) { return dtype == DType::bf16 ? 0x1p-8 : 0x1p-24; }

// |actual - expected| <= allowed, element by element; reports how many are outside and the worst of them.
inline void expect_within(const std::vector<double>& actual, const std::vector<double>& expected,
                          const std::vector<double>& allowed, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  ASSERT_EQ(actual.size(), allowed.size()) << what;
  double worst = 0;
  std::size_t at = 0, outside = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double error = std::abs(actual[i] - expected[i]);
    if (error <= allowed[i]) continue;
    ++outside;
    const double excess = std::isnan(error) ? std::numeric_limits<double>::infinity() : error / allowed[i];
    if (outside == 1 || excess > worst) worst = excess, at = i;
  }
  if (outside > 0)
    ADD_FAILURE() << what << ": " << outside << " of " << actual.size() << " are off; the worst is element " << at
                  << ", " << actual[at] << " for " << expected[at] << " (allowed " << allowed[at] << ")";
}

// |actual - expected| <= relative * |expected| + absolute.
inline void expect_close(const std::vector<double>& actual, const std::vector<double>& expected, double relative,
                         double absolute, const std::string& what) {
  std::vector<double> allowed(expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) allowed[i] = relative * std::abs(expected[i]) + absolute;
  expect_within(actual, expected, allowed, what);
}

}  // namespace so::test
