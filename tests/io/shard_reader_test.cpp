// Weights streamed from files: every stored type into every form, for tensors larger and smaller than a piece.
#include "io/shard_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <future>
#include <map>
#include <random>
#include <thread>

#include "base/thread_pool.h"
#include "support/io.h"

namespace so {
namespace {

using io_test::expect_error;
using io_test::TemporaryDirectory;

// IEEE 754 binary16: 1 bit sign, 5 bits exponent with bias 15, 10 bits fraction. Finite ones only.
float half_value(unsigned h) {
  const int exponent = static_cast<int>(h >> 10 & 31), fraction = static_cast<int>(h & 1023);
  const double value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return static_cast<float>(h >= 32768 ? -value : value);
}

// Nearest, ties to even, of finite values.
std::uint16_t bf16_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t low = bits & 0xffffu, high = bits >> 16;
  return static_cast<std::uint16_t>(low > 0x8000u || (low == 0x8000u && (high & 1u) != 0) ? high + 1 : high);
}

// A file of random tensors, and what they hold.
class TensorFile {
 public:
  TensorFile(const std::filesystem::path& path, DType dtype, const std::vector<std::int64_t>& sizes) {
    std::vector<TensorSpec> specs;
    for (const std::int64_t size : sizes) specs.push_back({"t" + std::to_string(specs.size()), dtype, {size}});
    SafetensorsWriter writer(path, specs, {});
    std::mt19937 random(static_cast<unsigned>(sizes.size()));
    for (const TensorSpec& spec : specs) {
      std::vector<float>& values = values_[spec.name];
      std::string bytes;
      for (std::int64_t i = 0; i < spec.shape[0]; ++i) {
        const auto u = static_cast<std::uint32_t>(random());
        // A sign, an exponent near zero, a random fraction; some halves are subnormal.
        std::uint32_t stored = 0x3e000000u ^ (u & 0x81ffffffu);
        float value = std::bit_cast<float>(stored);
        if (dtype == DType::bf16) {
          stored >>= 16;
          value = std::bit_cast<float>(stored << 16);
        } else if (dtype == DType::f16) {
          stored = u & 0x83ffu;
          stored |= (u >> 16) % 31 << 10;
          value = half_value(stored);
        }
        values.push_back(value);
        bytes.append(reinterpret_cast<const char*>(&stored), size_of(dtype));
      }
      writer.write(spec.name, 0, std::as_bytes(std::span(bytes)));
    }
    writer.finish();
    reader_ = std::make_unique<SafetensorsReader>(path);
  }

  const SafetensorsReader& reader() const { return *reader_; }
  // Requests all tensors in the order of the file, with `gap` elements between them.
  std::vector<ShardReader::Request> requests(WeightForms forms, std::int64_t gap = 0) const {
    std::vector<ShardReader::Request> all;
    std::int64_t at = 0;
    for (const std::string& name : reader_->names()) {
      all.push_back({reader_.get(), name, at, forms});
      at += static_cast<std::int64_t>(values_.at(name).size()) + gap;
    }
    return all;
  }
  std::vector<float> flat(std::int64_t gap = 0) const {
    std::vector<float> all;
    for (const std::string& name : reader_->names()) {
      all.insert(all.end(), values_.at(name).begin(), values_.at(name).end());
      all.insert(all.end(), static_cast<std::size_t>(gap), 0.0f);
    }
    return all;
  }

 private:
  std::map<std::string, std::vector<float>> values_;
  std::unique_ptr<SafetensorsReader> reader_;
};

class ShardReaderTest : public testing::Test {
 protected:
  std::filesystem::path path() const { return temporary_.path() / "weights.safetensors"; }

