// Routings for the tests of mixture-of-experts ops: made by hand, so that no test depends on another op.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "support/random_tensors.h"
#include "support/rig.h"

namespace so::test {

// A routing's memory on the device under test, unspecified at first.
struct RoutingTensors {
  RoutingTensors(Stream& s, std::int64_t tokens, std::int64_t choices, std::int64_t count)
      : experts(s, DType::i32, {tokens, choices}),
        rows(s, DType::i32, {tokens, choices}),
        pairs(s, DType::i32, {tokens * choices}),
        weights(s, DType::f32, {tokens * choices}),
        offsets(s, DType::i32, {count + 1}) {}

  operator Routing() const { return {experts, rows, pairs, weights, offsets}; }

  TestTensor experts, rows, pairs, weights, offsets;
};

// The same on the host.
struct HostRouting {
  std::int64_t choices = 0;
  std::vector<std::int64_t> experts, rows;   // by pair
  std::vector<std::int64_t> pairs, offsets;  // by row; by expert
  std::vector<double> weights;               // by row

  std::int64_t expert_of_row(std::int64_t r) const { return experts[at(pairs[at(r)])]; }
  std::int64_t token_of_row(std::int64_t r) const { return pairs[at(r)] / choices; }
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  // Rows in order of experts, and of pairs within an expert.
  static HostRouting of(std::vector<std::int64_t> experts, std::int64_t choices, std::int64_t count) {
    HostRouting h;
    h.choices = choices;
    h.experts = std::move(experts);
    h.rows.resize(h.experts.size());
    h.offsets = {0};
    for (std::int64_t e = 0; e < count; ++e) {
      for (std::size_t p = 0; p < h.experts.size(); ++p)
        if (h.experts[p] == e) {
          h.rows[p] = static_cast<std::int64_t>(h.pairs.size());
          h.pairs.push_back(static_cast<std::int64_t>(p));
        }
      h.offsets.push_back(static_cast<std::int64_t>(h.pairs.size()));
    }
    return h;
  }
  RoutingTensors on_device(Stream& s) const {
    const auto doubles = [](const std::vector<std::int64_t>& v) { return std::vector<double>(v.begin(), v.end()); };
    const auto pairs_count = static_cast<std::int64_t>(experts.size()), tokens = pairs_count / choices;
    const auto count = static_cast<std::int64_t>(offsets.size()) - 1;
    RoutingTensors t(s, 0, choices, count);
    t.experts = TestTensor(s, DType::i32, {tokens, choices}, doubles(experts));
    t.rows = TestTensor(s, DType::i32, {tokens, choices}, doubles(rows));
    t.pairs = TestTensor(s, DType::i32, {pairs_count}, doubles(pairs));
    t.weights = TestTensor(s, DType::f32, {pairs_count}, weights);
    t.offsets = TestTensor(s, DType::i32, {count + 1}, doubles(offsets));
    return t;
  }
};

// How the experts of a random routing are chosen.
enum class Load { even, skewed, one_expert };

// Distinct experts a token (one_expert: the same for all tokens), weights in (0.1, 1). Skewed: the last third of the
// experts gets nothing.
inline HostRouting random_routing(std::int64_t tokens, std::int64_t choices, std::int64_t count, Load load,
                                  unsigned seed) {
  std::mt19937_64 generator(seed);
  std::vector<std::int64_t> experts;
  const std::int64_t among = load == Load::skewed ? std::max(choices, count - count / 3) : count;
  for (std::int64_t n = 0; n < tokens; ++n) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(among));
    std::iota(order.begin(), order.end(), 0);
    if (load == Load::one_expert)
      std::reverse(order.begin(), order.end());
    else
      std::shuffle(order.begin(), order.end(), generator);
    experts.insert(experts.end(), order.begin(), order.begin() + choices);
  }
  HostRouting h = HostRouting::of(std::move(experts), choices, count);
  for (std::size_t r = 0; r < h.pairs.size(); ++r)
    h.weights.push_back(static_cast<float>(0.1 + 0.9 * std::ldexp(static_cast<double>(generator() >> 11), -53)));
  return h;
}

}  // namespace so::test
