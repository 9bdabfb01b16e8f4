#include "model/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace so {
namespace {

struct Candidate {
  double weight;  // its probability, up to a factor that all share
  float logit;
  std::int32_t id;
};

bool more_likely(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// Sums go in the order of ids, here and below, so that they do not depend on how a library selects.
double total_of(const std::vector<Candidate>& all) {
  double total = 0;
  for (const Candidate& c : all) total += c.weight;
  return total;
}

float kth_largest(std::span<const float> values, std::size_t k) {
  // A heap of few is quicker than a selection among all.
  if (k <= values.size() / 64) {
    std::vector<float> largest(k);
    std::partial_sort_copy(values.begin(), values.end(), largest.begin(), largest.end(), std::greater<>());
    return largest.back();
  }
  std::vector<float> all(values.begin(), values.end());
  const auto at = all.begin() + static_cast<std::ptrdiff_t>(k) - 1;
  std::nth_element(all.begin(), at, all.end(), std::greater<>());
  return *at;
}

// The k most likely in the order of ids, the lowest ids among equals; those of no probability are left out.
std::vector<Candidate> candidates(std::span<const float> logits, std::size_t k, double temperature, double top) {
  const float least = k < logits.size() ? kth_largest(logits, k) : -INFINITY;
  std::size_t ties = k;  // how many of those that equal `least` are kept
  if (k < logits.size())
    for (const float x : logits) ties -= x > least ? 1 : 0;
  std::vector<Candidate> all;
  all.reserve(k);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] < least || (logits[i] == least && ties == 0)) continue;
    if (logits[i] == least) --ties;
    const double weight = std::exp((logits[i] - top) / temperature);
    if (weight > 0) all.push_back({weight, logits[i], static_cast<std::int32_t>(i)});
  }
  return all;
}

// The candidate with which the sum of weights, added from the most likely on, goes beyond `bound` (or_equal: reaches
// it); the least likely one if rounding lets none. Splits what is left at a pivot until the candidate is found, which
// takes time in proportion to their number, where sorting them would take most of a token's time.
Candidate at_sum(std::vector<Candidate> left, double bound, bool or_equal) {
  const auto beyond = [&](double sum) { return or_equal ? sum >= bound : sum > bound; };
  double before = 0;  // the weights of those more likely than all that are left
  Candidate last = left.front();
  std::vector<Candidate> upper, lower;
  while (!left.empty()) {
    Candidate low = left.front(), pivot = left[left.size() / 2], high = left.back();
    if (more_likely(low, pivot)) std::swap(low, pivot);
    if (more_likely(pivot, high)) pivot = more_likely(low, high) ? low : high;
    upper.clear();
    lower.clear();
    double sum = before;
    for (const Candidate& c : left) {
      if (c.id == pivot.id) continue;
      if (more_likely(c, pivot)) {
        sum += c.weight;
        upper.push_back(c);
      } else {
        lower.push_back(c);
      }
    }
    if (!upper.empty() && beyond(sum)) {
      std::swap(left, upper);
      continue;
    }
    before = sum + pivot.weight;
    last = pivot;
    if (beyond(before)) break;
    std::swap(left, lower);
  }
  return last;
}

}  // namespace

std::int32_t sample(std::span<const float> logits, const SamplingOptions& options, std::mt19937_64& random) {
  std::int32_t best = -1;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]))
      throw LogitsError("the model's logits are not numbers; its weights are damaged or training diverged");
    if (best < 0 || logits[i] > logits[static_cast<std::size_t>(best)]) best = static_cast<std::int32_t>(i);
  }
  if (best < 0 || !std::isfinite(logits[static_cast<std::size_t>(best)]))
    throw LogitsError("the model's largest logit is infinite; its weights are damaged or training diverged");
  if (options.temperature == 0) return best;

  const std::size_t k =
      options.top_k > 0 ? std::min<std::size_t>(static_cast<std::size_t>(options.top_k), logits.size()) : logits.size();
  std::vector<Candidate> kept = candidates(logits, k, options.temperature, logits[static_cast<std::size_t>(best)]);
  double total = total_of(kept);
  if (options.top_p < 1) {
    const Candidate least = at_sum(kept, options.top_p * total, true);
    std::erase_if(kept, [&](const Candidate& c) { return more_likely(least, c); });
    total = total_of(kept);
  }
  // 53 random bits: the same numbers from every standard library.
  const double draw = static_cast<double>(random() >> 11) * 0x1p-53 * total;
  return at_sum(std::move(kept), draw, false).id;
}

}  // namespace so
