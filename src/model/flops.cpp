#include "model/flops.h"

#include "model/parameters.h"

namespace so {

namespace {

struct Counts {
  double tokens = 0, pairs = 0;  // pairs of query and key that meet
};

Counts count(std::span<const std::int32_t> cu_seqlens) {
  Counts counts;
  for (std::size_t i = 1; i < cu_seqlens.size(); ++i) {
    const double n = cu_seqlens[i] - cu_seqlens[i - 1];
    counts.tokens += n;
    counts.pairs += n * (n + 1) / 2;
  }
  return counts;
}

}  // namespace

double model_flops(const DecoderSpec& spec, std::span<const std::int32_t> cu_seqlens) {
  const auto [tokens, pairs] = count(cu_seqlens);
  const double attention = 3.0 * 4.0 * static_cast<double>(spec.layers * spec.q_width()) * pairs;
  return 6.0 * static_cast<double>(matmul_parameters(spec)) * tokens + attention;
}

std::vector<UnitFlops> unit_flops(const DecoderSpec& spec, std::span<const std::int32_t> cu_seqlens) {
  const auto [tokens, pairs] = count(cu_seqlens);
  const auto head_parameters = static_cast<double>(spec.vocab * spec.hidden);
  const double layer_parameters =
      (static_cast<double>(matmul_parameters(spec)) - head_parameters) / static_cast<double>(spec.layers);
  std::vector<UnitFlops> units(static_cast<std::size_t>(head_unit(spec)) + 1);
  const auto set = [&](int unit, double forward) { units[static_cast<std::size_t>(unit)] = {forward, 2 * forward}; };
  for (std::int64_t layer = 0; layer < spec.layers; ++layer)
    set(layer_unit(layer), 2 * layer_parameters * tokens + 4 * static_cast<double>(spec.q_width()) * pairs);
  set(head_unit(spec), 2 * head_parameters * tokens);
  return units;
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
