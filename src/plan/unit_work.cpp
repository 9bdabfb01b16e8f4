#include "plan/unit_work.h"

#include <algorithm>

#include "model/flops.h"
#include "model/parameters.h"

namespace so {
namespace {

// What was measured, on an H200 (docs/performance.md), of the rate of a large dense product under sustained load. The
// dense products of a step reach it, and a few percent more where no optimizer works beside.
// Causal attention, by head size; its gradient has twice the FLOPs.
struct AttentionShares {
  double forward, backward;
};
AttentionShares attention_shares(std::int64_t head_dim) {
  return head_dim >= 128 ? AttentionShares{0.76, 0.45} : AttentionShares{0.67, 0.345};
}
// Its last blocks, one of so many queries a processor and each with up to all keys, end one after the other: half of
// them are idle, in the mean.
constexpr double block_queries = 128, processors = 132;
// Of those, with a window; and what a query's tile meets beside the window's keys: the rest of its own tile, and of the
// first.
constexpr AttentionShares windowed{0.85, 0.97};
constexpr double tile_keys = 64;
// An expert's rows fill the last of its tiles in part: of so many rows more, its products would take no longer. Rows
// are spread unevenly (0.92), and routing, biases and sums take what is counted nowhere: both by GPT-OSS-20B's step.
constexpr double expert_rows = 209, in_a_step = 0.9;

// Kernels of a layer, without two a parameter for the gradient's norm: as traced.
constexpr double forward_kernels = 11, backward_kernels = 27, expert_kernels = 20;

// Pairs of query and key, of one head.
struct Visited {
  double pairs = 0;       // that the kernels visit; the time in which not all processors do counts as if they did
  bool windowed = false;  // fewer than without a window, by kernels for windows
};
Visited visited_pairs(std::span<const std::int32_t> cu_seqlens, std::int64_t window, double heads) {
  const double all = attention_pairs(cu_seqlens, 0), tokens = cu_seqlens.empty() ? 0 : cu_seqlens.back();
  if (const double within = tokens * (static_cast<double>(window) + tile_keys); window > 0 && within < all)
    return {within, true};
  std::int32_t longest = 0;
  for (std::size_t i = 1; i < cu_seqlens.size(); ++i) longest = std::max(longest, cu_seqlens[i] - cu_seqlens[i - 1]);
  return {all + 0.5 * processors * block_queries * longest / heads, false};
}

}  // namespace

double mlp_share(const DecoderSpec& spec, std::int64_t layer, double tokens) {
  if (!spec.layer(layer).experts) return 1;
  const ExpertSpec& x = spec.experts;
  const double rows = tokens * static_cast<double>(x.per_token) / static_cast<double>(x.count);
  return in_a_step * rows / (rows + expert_rows);
}

std::vector<UnitWork> unit_work(const DecoderSpec& spec, std::span<const std::int32_t> cu_seqlens, DType compute) {
  const std::vector<UnitFlops> flops = unit_flops(spec, cu_seqlens);
  const double tokens = cu_seqlens.empty() ? 0 : cu_seqlens.back(), size = static_cast<double>(size_of(compute));
  const auto hidden = static_cast<double>(spec.hidden);
  std::vector<UnitWork> units(flops.size());
  for (std::size_t u = 0; u < units.size(); ++u)
    units[u] = {.forward_flops = flops[u].forward, .backward_flops = flops[u].backward};
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    UnitWork& unit = units[static_cast<std::size_t>(layer_unit(layer))];
    const LayerSpec l = spec.layer(layer);
    const double mlp = 6 * tokens * hidden * static_cast<double>(spec.mlp_width(layer));  // gate, up and down
    const double attention = 4 * static_cast<double>(spec.q_width()) * attention_pairs(cu_seqlens, l.window);
    const double projections =
        flops[static_cast<std::size_t>(layer_unit(layer))].forward - mlp - attention;  // and the router
    const AttentionShares share = attention_shares(spec.head_dim);
    const Visited visited = visited_pairs(cu_seqlens, l.window, static_cast<double>(spec.heads));
    const double scores = 4 * static_cast<double>(spec.q_width()) * visited.pairs;
    const double products = projections + mlp / mlp_share(spec, layer, tokens);
    unit.forward_flops = products + scores / (share.forward * (visited.windowed ? windowed.forward : 1));
    unit.backward_flops = 2 * (products + scores / (share.backward * (visited.windowed ? windowed.backward : 1)));
    unit.forward_kernels = forward_kernels + (l.experts ? expert_kernels : 0);
    unit.backward_kernels = backward_kernels + (l.experts ? expert_kernels : 0);
    // Elements a token: two norms with their residuals, rotation of q and k, the gated activation; of experts, rows
    // that are gathered and added up again, and in backward the biases' gradients.
    const double norms = 8 * hidden, rotation = 2 * static_cast<double>(spec.q_width() + spec.kv_width()),
                 width = static_cast<double>(spec.mlp_width(layer)),
                 rows = l.experts ? static_cast<double>(spec.experts.per_token) * hidden : 0;
    unit.forward_bytes = tokens * size * (norms + rotation + 3 * width + 3 * rows);
    unit.backward_bytes = tokens * size * (norms + rotation + (l.experts ? 8 : 6) * width + 7 * rows);
  }
  return units;
}

}  // namespace so
