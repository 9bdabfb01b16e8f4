// Weights in FP8: every code, scales by tensor and by block, and streamed from files.
#include "io/fp8.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/thread_pool.h"
#include "io/shard_reader.h"
#include "support/io.h"
#include "support/raw_tensors.h"

namespace so {
namespace {

using io_test::expect_error;
using io_test::TemporaryDirectory;

// OCP 8-bit floating point, E4M3: 1 bit sign, 4 bits exponent with bias 7, 3 bits fraction; all ones is not a number.
float e4m3(unsigned code) {
  const int exponent = static_cast<int>(code >> 3 & 15), fraction = static_cast<int>(code & 7);
  if ((code & 127) == 127) return std::numeric_limits<float>::quiet_NaN();
  const double value = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return static_cast<float>((code & 128) != 0 ? -value : value);
}

std::uint16_t nearest_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t low = bits & 0xffffu, high = bits >> 16;
  return static_cast<std::uint16_t>(low > 0x8000u || (low == 0x8000u && (high & 1u) != 0) ? high + 1 : high);
}

TEST(Fp8, EveryCodeHasItsValue) {
  std::vector<std::uint8_t> codes(256);
  for (unsigned i = 0; i < 256; ++i) codes[i] = static_cast<std::uint8_t>(i);
  EXPECT_EQ(e4m3(0x7e), 448);
  EXPECT_EQ(e4m3(0x08), 0x1p-6f);
  EXPECT_EQ(e4m3(0x81), -0x1p-9f);
  for (const float scale : {1.0f, 0.00123f, -3.0f}) {
    const Fp8Scales scales{.columns = 256, .block_rows = 1, .block_columns = 256, .values = {scale}};
    std::vector<float> wide(256);
    std::vector<bf16> narrow(256), alone(256);
    dequantise_fp8(scales, 0, codes, wide.data(), narrow.data());
    dequantise_fp8(scales, 0, codes, nullptr, alone.data());
    for (unsigned i = 0; i < 256; ++i) {
      if ((i & 127) == 127) {
        EXPECT_TRUE(std::isnan(wide[i]) && std::isnan(static_cast<float>(narrow[i]))) << i;
        continue;
      }
      const float expected = e4m3(i) * scale;
      EXPECT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::bit_cast<std::uint32_t>(expected)) << i;
      EXPECT_EQ(narrow[i].bits, nearest_bf16(expected)) << i;
      EXPECT_EQ(alone[i].bits, narrow[i].bits) << i;
    }
  }
}

// A matrix [rows, columns] of random finite codes. Its last blocks are cut short.
struct Fp8Matrix {
  Fp8Matrix(std::int64_t rows, std::int64_t columns, std::int64_t block_rows, std::int64_t block_columns, unsigned seed)
      : scales{.columns = columns, .block_rows = block_rows, .block_columns = block_columns, .values = {}} {
    const std::int64_t across = (columns + block_columns - 1) / block_columns;
    scales.values.resize(static_cast<std::size_t>((rows + block_rows - 1) / block_rows * across));
    for (float& scale : scales.values)
      scale = 0.001f + static_cast<float>((seed = seed * 1664525u + 1013904223u) >> 8) * 0x1p-30f;
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t column = 0; column < columns; ++column) {
        seed = seed * 1664525u + 1013904223u;
        const std::uint32_t code = (seed >> 24) % 127 | (seed >> 16 & 128);
        codes.push_back(static_cast<std::uint8_t>(code));
        expected.push_back(e4m3(code) *
                           scales.values[static_cast<std::size_t>(row / block_rows * across + column / block_columns)]);
      }
  }

  Fp8Scales scales;
  std::vector<std::uint8_t> codes;
  std::vector<float> expected;
};

TEST(Fp8, EachBlockHasItsScale) {
  for (const auto& [block_rows, block_columns] : {std::pair{128, 128}, {16, 8}, {1, 1}, {300, 2100}, {7, 1500}}) {
    const Fp8Matrix m(300, 2100, block_rows, block_columns, 3);
    for (const auto& [begin, end] :
         {std::pair<std::size_t, std::size_t>{0, 630000}, {1, 2}, {2099, 2102}, {128 * 2100, 629999}}) {
      std::vector<float> wide(end - begin);
      dequantise_fp8(m.scales, static_cast<std::int64_t>(begin), std::span(m.codes).subspan(begin, end - begin),
                     wide.data(), nullptr);
      EXPECT_TRUE(std::equal(wide.begin(), wide.end(), m.expected.begin() + static_cast<std::ptrdiff_t>(begin)))
          << block_rows << " x " << block_columns << ", " << begin << " to " << end;
    }
  }
  const Fp8Matrix m(4, 4, 4, 4, 1);
  std::vector<float> wide(1);
  EXPECT_THROW(dequantise_fp8(m.scales, 16, std::span(m.codes).first(1), wide.data(), nullptr), Bug);
}

