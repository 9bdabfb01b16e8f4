// Rows of a table by their numbers. They are moved as they are, so bytes are compared.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "optim/engine_ops.h"
#include "support/random_tensors.h"

namespace so::test {
namespace {

// A tensor that begins `before` elements into memory of its own, with some behind it, so that what is written beside it
// shows.
struct InnerTensor {
  InnerTensor(Stream& stream, DType dtype, std::int64_t rows, std::int64_t width, std::int64_t before, unsigned seed)
      : all(random_tensor(stream, dtype, {before + rows * width + 5}, seed)),
        begin(static_cast<std::size_t>(before) * size_of(dtype)),
        row_bytes(static_cast<std::size_t>(width) * size_of(dtype)),
        tensor(static_cast<std::byte*>(all.tensor().data()) + begin, dtype, {rows, width}) {}

  std::size_t at(double row) const { return begin + static_cast<std::size_t>(row) * row_bytes; }

  TestTensor all;
  std::size_t begin, row_bytes;
  Tensor tensor;
};

class RowsTest : public ::testing::Test {
 protected:
  DeviceRig rig;
  Stream& stream = rig.stream();
  const std::unique_ptr<EngineOps> ops = make_engine_ops(rig.device());

  static std::vector<double> distinct_rows(std::int64_t count, std::int64_t table_rows, unsigned seed) {
    std::vector<double> numbers(static_cast<std::size_t>(table_rows));
    std::iota(numbers.begin(), numbers.end(), 0.0);
    std::shuffle(numbers.begin(), numbers.end(), std::mt19937(seed));
    numbers.resize(static_cast<std::size_t>(count));
    return numbers;
  }

  // Both directions against plain loops, the table beginning `before_table` elements into its memory and the rows
  // `before_rows` into theirs. Some rows are gathered several times.
  void expect_moves(DType dtype, std::int64_t table_rows, std::int64_t width, std::int64_t count,
                    std::int64_t before_table = 0, std::int64_t before_rows = 0) {
    SCOPED_TRACE(testing::Message() << count << " of " << table_rows << " rows of " << width << " " << name_of(dtype)
                                    << ", " << before_table << " and " << before_rows << " before");
    std::vector<double> numbers = distinct_rows(count, table_rows, 3);
    const InnerTensor table(stream, dtype, table_rows, width, before_table, 1);
    const InnerTensor some(stream, dtype, count, width, before_rows, 2);
    const TestTensor scattered(stream, DType::i32, {count}, numbers);
    const std::vector<std::byte> rows = some.all.bytes(stream);
    std::vector<std::byte> expected = table.all.bytes(stream);
    for (std::size_t i = 0; i < numbers.size(); ++i)
      for (std::size_t j = 0; j < table.row_bytes; ++j)
        expected[table.at(numbers[i]) + j] = rows[some.at(static_cast<double>(i)) + j];
    ops->scatter_rows(stream, table.tensor, some.tensor, scattered);
    EXPECT_EQ(table.all.bytes(stream), expected);
    EXPECT_EQ(some.all.bytes(stream), rows);

    for (std::size_t i = 0; i < numbers.size(); i += 3) numbers[i] = numbers[0];
    const TestTensor gathered(stream, DType::i32, {count}, numbers);
    const InnerTensor out(stream, dtype, count, width, before_rows, 4);
    std::vector<std::byte> expected_rows = out.all.bytes(stream);
    for (std::size_t i = 0; i < numbers.size(); ++i)
      for (std::size_t j = 0; j < table.row_bytes; ++j)
        expected_rows[out.at(static_cast<double>(i)) + j] = expected[table.at(numbers[i]) + j];
    ops->gather_rows(stream, out.tensor, table.tensor, gathered);
    EXPECT_EQ(out.all.bytes(stream), expected_rows);
    EXPECT_EQ(table.all.bytes(stream), expected);
  }
};

TEST_F(RowsTest, OfAnyWidthAreMovedAndTheOthersStay) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    // The widest take several blocks of a GPU a row.
    for (const std::int64_t width : {1, 3, 4, 8, 20, 77, 1025, 4096, 4100, 8192, 20'000})
      expect_moves(dtype, 23, width, 9);
    expect_moves(dtype, 5000, 24, 3000);  // pieces for several threads
    expect_moves(dtype, 7, 16, 7);
    expect_moves(dtype, 1, 4099, 1);
  }
}

// A GPU moves vectors where both ends are aligned, which either may spoil.
TEST_F(RowsTest, MayBeginAtAnyElement) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t width : {3, 8, 4096}) {
      expect_moves(dtype, 23, width, 9, 1, 0);
      expect_moves(dtype, 23, width, 9, 0, 3);
      expect_moves(dtype, 23, width, 9, 8, 16);
    }
}

