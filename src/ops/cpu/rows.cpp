#include "ops/cpu/rows.h"

namespace so {
namespace {

template <class T>
void add_blocks(const float* sums, std::int64_t blocks, std::int64_t columns, std::int64_t begin, std::int64_t end,
                T* total, Accumulate mode) {
  for (std::int64_t column = begin; column < end; ++column) {
    double sum = mode == Accumulate::add ? static_cast<double>(static_cast<float>(total[column])) : 0.0;
    for (std::int64_t b = 0; b < blocks; ++b) sum += static_cast<double>(sums[b * columns + column]);
    total[column] = static_cast<T>(static_cast<float>(sum));
  }
}

}  // namespace

std::span<const std::int32_t> document_starts(const char* op, const PackedDocuments& documents, std::int64_t rows) {
  const auto starts = documents.starts.span<const std::int32_t>();
  SO_CHECK(starts.front() >= 0 && starts.back() <= rows, "{}: documents from row {} to {} of {}", op, starts.front(),
           starts.back(), rows);
  for (std::size_t i = 0; i + 1 < starts.size(); ++i)
    SO_CHECK(starts[i] <= starts[i + 1], "{}: document {} has the rows [{}, {})", op, i, starts[i], starts[i + 1]);
  return starts;
}

void BlockSums::finish(ThreadPool& pool, const Tensor& total, Accumulate mode) const {
  constexpr std::int64_t grain = 512;
  pool.parallel_for(columns_, grain, [&](std::int64_t begin, std::int64_t end) {
    if (total.dtype() == DType::bf16)
      add_blocks(sums_.data(), blocks_, columns_, begin, end, total.as<bf16>(), mode);
    else
      add_blocks(sums_.data(), blocks_, columns_, begin, end, total.as<float>(), mode);
  });
}

}  // namespace so