  TemporaryDirectory temporary_;
  ThreadPool pool_{"test", {0, 1}, false};
  std::unique_ptr<Device> device_ = make_cpu_device(pool_);
  std::unique_ptr<Stream> stream_ = device_->create_stream("test");
};

// A page holds 1024 fp32 elements, 2048 bf16, 640 of both: sizes around and far beyond those, and more pieces than
// slots.
const std::vector<std::int64_t> sizes = {1, 639, 640, 641, 1024, 3, 1025, 2048, 2049, 70001, 5, 4097, 1, 2, 30000};

TEST_F(ShardReaderTest, GivesEveryElementInEveryForm) {
  for (const DType stored : {DType::f32, DType::bf16, DType::f16}) {
    const std::int64_t gap = 7;
    const TensorFile file(path(), stored, sizes);
    const std::vector<float> expected = file.flat(gap);
    for (const WeightForms forms : {WeightForms{true, false}, {false, true}, {true, true}, {false, false}}) {
      for (const int readers : {1, 3, 100}) {
        SCOPED_TRACE(
            fmt::format("{} wide {} narrow {}, {} readers", name_of(stored), forms.wide, forms.narrow, readers));
        LoadingRing ring(*device_, 4096);
        ShardReader reader(ring, file.requests(forms, gap), readers, readers == 3 ? PageCache::keep : PageCache::drop);
        std::vector<float> wide(expected.size());
        std::vector<bf16> narrow(expected.size());
        std::int64_t before = -1;
        while (const auto piece = reader.next()) {
          EXPECT_EQ(piece->wide.empty(), !forms.wide);
          EXPECT_EQ(piece->narrow.empty(), !forms.narrow);
          if (forms.wide && forms.narrow) {
            EXPECT_EQ(piece->wide.size(), piece->narrow.size());
          }
          EXPECT_GT(piece->begin, before) << "in order";
          before = piece->begin;
          ASSERT_LE(static_cast<std::size_t>(piece->begin + piece->size()), expected.size());
          stream_->copy(wide.data() + piece->begin, piece->wide.data(), piece->wide.size_bytes());
          stream_->copy(narrow.data() + piece->begin, piece->narrow.data(), piece->narrow.size_bytes());
          reader.release(*stream_);
        }
        EXPECT_EQ(reader.bytes_given(), reader.total_bytes());
        EXPECT_EQ(reader.total_bytes(), file.reader().data_bytes());
        stream_->synchronize();
        for (std::size_t i = 0; i < expected.size(); ++i) {
          if (forms.wide) {
            ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::bit_cast<std::uint32_t>(expected[i])) << i;
          }
          if (forms.narrow) {
            ASSERT_EQ(narrow[i].bits, bf16_bits(expected[i])) << i;
          }
        }
      }
    }
  }
}

TEST_F(ShardReaderTest, ReadsPartsOfTensors) {
  for (const DType stored : {DType::f32, DType::bf16, DType::f16}) {
    const TensorFile file(path(), stored, sizes);
    const std::vector<float> expected = file.flat();
    std::vector<ShardReader::Request> parts;
    std::vector<bool> wanted(expected.size());
    std::uint64_t bytes = 0;
    for (ShardReader::Request request : file.requests({true, false})) {
      const auto all = static_cast<std::int64_t>(file.reader().info(request.tensor).bytes() / size_of(stored));
      for (const auto& [first, last] : {std::pair(all / 5, all / 3), std::pair(all / 2, all)}) {
        request.first = first;
        request.last = last;
        parts.push_back(request);
        for (std::int64_t i = first; i < last; ++i) wanted[static_cast<std::size_t>(request.at + i)] = true;
        bytes += static_cast<std::uint64_t>(last - first) * size_of(stored);
      }
    }
    LoadingRing ring(*device_, 4096);
    ShardReader reader(ring, parts, 3, PageCache::drop);
    std::vector<bool> given(expected.size());
    while (const auto piece = reader.next()) {
      for (std::int64_t i = 0; i < piece->size(); ++i) {
        const auto at = static_cast<std::size_t>(piece->begin + i);
        EXPECT_FALSE(given[at]) << at;
        given[at] = true;
        ASSERT_EQ(piece->wide[static_cast<std::size_t>(i)], expected[at]) << at;
      }
      reader.release(*stream_);
    }
    EXPECT_TRUE(given == wanted);
    EXPECT_EQ(reader.total_bytes(), bytes);
    EXPECT_EQ(reader.bytes_given(), bytes);
  }
}