TEST_F(RowsTest, NoneIsNothing) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    expect_moves(dtype, 5, 8, 0);
    expect_moves(dtype, 0, 8, 0);
    expect_moves(dtype, 5, 0, 2);
  }
  const TestTensor table = random_tensor(stream, DType::f32, {5, 8}, 1);
  const std::vector<std::byte> before = table.bytes(stream);
  const Tensor no_rows(nullptr, DType::f32, {0, 8}), no_numbers(nullptr, DType::i32, {0});
  ops->gather_rows(stream, no_rows, table, no_numbers);
  ops->scatter_rows(stream, table, no_rows, no_numbers);
  EXPECT_EQ(table.bytes(stream), before);
}

// Their offsets need 64 bits. Only the rows that are moved are touched, so a CPU takes little memory for the table.
TEST_F(RowsTest, OfATableOfMoreThanTwoToThe31Elements) {
  constexpr std::int64_t width = 8192, table_rows = (std::int64_t{1} << 31) / width + 40, count = 30;
  const std::size_t bytes = Tensor(nullptr, DType::bf16, {table_rows, width}).bytes();
  const Buffer memory = rig.device().allocate(MemoryKind::device, bytes, "large table");
  const Tensor table(memory.data(), DType::bf16, {table_rows, width});
  std::vector<double> numbers = distinct_rows(count, 40, 3);
  for (double& number : numbers) number += static_cast<double>(table_rows - 40);
  const TestTensor rows(stream, DType::i32, {count}, numbers), out(stream, DType::bf16, {count, width});
  const TestTensor some = random_tensor(stream, DType::bf16, {count, width}, 1);
  const std::vector<std::byte> expected = some.bytes(stream);
  ops->scatter_rows(stream, table, some, rows);
  const std::size_t row_bytes = expected.size() / count;
  std::vector<std::byte> found(expected.size());
  for (std::size_t i = 0; i < numbers.size(); ++i)
    stream.copy(found.data() + i * row_bytes, table.rows(static_cast<std::int64_t>(numbers[i]), 1).data(), row_bytes);
  stream.synchronize();
  EXPECT_EQ(found, expected);
  ops->gather_rows(stream, out, table, rows);
  EXPECT_EQ(out.bytes(stream), expected);
}

TEST_F(RowsTest, RefuseOtherShapesAndFormats) {
  const TestTensor table(stream, DType::f32, {5, 4}), some(stream, DType::f32, {2, 4});
  const TestTensor rows(stream, DType::i32, {2}, {0.0, 3.0});
  const auto refuses = [&](Tensor of_table, Tensor of_some, Tensor numbers) {
    EXPECT_THROW(ops->gather_rows(stream, of_some, of_table, numbers), Bug);
    EXPECT_THROW(ops->scatter_rows(stream, of_table, of_some, numbers), Bug);
  };
  refuses(TestTensor(stream, DType::f32, {5, 3}), some, rows);
  refuses(TestTensor(stream, DType::f32, {20}), some, rows);
  refuses(table, TestTensor(stream, DType::f32, {8}), rows);
  refuses(table, TestTensor(stream, DType::f32, {3, 4}), rows);
  refuses(table, some, TestTensor(stream, DType::i32, {3}));
  refuses(table, some, TestTensor(stream, DType::i32, {2, 1}));
  refuses(table, some, TestTensor(stream, DType::i64, {2}));
  refuses(table, TestTensor(stream, DType::bf16, {2, 4}), rows);
  refuses(TestTensor(stream, DType::bf16, {5, 4}), some, rows);
  refuses(TestTensor(stream, DType::i32, {5, 4}), TestTensor(stream, DType::i32, {2, 4}), rows);
  refuses(Tensor(nullptr, DType::f32, {5, 4}), some, rows);
  refuses(table, Tensor(nullptr, DType::f32, {2, 4}), rows);
  refuses(table, some, Tensor(nullptr, DType::i32, {2}));
  refuses(table, some, Tensor());
}

TEST_F(RowsTest, ARowOutsideTheTablePoisonsTheStream) {
  SO_CPU_ONLY("on a GPU a trap ends the program");
  for (const double bad : {-1.0, 5.0})
    for (const bool gather : {false, true}) {
      DeviceRig own;
      const TestTensor table(own.stream(), DType::f32, {5, 3}), some(own.stream(), DType::f32, {2, 3});
      const TestTensor rows(own.stream(), DType::i32, {2}, {0.0, bad});
      if (gather)
        ops->gather_rows(own.stream(), some, table, rows);
      else
        ops->scatter_rows(own.stream(), table, some, rows);
      EXPECT_THROW(own.stream().synchronize(), Bug);
    }
}

}  // namespace
}  // namespace so::test
