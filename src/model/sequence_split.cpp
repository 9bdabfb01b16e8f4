#include "model/sequence_split.h"

#include <fmt/format.h>

#include "base/error.h"

namespace so {
namespace {

bool share_heads(const AttentionShape& shape, std::int64_t ranks) {
  return shape.heads % ranks == 0 && (shape.kv_heads % ranks == 0 || ranks % shape.kv_heads == 0);
}

bool share_layers(const DecoderSpec& spec, std::int64_t ranks) {
  for (std::int64_t layer = 0; layer < spec.layers; ++layer)
    if (spec.attends(layer) && !share_heads(spec.shape(layer), ranks)) return false;
  return (!spec.has_delta() || spec.delta.k_heads % ranks == 0) &&
         (!spec.has_state_space() || spec.state_space.groups % ranks == 0);
}

}  // namespace

RankHeads rank_heads(const AttentionShape& shape, int rank, int ranks) {
  SO_CHECK(share_heads(shape, ranks) && rank >= 0 && rank < ranks, "{} and {} heads of rank {} of {}", shape.heads,
           shape.kv_heads, rank, ranks);
  RankHeads heads;
  heads.q = shape.heads / ranks;
  heads.first_q = rank * heads.q;
  heads.replicas = shape.kv_heads < ranks ? ranks / shape.kv_heads : 1;
  heads.kv = shape.kv_heads < ranks ? 1 : shape.kv_heads / ranks;
  heads.first_kv = rank / heads.replicas * heads.kv;
  return heads;
}

void require_sequence_split(const DecoderSpec& spec, int ranks, const std::string& model) {
  if (ranks > 1 && spec.shares_keys())
    fail("--sequence_parallel_size {}: not supported for {}, where layers attend to keys and values of others; use 1",
         ranks, model);
  if (share_layers(spec, ranks)) return;
  std::string sizes;
  for (std::int64_t size = 1; size <= spec.heads; ++size)
    if (share_layers(spec, size)) sizes += fmt::format("{}{}", sizes.empty() ? "" : ", ", size);
  const std::string of_delta =
      spec.has_delta() ? fmt::format(", and in its delta layers {} key heads", spec.delta.k_heads) : std::string();
  const std::string of_space = spec.has_state_space()
                                   ? fmt::format(", and in its state spaces {} groups", spec.state_space.groups)
                                   : std::string();
  const std::string of_global =
      spec.global_heads ? fmt::format(", {} in layers without a window", spec.global_heads->kv_heads) : std::string();
  fail(
      "--sequence_parallel_size {}: each rank attends with as many heads as any other, and {} has {} query and {} key "
      "and value heads{}{}{}; use one of {}",
      ranks, model, spec.heads, spec.kv_heads, of_global, of_delta, of_space, sizes);
}

}  // namespace so
