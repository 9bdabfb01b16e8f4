// Matrices in MXFP4 against what transformers makes of the same bytes (fixtures/io/make_mxfp4.py): unpacked in windows,
// and streamed from files.
#include "io/mxfp4.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "base/thread_pool.h"
#include "io/shard_reader.h"
#include "support/io.h"

namespace so {
namespace {

using io_test::expect_error;
using io_test::TemporaryDirectory;

const char* const parameters[] = {"gate_up_proj", "down_proj"};

// A parameter's blocks, scales, and the expected [matrices, columns, rows].
struct Stored {
  explicit Stored(const std::string& parameter) : file(io_test::fixture("mxfp4.safetensors")) {
    const std::span<const std::byte> raw = file.bytes(parameter);
    expected.resize(raw.size() / 2);
    std::memcpy(expected.data(), raw.data(), raw.size());
    const auto& shape = file.info(parameter + "_blocks").shape;
    count = shape[0];
    matrix.rows = shape[1], matrix.columns = shape[2] * 32;
    matrix.blocks = file.bytes(parameter + "_blocks").data();
    matrix.scales = reinterpret_cast<const std::uint8_t*>(file.bytes(parameter + "_scales").data());
  }
  Mxfp4Matrix at(std::int64_t index) const {
    Mxfp4Matrix m = matrix;
    m.blocks += static_cast<std::size_t>(index) * m.blocks_bytes();
    m.scales += static_cast<std::size_t>(index) * m.scales_bytes();
    return m;
  }

  SafetensorsReader file;
  std::vector<std::uint16_t> expected;
  std::int64_t count = 0;
  Mxfp4Matrix matrix;  // the first
};

std::uint32_t widened(std::uint16_t bits) { return std::uint32_t{bits} << 16; }

// NaN would compare unequal to everything: the bits are compared, and there are none.
TEST(Mxfp4, EveryValueIsTransformers) {
  std::size_t infinite = 0, subnormal = 0;
  for (const char* const parameter : parameters) {
    const Stored stored(parameter);
    const auto elements = static_cast<std::size_t>(stored.matrix.rows * stored.matrix.columns);
    ASSERT_EQ(stored.expected.size(), elements * static_cast<std::size_t>(stored.count));
    for (std::int64_t e = 0; e < stored.count; ++e) {
      std::vector<float> wide(elements);
      std::vector<bf16> narrow(elements);
      const Mxfp4Window all{0, stored.matrix.rows, 0, stored.matrix.columns};
      dequantise_transposed(stored.at(e), all, wide.data(), narrow.data());
      for (std::size_t i = 0; i < elements; ++i) {
        const std::uint16_t expected = stored.expected[static_cast<std::size_t>(e) * elements + i];
        ASSERT_EQ(narrow[i].bits, expected) << parameter << ' ' << e << ' ' << i;
        ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), widened(expected)) << parameter << ' ' << e << ' ' << i;
        infinite += (expected & 0x7fffu) == 0x7f80u ? 1 : 0;
        subnormal += (expected & 0x7f80u) == 0 && (expected & 0x7fu) != 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GT(infinite, 0u);
  EXPECT_GT(subnormal, 0u);
}

TEST(Mxfp4, AWindowIsThatPartOfTheWhole) {
  const Stored stored("gate_up_proj");
  const std::int64_t rows = stored.matrix.rows, columns = stored.matrix.columns;
  const std::int64_t row_edges[] = {0, 1, 31, 32, 33, 40}, column_edges[] = {0, 1, 31, 32, 33, 64, 95, 96};
  for (const std::int64_t r0 : row_edges)
    for (const std::int64_t r1 : row_edges)
      for (const std::int64_t c0 : column_edges)
        for (const std::int64_t c1 : column_edges) {
          if (r0 >= r1 || c0 >= c1) continue;
          const auto size = static_cast<std::size_t>((r1 - r0) * (c1 - c0));
          std::vector<float> wide(size + 1, 123.0f);
          std::vector<bf16> narrow(size + 1, bf16(123.0f));
          dequantise_transposed(stored.matrix, {r0, r1, c0, c1}, wide.data(), nullptr);
          dequantise_transposed(stored.matrix, {r0, r1, c0, c1}, nullptr, narrow.data());
          std::size_t i = 0;
          for (std::int64_t c = c0; c < c1; ++c)
            for (std::int64_t r = r0; r < r1; ++r, ++i) {
              const std::uint16_t expected = stored.expected[static_cast<std::size_t>(c * rows + r)];
              ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), widened(expected)) << r << ' ' << c;
              ASSERT_EQ(narrow[i].bits, expected) << r << ' ' << c;
            }
          EXPECT_EQ(wide[size], 123.0f);
          EXPECT_EQ(narrow[size], 123.0f);
        }
  std::vector<float> out(16);
  EXPECT_THROW(dequantise_transposed(stored.matrix, {0, rows + 1, 0, 1}, out.data(), nullptr), Bug);
  EXPECT_THROW(dequantise_transposed(stored.matrix, {0, 1, -1, 1}, out.data(), nullptr), Bug);
  EXPECT_THROW(dequantise_transposed(stored.matrix, {0, 1, 0, columns + 1}, out.data(), nullptr), Bug);
}

// The fixture's tensors with a plain one between, in the order of the requests.
class Mxfp4Stream : public testing::Test {
 protected:
  std::vector<ShardReader::Request> requests(const SafetensorsReader& file, WeightForms forms) const {
    std::vector<ShardReader::Request> all;
    std::int64_t at = 0;
    for (const auto& [tensor, scales] :
         {std::pair<std::string, std::string>{"gate_up_proj_blocks", "gate_up_proj_scales"},
          {"gate_up_proj", ""},
          {"down_proj_blocks", "down_proj_scales"},
          {"down_proj_blocks", "down_proj_scales"}}) {
      ShardReader::Request request{&file, tensor, at, forms, nullptr, {}};
      if (!scales.empty()) request.scales_file = &file, request.scales = scales;
      all.push_back(request);
      at += static_cast<std::int64_t>(file.info(tensor).bytes()) * (scales.empty() ? 1 : 4) / 2;
    }
    return all;
  }
  std::vector<std::uint16_t> expected() const {
    std::vector<std::uint16_t> all;
    for (const char* parameter : {"gate_up_proj", "gate_up_proj", "down_proj", "down_proj"}) {
      const Stored stored(parameter);
      all.insert(all.end(), stored.expected.begin(), stored.expected.end());
    }
    return all;
  }
  // The larger matrix is down_proj's, of 5 x 1728.
  static constexpr std::size_t packed_bytes = 5 * 1728 / 2 + 5 * 1728 / 32;

