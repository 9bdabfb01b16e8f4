// Choosing the next token from logits.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <stdexcept>

namespace so {

struct SamplingOptions {
  double temperature = 0;  // 0: the most likely token (the lowest id among equals)
  int top_k = 0;           // keep only the k most likely; 0: all
  double top_p = 1;        // then only the fewest whose probabilities reach p (at least one)
};

// No token can be chosen from logits of which one is NaN or the largest is not finite. A command that ends with it has
// exit code 1, as `eval` has of such a loss.
class LogitsError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Draws at most one number from `random`. Logits of -infinity are never chosen. Throws LogitsError.
std::int32_t sample(std::span<const float> logits, const SamplingOptions& options, std::mt19937_64& random);

}  // namespace so
