// Rows of a table, gathered and scattered by their numbers.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "device/cpu/cpu_device.h"
#include "optim/cpu/cpu_engine_ops.h"
#include "optim/engine_ops_checks.h"

namespace so {
namespace {

constexpr std::int64_t rows_piece_elements = 1 << 15;  // as cast.cpp

// move(row of the table, row of `some`, bytes) for each of `rows`.
template <class Move>
void for_each_row(ThreadPool& pool, const char* op, const Tensor& table, const Tensor& some, const Tensor& rows,
                  Move move) {
  if (some.size() == 0) return;
  const std::int64_t count = table.dim(0), width = table.dim(1);
  const std::size_t bytes = static_cast<std::size_t>(width) * size_of(table.dtype());
  const auto* const numbers = rows.as<const std::int32_t>();
  auto* const of_table = static_cast<std::byte*>(table.data());
  auto* const of_some = static_cast<std::byte*>(some.data());
  const std::int64_t piece = std::max<std::int64_t>(1, rows_piece_elements / width);
  pool.parallel_for(rows.size(), piece, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      SO_CHECK(numbers[i] >= 0 && numbers[i] < count, "{}: rows[{}] is {}, the table has {}", op, i, numbers[i], count);
      move(of_table + static_cast<std::size_t>(numbers[i]) * bytes, of_some + static_cast<std::size_t>(i) * bytes,
           bytes);
    }
  });
}

}  // namespace

void CpuEngineOps::gather_rows(Stream& stream, Tensor out, Tensor in, Tensor rows) {
  check_rows("gather_rows", in, out, rows);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("gather_rows", WorkCategory::memory_bound, [=, &pool] {
    for_each_row(pool, "gather_rows", in, out, rows,
                 [](const std::byte* from, std::byte* to, std::size_t bytes) { std::memcpy(to, from, bytes); });
  });
}

void CpuEngineOps::scatter_rows(Stream& stream, Tensor out, Tensor in, Tensor rows) {
  check_rows("scatter_rows", out, in, rows);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("scatter_rows", WorkCategory::memory_bound, [=, &pool] {
    for_each_row(pool, "scatter_rows", out, in, rows,
                 [](std::byte* to, const std::byte* from, std::size_t bytes) { std::memcpy(to, from, bytes); });
  });
}

}  // namespace so
