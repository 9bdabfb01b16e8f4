#include "model/flops.h"

#include "model/parameters.h"

namespace so {

double model_flops(const DecoderSpec& spec, std::span<const std::int32_t> cu_seqlens) {
  double tokens = 0, pairs = 0;
  for (std::size_t i = 1; i < cu_seqlens.size(); ++i) {
    const double n = cu_seqlens[i] - cu_seqlens[i - 1];
    tokens += n;
    pairs += n * (n + 1) / 2;
  }
  const double attention = 3.0 * 4.0 * static_cast<double>(spec.layers * spec.q_width()) * pairs;
  return 6.0 * static_cast<double>(matmul_parameters(spec)) * tokens + attention;
}

double reference_flops(const DecoderSpec& spec, std::int64_t rows, std::int64_t row_length, bool recompute) {
  const double c = recompute ? 4 : 3, s = static_cast<double>(row_length);
  const double row = 2 * c * static_cast<double>(parameter_count(spec)) * s +
                     4 * c * static_cast<double>(spec.layers * spec.hidden) * s * s;
  return static_cast<double>(rows) * row;
}

std::int64_t parameter_count(const DecoderSpec& spec) {
  std::int64_t n = 0;
  for (const Parameter& p : make_parameters(spec)) n += p.size();
  return n;
}

}  // namespace so
