#include "model/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace so {

std::int32_t sample(std::span<const float> logits, const SamplingOptions& options, std::mt19937_64& random) {
  std::int32_t best = -1;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]))
      throw std::runtime_error("the model's logits are not numbers; its weights are damaged or training diverged");
    if (best < 0 || logits[i] > logits[static_cast<std::size_t>(best)]) best = static_cast<std::int32_t>(i);
  }
  if (best < 0 || !std::isfinite(logits[static_cast<std::size_t>(best)]))
    throw std::runtime_error("the model's largest logit is infinite; its weights are damaged or training diverged");
  if (options.temperature == 0) return best;

  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto more_likely = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  const std::size_t kept =
      options.top_k > 0 ? std::min<std::size_t>(static_cast<std::size_t>(options.top_k), ids.size()) : ids.size();
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(kept), ids.end(), more_likely);
  ids.resize(kept);

  std::vector<double> weights(kept);
  const double top = logits[static_cast<std::size_t>(best)];
  for (std::size_t i = 0; i < kept; ++i)
    weights[i] = std::exp((logits[static_cast<std::size_t>(ids[i])] - top) / options.temperature);
  double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (options.top_p < 1) {
    double sum = 0;
    std::size_t n = 0;
    while (n < kept && sum < options.top_p * total) sum += weights[n++];
    n = std::max<std::size_t>(n, 1);
    weights.resize(n);
    total = std::accumulate(weights.begin(), weights.end(), 0.0);
  }
  // 53 random bits: the same numbers from every standard library.
  double draw = static_cast<double>(random() >> 11) * 0x1p-53 * total;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    draw -= weights[i];
    if (draw < 0) return ids[i];
  }
  return ids[weights.size() - 1];
}

}  // namespace so