  ThreadPool pool_{"test", {0, 1}, false};
  std::unique_ptr<Device> device_ = make_cpu_device(pool_);
  std::unique_ptr<Stream> stream_ = device_->create_stream("test");
};

TEST_F(Mxfp4Stream, GivesEveryElementInEveryForm) {
  const SafetensorsReader file(io_test::fixture("mxfp4.safetensors"));
  const std::vector<std::uint16_t> all = expected();
  // A page holds parts of a matrix, four pages all of one and more.
  for (const std::size_t slot : {4096, 16384, 65536})
    for (const WeightForms forms : {WeightForms{true, false}, {false, true}, {true, true}, {false, false}})
      for (const int readers : {1, 3, 8}) {
        SCOPED_TRACE(
            fmt::format("slots of {}, wide {} narrow {}, {} readers", slot, forms.wide, forms.narrow, readers));
        LoadingRing ring(*device_, slot, packed_bytes);
        ShardReader reader(ring, requests(file, forms), readers, readers == 3 ? PageCache::drop : PageCache::keep,
                           NonFinite::warn);
        std::vector<float> wide(all.size());
        std::vector<bf16> narrow(all.size());
        std::int64_t next = 0;
        std::uint64_t given = 0;
        while (const auto piece = reader.next()) {
          EXPECT_EQ(piece->wide.empty(), !forms.wide);
          EXPECT_EQ(piece->narrow.empty(), !forms.narrow);
          if (forms.wide || forms.narrow) {
            ASSERT_EQ(piece->begin, next) << "in order, without a gap";
            next += piece->size();
          }
          EXPECT_GE(reader.bytes_given(), given);
          given = reader.bytes_given();
          stream_->copy(wide.data() + piece->begin, piece->wide.data(), piece->wide.size_bytes());
          stream_->copy(narrow.data() + piece->begin, piece->narrow.data(), piece->narrow.size_bytes());
          reader.release(*stream_);
        }
        stream_->synchronize();
        EXPECT_EQ(given, reader.total_bytes());
        std::uint64_t bytes = 0;
        for (const auto& request : requests(file, forms))
          bytes += file.info(request.tensor).bytes() + (request.scales.empty() ? 0 : file.info(request.scales).bytes());
        EXPECT_EQ(reader.total_bytes(), bytes);
        for (std::size_t i = 0; i < all.size(); ++i) {
          if (forms.wide) {
            ASSERT_EQ(std::bit_cast<std::uint32_t>(wide[i]), widened(all[i])) << i;
          }
          if (forms.narrow) {
            ASSERT_EQ(narrow[i].bits, all[i]) << i;
          }
        }
      }
}

TEST_F(Mxfp4Stream, TheLedgerHasTwoMatricesAsTheyAreStored) {
  { const LoadingRing ring(*device_, 4096, packed_bytes); }
  EXPECT_EQ(device_->ledger().peaks(MemoryKind::pageable).at("loading packed"), 2 * packed_bytes);
  EXPECT_EQ(device_->ledger().held(MemoryKind::pageable), 0u);
}

TEST_F(Mxfp4Stream, CanBeLeftAtAnyMoment) {
  const SafetensorsReader file(io_test::fixture("mxfp4.safetensors"));
  for (int pieces = 0; pieces < 30; ++pieces) {
    LoadingRing ring(*device_, 4096, packed_bytes);
    ShardReader reader(ring, requests(file, {true, true}), 8, PageCache::keep, NonFinite::warn);
    for (int i = 0; i < pieces; ++i) {
      ASSERT_TRUE(reader.next());
      if (i + 1 < pieces) reader.release(*stream_);
    }
  }
}

// Everything before the damage arrives as it is. The file has its scales before the blocks.
class Mxfp4Damage : public Mxfp4Stream {
 protected:
  Mxfp4Damage() {
    const SafetensorsReader source(io_test::fixture("mxfp4.safetensors"));
    std::vector<TensorSpec> specs;
    for (const char* name :
         {"gate_up_proj", "gate_up_proj_scales", "down_proj_scales", "gate_up_proj_blocks", "down_proj_blocks"})
      specs.push_back({name, source.info(name).dtype, source.info(name).shape});
    SafetensorsWriter writer(path(), specs, {});
    for (const TensorSpec& spec : specs) writer.write(spec.name, 0, source.bytes(spec.name));
    writer.finish();
    bytes_ = io_test::read_file(path());
  }
  void expect_failure(std::initializer_list<std::string_view> parts) {
    const std::vector<std::uint16_t> all = expected();
    for (const int readers : {1, 8}) {
      LoadingRing ring(*device_, 4096, packed_bytes);
      const SafetensorsReader file(path());
      if (cut_at_ != 0) std::filesystem::resize_file(path(), cut_at_);
      ShardReader reader(ring, requests(file, {false, true}), readers, PageCache::drop, NonFinite::warn);
      std::size_t good = 0;
      expect_error(
          [&] {
            while (const auto piece = reader.next()) {
              for (const bf16 x : piece->narrow) ASSERT_EQ(x.bits, all[good++]);
              reader.release(*stream_);
            }
          },
          parts);
      EXPECT_GE(good, Stored("gate_up_proj").expected.size() * 2);
      EXPECT_LT(good, all.size());
      restore();
    }
  }
  void restore() { io_test::write_file(path(), bytes_); }
  std::filesystem::path path() const { return temporary_.path() / "experts.safetensors"; }
  // Where a tensor's byte lies in the file.
  std::size_t position(const std::string& tensor, std::size_t at) const {
    const SafetensorsReader file(path());
    return bytes_.size() - file.data_bytes() + file.info(tensor).begin + at;
  }

  TemporaryDirectory temporary_;
  std::string bytes_;
  std::uint64_t cut_at_ = 0;
};

TEST_F(Mxfp4Damage, AFileCutShortIsAnErrorThatNamesFileAndTensor) {
  cut_at_ = position("down_proj_blocks", 5 * 1728 / 2 + 100);  // inside the second matrix
  expect_failure({"experts.safetensors", "'down_proj_blocks'", "ends at byte"});
}

TEST_F(Mxfp4Damage, AScaleThatIsNotANumberIsAnErrorThatNamesItsPlace) {
  bytes_[position("down_proj_scales", 300)] = '\xff';
  restore();
  expect_failure({"experts.safetensors", "'down_proj_scales'", "scale 255", "at 300"});
}

}  // namespace
}  // namespace so
