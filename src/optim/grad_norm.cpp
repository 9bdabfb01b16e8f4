#include "optim/grad_norm.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/error.h"
#include "base/thread_pool.h"
#include "optim/float_mode.h"
#include "optim/grad_norm_kernels.h"

namespace so {
namespace {

using namespace grad_norm;

constexpr std::int64_t kChunksAtATime = 16;  // 64 Ki elements: claiming a piece costs nothing against summing it

std::atomic<std::size_t> chosen_table{0};

std::size_t size_of_span(const GradientSpan& gradient) {
  return std::visit([](const auto& span) { return span.size(); }, gradient);
}

double sum_chunk(const KernelTable& table, const GradientSpan& gradient, std::size_t chunk) {
  const std::size_t begin = chunk * kGradNormChunk;
  const std::size_t count = std::min(kGradNormChunk, size_of_span(gradient) - begin);
  if (const auto* f32 = std::get_if<std::span<const float>>(&gradient))
    return table.chunk_f32(f32->data() + begin, count);
  return table.chunk_bf16(std::get<std::span<const bf16>>(gradient).data() + begin, count);
}

const KernelTable& table_in_use() { return kernel_tables()[chosen_table.load(std::memory_order_relaxed)]; }

std::size_t chunks_of(const GradientSpan& gradient) {
  return (size_of_span(gradient) + kGradNormChunk - 1) / kGradNormChunk;
}

}  // namespace

void accumulate_grad_norm(GradNorm& total, GradientSpan gradient) {
  check_float_mode();
  const KernelTable& table = table_in_use();
  const std::size_t chunks = chunks_of(gradient);
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) total.sum_of_squares += sum_chunk(table, gradient, chunk);
}

void accumulate_grad_norm_parallel(ThreadPool& pool, GradNorm& total, GradientSpan gradient) {
  const KernelTable& table = table_in_use();
  std::vector<double> sums(chunks_of(gradient));
  pool.parallel_for(static_cast<std::int64_t>(sums.size()), kChunksAtATime, [&](std::int64_t begin, std::int64_t end) {
    check_float_mode();
    for (auto chunk = static_cast<std::size_t>(begin); chunk < static_cast<std::size_t>(end); ++chunk)
      sums[chunk] = sum_chunk(table, gradient, chunk);
  });
  for (const double sum : sums) total.sum_of_squares += sum;
}

float clip_coefficient(double norm, double max_norm) {
  SO_CHECK(std::isfinite(norm) && norm >= 0.0, "clipping to a norm of {}", norm);
  SO_CHECK(!std::isnan(max_norm), "max_norm is NaN");
  if (max_norm <= 0.0) return 1.0f;
  return static_cast<float>(std::min(1.0, max_norm / (norm + 1e-6)));
}

std::vector<std::string> grad_norm_instruction_sets() {
  std::vector<std::string> names;
  for (const KernelTable& table : kernel_tables()) names.push_back(table.name);
  return names;
}

void grad_norm_use_instruction_set(std::string_view name) {
  const auto& tables = kernel_tables();
  std::size_t i = 0;
  if (!name.empty())
    while (i < tables.size() && tables[i].name != name) ++i;
  if (i == tables.size())
    fail("gradient norm: this machine has no instruction set '{}'; its best is {}", name, tables[0].name);
  chosen_table = i;
}

}  // namespace so
