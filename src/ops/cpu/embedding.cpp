// Rows gathered from a table, and their gradients scattered back.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "ops/checks.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/embedding.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "base/row_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace so::rows {
namespace HWY_NAMESPACE {

// to += dout[order[0]] + dout[order[1]] + ..., from left to right in fp32, rounded once.
template <class G, class T>
void add_gathered_rows(G* to, const T* dout, const std::uint32_t* order, std::int64_t count, std::int64_t width) {
  for_row(width, [=](auto d, std::int64_t i) HWY_ATTR {
    auto sum = load(d, to + i);
    for (std::int64_t k = 0; k < count; ++k)
      sum = hn::Add(sum, load(d, dout + static_cast<std::int64_t>(order[k]) * width + i));
    store(d, sum, to + i);
  });
}

// Row `id` of dtable and the rows of dout that belong to it.
void add_rows_of_id(Tensor dtable, Tensor dout, std::int64_t id, const std::uint32_t* order, std::int64_t count) {
  const std::int64_t width = dtable.dim(1), at = id * width;
  if (dout.dtype() == DType::f32)
    add_gathered_rows(dtable.as<float>() + at, dout.as<float>(), order, count, width);
  else if (dtable.dtype() == DType::f32)
    add_gathered_rows(dtable.as<float>() + at, dout.as<bf16>(), order, count, width);
  else
    add_gathered_rows(dtable.as<bf16>() + at, dout.as<bf16>(), order, count, width);
}

}  // namespace HWY_NAMESPACE
}  // namespace so::rows
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so {
namespace rows {
namespace {

HWY_EXPORT(add_rows_of_id);

void gather(ThreadPool& pool, const Tensor& out, const Tensor& table, const Tensor& ids) {
  const std::int64_t vocabulary = table.dim(0);
  const std::size_t row_bytes = static_cast<std::size_t>(table.dim(1)) * size_of(table.dtype());
  const auto* id = ids.as<std::int32_t>();
  const auto* from = static_cast<const std::byte*>(table.data());
  auto* to = static_cast<std::byte*>(out.data());
  pool.parallel_for(out.dim(0), row_grain(table.dim(1)), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      SO_CHECK(id[n] >= 0 && id[n] < vocabulary, "embedding: ids[{}] is {}, the table has {} rows", n, id[n],
               vocabulary);
      std::memcpy(to + static_cast<std::size_t>(n) * row_bytes, from + static_cast<std::size_t>(id[n]) * row_bytes,
                  row_bytes);
    }
  });
}

// The rows of a batch sorted by id, those of one id in order of n.
struct RowsById {
  std::vector<std::uint32_t> order;  // row numbers n
  std::vector<std::size_t> first;    // where in `order` each distinct id begins; one more at the end
};

RowsById sort_by_id(const Tensor& ids, std::int64_t vocabulary) {
  const auto* id = ids.as<std::int32_t>();
  const auto n = static_cast<std::size_t>(ids.size());
  std::vector<std::uint64_t> keys(n);  // id in the upper half, n in the lower: all different, so any sort will do
  for (std::size_t i = 0; i < n; ++i) {
    SO_CHECK(id[i] >= 0 && id[i] < vocabulary, "embedding_grad: ids[{}] is {}, the table has {} rows", i, id[i],
             vocabulary);
    keys[i] = static_cast<std::uint64_t>(id[i]) << 32 | i;
  }
  std::sort(keys.begin(), keys.end());
  RowsById rows;
  rows.order.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    rows.order[i] = static_cast<std::uint32_t>(keys[i]);
    if (i == 0 || keys[i] >> 32 != keys[i - 1] >> 32) rows.first.push_back(i);
  }
  rows.first.push_back(n);
  return rows;
}

// Threads share out the distinct ids, so each row of the table has one writer.
void scatter_add(ThreadPool& pool, const Tensor& dtable, const Tensor& dout, const Tensor& ids, Accumulate mode) {
  const RowsById rows = sort_by_id(ids, dtable.dim(0));
  if (mode == Accumulate::overwrite) {
    auto* data = static_cast<std::byte*>(dtable.data());
    constexpr std::int64_t grain = 1 << 20;  // bytes
    pool.parallel_for(static_cast<std::int64_t>(dtable.bytes()), grain, [=](std::int64_t begin, std::int64_t end) {
      std::memset(data + begin, 0, static_cast<std::size_t>(end - begin));
    });
  }
  const auto* id = ids.as<std::int32_t>();
  const auto distinct = static_cast<std::int64_t>(rows.first.size()) - 1;
  pool.parallel_for(distinct, row_grain(dtable.dim(1)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t k = begin; k < end; ++k) {
      const std::size_t first = rows.first[static_cast<std::size_t>(k)];
      const std::size_t last = rows.first[static_cast<std::size_t>(k) + 1];
      const std::uint32_t* order = rows.order.data() + first;
      HWY_DYNAMIC_DISPATCH(add_rows_of_id)(dtable, dout, id[order[0]], order, static_cast<std::int64_t>(last - first));
    }
  });
}

}  // namespace
}  // namespace rows

void CpuOps::embedding(Stream& stream, Tensor out, Tensor table, Tensor ids) {
  const char* op = "embedding";
  SO_CHECK(table.rank() == 2 && ids.rank() == 1, "{}: table {}, ids {}", op, shape_string(table.shape()),
           shape_string(ids.shape()));
  expect_compute_dtype(op, "table", table.dtype());
  expect_tensor(op, "table", table, table.dtype(), {table.dim(0), table.dim(1)});
  expect_tensor(op, "ids", ids, DType::i32, {ids.dim(0)});
  expect_tensor(op, "out", out, table.dtype(), {ids.dim(0), table.dim(1)});
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("embedding", WorkCategory::memory_bound, [=, &pool] { rows::gather(pool, out, table, ids); });
}

// A bf16 table takes part in the sum as its fp32 value and is rounded once a call, not once a row.
void CpuOps::embedding_grad(Stream& stream, Tensor dtable, Tensor dout, Tensor ids, Accumulate mode) {
  const char* op = "embedding_grad";
  SO_CHECK(dtable.rank() == 2 && ids.rank() == 1, "{}: dtable {}, ids {}", op, shape_string(dtable.shape()),
           shape_string(ids.shape()));
  expect_compute_dtype(op, "dout", dout.dtype());
  expect_tensor(op, "ids", ids, DType::i32, {ids.dim(0)});
  expect_tensor(op, "dout", dout, dout.dtype(), {ids.dim(0), dtable.dim(1)});
  expect_gradient(op, "dtable", dtable, dout.dtype(), {dtable.dim(0), dtable.dim(1)});
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("embedding_grad", WorkCategory::memory_bound,
                      [=, &pool] { rows::scatter_add(pool, dtable, dout, ids, mode); });
}

}  // namespace so
#endif
