#include "data/sampler.h"

#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/hash.h"

namespace so {
namespace {

class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t state) : state_(state) {}

  std::uint64_t next() { return mix_bits(state_ += 0x9e3779b97f4a7c15u); }

  std::uint64_t below(std::uint64_t n) {
    const std::uint64_t surplus = (0 - n) % n;  // 2^64 mod n: as many values would come up once too often
    std::uint64_t value = 0;
    do value = next();
    while (value < surplus);
    return value % n;
  }

 private:
  std::uint64_t state_;
};

}  // namespace

std::vector<std::int64_t> epoch_order(std::int64_t count, std::uint64_t seed, std::int64_t epoch, bool shuffle) {
  SO_CHECK(count >= 0 && epoch >= 0, "{} documents, epoch {}", count, epoch);
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (!shuffle) return order;
  SplitMix64 random(mix_bits(mix_bits(seed) + static_cast<std::uint64_t>(epoch)));
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return order;
}

}  // namespace so