// A form that has a place of its own is made there, and the pieces say so; the other one comes through the ring.
TEST_F(ShardReaderTest, MakesFormsWhereTheyAreToLie) {
  for (const DType stored : {DType::f32, DType::bf16, DType::f16}) {
    const TensorFile file(path(), stored, {70'001, 5, 2'200'000});
    constexpr std::int64_t skipped = 3;  // at the beginning of each tensor
    std::vector<float> expected = file.flat();
    for (const ShardReader::Request& request : file.requests({true, false}))
      std::fill_n(expected.begin() + request.at, skipped, 0.0f);
    const std::vector<float> zeros(expected.size());
    std::vector<std::uint16_t> rounded(expected.size()), zero_bits(expected.size());
    std::transform(expected.begin(), expected.end(), rounded.begin(), bf16_bits);
    for (const WeightForms forms : {WeightForms{true, false}, {false, true}, {true, true}})
      for (const WeightForms in_place : {WeightForms{true, false}, {false, true}, {true, true}}) {
        if ((in_place.wide && !forms.wide) || (in_place.narrow && !forms.narrow)) continue;
        SCOPED_TRACE(fmt::format("{} wide {} {} narrow {} {}", name_of(stored), forms.wide, in_place.wide, forms.narrow,
                                 in_place.narrow));
        std::vector<float> wide(expected.size());
        std::vector<bf16> narrow(expected.size());
        std::vector<ShardReader::Request> requests = file.requests(forms);
        for (ShardReader::Request& request : requests) {
          const std::int64_t size = file.reader().info(request.tensor).shape[0];
          request.first = skipped;
          request.last = size;
          if (in_place.wide) request.wide_to = wide.data() + request.at + skipped;
          if (in_place.narrow) request.narrow_to = narrow.data() + request.at + skipped;
        }
        LoadingRing ring(*device_, 4096);
        ShardReader reader(ring, requests, 3, PageCache::keep);
        while (const auto piece = reader.next()) {
          const auto begin = static_cast<std::size_t>(piece->begin);
          EXPECT_EQ(!piece->wide.empty(), forms.wide);
          EXPECT_EQ(!piece->narrow.empty(), forms.narrow);
          EXPECT_EQ(piece->wide.data() == wide.data() + begin, in_place.wide);
          EXPECT_EQ(piece->narrow.data() == narrow.data() + begin, in_place.narrow);
          if (!in_place.wide) std::copy(piece->wide.begin(), piece->wide.end(), wide.data() + begin);
          if (!in_place.narrow) std::copy(piece->narrow.begin(), piece->narrow.end(), narrow.data() + begin);
          reader.release(*stream_);
        }
        // All bytes at once: element by element this takes longer than the reading.
        const std::vector<float>& floats = forms.wide ? expected : zeros;
        if (std::memcmp(wide.data(), floats.data(), floats.size() * sizeof(float)) != 0)
          ADD_FAILURE() << "fp32 from " << std::mismatch(wide.begin(), wide.end(), floats.begin()).first - wide.begin();
        const std::vector<std::uint16_t>& bits = forms.narrow ? rounded : zero_bits;
        EXPECT_EQ(std::memcmp(narrow.data(), bits.data(), bits.size() * sizeof(bf16)), 0) << "bf16";
      }
  }
}

// The stream stands still while readers would have time to write over every slot: what it copies at last is intact.
TEST_F(ShardReaderTest, LeavesAPieceAloneUntilTheStreamHasUsedIt) {
  const TensorFile file(path(), DType::f32, {200'000});
  const std::vector<float> expected = file.flat();
  LoadingRing ring(*device_, 4096);
  ShardReader reader(ring, file.requests({true, false}), 4, PageCache::keep);
  std::vector<float> got(expected.size());
  std::promise<void> go;
  stream_->host("hold", [held = go.get_future().share()] { held.wait(); });
  for (std::size_t taken = 0;; ++taken) {
    if (taken == ring.size()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      go.set_value();
    }
    const auto piece = reader.next();
    if (!piece) break;
    stream_->copy(got.data() + piece->begin, piece->wide.data(), piece->wide.size_bytes());
    reader.release(*stream_);
  }
  stream_->synchronize();
  EXPECT_TRUE(got == expected);
}

TEST_F(ShardReaderTest, AFileCutShortIsAnErrorThatNamesFileAndTensorWhenItIsItsTurn) {
  const TensorFile file(path(), DType::f32, {5000, 50'000, 10});
  const std::uint64_t header = std::filesystem::file_size(path()) - file.reader().data_bytes();
  std::filesystem::resize_file(path(), header + (5000 + 30'000) * sizeof(float));
  const std::vector<float> expected = file.flat();
  for (const int readers : {1, 8}) {
    LoadingRing ring(*device_, 4096);
    ShardReader reader(ring, file.requests({true, false}), readers, PageCache::drop);
    std::int64_t good = 0;
    expect_error(
        [&] {
          while (const auto piece = reader.next()) {
            for (const float x : piece->wide) {
              ASSERT_EQ(x, expected[static_cast<std::size_t>(good)]);
              ++good;
            }
            reader.release(*stream_);
          }
        },
        {"weights.safetensors", "'t1'", "ends at byte"});
    EXPECT_EQ(good, 5000 + 30'000 / 1024 * 1024) << "all whole pieces before the end";
  }
}

TEST_F(ShardReaderTest, CanBeLeftAtAnyMoment) {
  const TensorFile file(path(), DType::bf16, {100'000});
  for (int pieces = 0; pieces < 40; ++pieces) {
    LoadingRing ring(*device_, 4096);
    ShardReader reader(ring, file.requests({true, true}), 8, PageCache::keep);
    for (int i = 0; i < pieces; ++i) {
      ASSERT_TRUE(reader.next());
      if (i % 20 != 19 || i + 1 < pieces) reader.release(*stream_);  // else: left with a piece in hand
    }
  }
}

// A failed stream's piece is not taken for one that was read.
TEST_F(ShardReaderTest, AFailedStreamIsReported) {
  const TensorFile file(path(), DType::bf16, {100'000});
  LoadingRing ring(*device_, 4096);
  ShardReader reader(ring, file.requests({false, true}), 2, PageCache::keep);
  stream_->host("fail", [] { throw std::runtime_error("the device is gone"); });
  expect_error<std::runtime_error>(
      [&] {
        while (reader.next()) reader.release(*stream_);
      },
      {"the device is gone"});
}

TEST_F(ShardReaderTest, TheRingIsBookedAndSmallForSmallModels) {
  {
    const LoadingRing ring(*device_, 8192);
    EXPECT_EQ(device_->ledger().peaks(MemoryKind::pinned).at("loading ring"), ring.size() * 8192);
  }
  EXPECT_EQ(device_->ledger().held(MemoryKind::pinned), 0u);
  EXPECT_EQ(LoadingRing::slot_bytes_for(1), 4096u);
  const LoadingRing ring(*device_, 4096);
  for (const std::int64_t elements : {std::int64_t{14} << 20, std::int64_t{600} << 20, std::int64_t{8} << 30}) {
    const std::size_t slot = LoadingRing::slot_bytes_for(elements);
    EXPECT_EQ(slot % 4096, 0u);
    EXPECT_LE(slot * ring.size(), static_cast<std::size_t>(elements) * 2 / 16);
    EXPECT_LE(slot, std::size_t{4} << 20);
    EXPECT_GE(slot * ring.size() * 2, std::min<std::size_t>(static_cast<std::size_t>(elements) * 2 / 16, 64 << 20));
  }
}

}  // namespace
}  // namespace so