class Fp8Stream : public testing::Test {
 protected:
  void write() const {
    const auto stored = [](const Fp8Matrix& m) {
      return std::string(reinterpret_cast<const char*>(m.codes.data()), m.codes.size());
    };
    test::write_safetensors(path(), {{"a", "F8_E4M3", {300, 170}, stored(by_block_)},
                                     {"plain", "BF16", {3}, std::string("\x80\x3f\x00\x40\x40\x40", 6)},
                                     {"b", "F8_E4M3", {5, 1001}, stored(whole_)}});
  }
  std::vector<ShardReader::Request> requests(const SafetensorsReader& file, WeightForms forms) const {
    std::vector<ShardReader::Request> all;
    std::int64_t at = 0;
    for (const auto& [name, scales, size] :
         {std::tuple{"a", &by_block_.scales, 51000}, {"plain", nullptr, 3}, {"b", &whole_.scales, 5005}}) {
      all.push_back({&file, name, at, forms});
      if (scales != nullptr) all.back().codes = std::make_shared<const Fp8Codes>(*scales);
      at += size;
    }
    return all;
  }
  std::vector<float> expected() const {
    std::vector<float> all = by_block_.expected;
    all.insert(all.end(), {1, 2, 3});
    all.insert(all.end(), whole_.expected.begin(), whole_.expected.end());
    return all;
  }
  std::filesystem::path path() const { return temporary_.path() / "weights.safetensors"; }

  Fp8Matrix by_block_{300, 170, 128, 128, 5}, whole_{5, 1001, 5, 1001, 6};
  TemporaryDirectory temporary_;
  ThreadPool pool_{"test", {0, 1}, false};
  std::unique_ptr<Device> device_ = make_cpu_device(pool_);
  std::unique_ptr<Stream> stream_ = device_->create_stream("test");
};

TEST_F(Fp8Stream, GivesEveryElementInEveryForm) {
  write();
  const SafetensorsReader file(path());
  const std::vector<float> all = expected();
  for (const WeightForms forms : {WeightForms{true, false}, {false, true}, {true, true}, {false, false}})
    for (const int readers : {1, 8}) {
      SCOPED_TRACE(fmt::format("wide {} narrow {}, {} readers", forms.wide, forms.narrow, readers));
      LoadingRing ring(*device_, 4096);
      ShardReader reader(ring, requests(file, forms), readers, PageCache::drop);
      std::vector<float> wide(all.size());
      std::vector<bf16> narrow(all.size());
      while (const auto piece = reader.next()) {
        EXPECT_EQ(piece->wide.empty(), !forms.wide);
        EXPECT_EQ(piece->narrow.empty(), !forms.narrow);
        stream_->copy(wide.data() + piece->begin, piece->wide.data(), piece->wide.size_bytes());
        stream_->copy(narrow.data() + piece->begin, piece->narrow.data(), piece->narrow.size_bytes());
        reader.release(*stream_);
      }
      stream_->synchronize();
      EXPECT_EQ(reader.bytes_given(), reader.total_bytes());
      EXPECT_EQ(reader.total_bytes(), file.data_bytes());
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (forms.wide) {
          ASSERT_EQ(wide[i], all[i]) << i;
        }
        if (forms.narrow) {
          ASSERT_EQ(narrow[i].bits, nearest_bf16(all[i])) << i;
        }
      }
    }
}

// A rank reads its slices, and a form may have a place of its own.
TEST_F(Fp8Stream, ReadsPartsIntoTheCallersMemory) {
  write();
  const SafetensorsReader file(path());
  const std::vector<float> all = expected();
  std::vector<float> wide(all.size());
  std::vector<bf16> narrow(all.size());
  ShardReader::Request request = requests(file, {true, true}).front();
  request.first = 777, request.last = 50999;
  request.wide_to = wide.data() + 777, request.narrow_to = narrow.data() + 777;
  LoadingRing ring(*device_, 4096);
  ShardReader reader(ring, {request}, 3, PageCache::keep);
  std::int64_t next = 777;
  while (const auto piece = reader.next()) {
    EXPECT_EQ(piece->begin, next);
    next += piece->size();
    reader.release(*stream_);
  }
  EXPECT_EQ(next, 50999);
  for (std::size_t i = 0; i < 51000; ++i) {
    const bool read = i >= 777 && i < 50999;
    ASSERT_EQ(wide[i], read ? all[i] : 0) << i;
    ASSERT_EQ(narrow[i].bits, read ? nearest_bf16(all[i]) : 0) << i;
  }
}

TEST_F(Fp8Stream, ACodeThatIsNotANumberIsAnErrorThatNamesItsPlace) {
  for (const std::uint8_t code : {0x7f, 0xff})
    for (const WeightForms forms : {WeightForms{true, false}, {false, true}}) {
      whole_.codes[4321] = code;
      write();
      const SafetensorsReader file(path());
      LoadingRing ring(*device_, 4096);
      ShardReader reader(ring, requests(file, forms), 2, PageCache::keep);
      expect_error(
          [&] {
            while (reader.next()) reader.release(*stream_);
          },
          {"weights.safetensors", "'b'", "not finite", "element 4321"});
    }
}

// Such a tensor has codes to be read, and no element type that the engine computes with.
TEST_F(Fp8Stream, FilesSayWhichTensorsAreInFp8) {
  write();
  const SafetensorsReader file(path());
  ASSERT_NE(file.find_fp8("a"), nullptr);
  EXPECT_EQ(file.find_fp8("a")->shape, (std::vector<std::int64_t>{300, 170}));
  EXPECT_EQ(file.find_fp8("a")->dtype, DType::u8);
  EXPECT_EQ(file.find_fp8("plain"), nullptr);
  EXPECT_EQ(file.find_fp8("c"), nullptr);
  expect_error([&] { file.info("a"); }, {"'a'", "F8_E4M3", "not supported"});
  std::vector<std::uint8_t> codes(51000);
  file.read_into("a", std::as_writable_bytes(std::span(codes)));
  EXPECT_EQ(codes, by_block_.codes);
}

}  // namespace
}  // namespace so
