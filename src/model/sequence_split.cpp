#include "model/sequence_split.h"

#include <fmt/format.h>

#include "base/error.h"

namespace so {
namespace {

bool share_heads(const DecoderSpec& spec, std::int64_t ranks) {
  const bool delta = !spec.has_delta() || spec.delta.k_heads % ranks == 0;
  return spec.heads % ranks == 0 && (spec.kv_heads % ranks == 0 || ranks % spec.kv_heads == 0) && delta;
}

}  // namespace

RankHeads rank_heads(const DecoderSpec& spec, int rank, int ranks) {
  SO_CHECK(share_heads(spec, ranks) && rank >= 0 && rank < ranks, "{} and {} heads of rank {} of {}", spec.heads,
           spec.kv_heads, rank, ranks);
  RankHeads heads;
  heads.q = spec.heads / ranks;
  heads.first_q = rank * heads.q;
  heads.replicas = spec.kv_heads < ranks ? ranks / spec.kv_heads : 1;
  heads.kv = spec.kv_heads < ranks ? 1 : spec.kv_heads / ranks;
  heads.first_kv = rank / heads.replicas * heads.kv;
  return heads;
}

void require_sequence_split(const DecoderSpec& spec, int ranks, const std::string& model) {
  if (share_heads(spec, ranks)) return;
  std::string sizes;
  for (std::int64_t size = 1; size <= spec.heads; ++size)
    if (share_heads(spec, size)) sizes += fmt::format("{}{}", sizes.empty() ? "" : ", ", size);
  const std::string of_delta =
      spec.has_delta() ? fmt::format(", and in its delta layers {} key heads", spec.delta.k_heads) : std::string();
  fail(
      "--sequence_parallel_size {}: each rank attends with as many heads as any other, and {} has {} query and {} key "
      "and value heads{}; use one of {}",
      ranks, model, spec.heads, spec.kv_heads, of_delta, sizes);
}

}  // namespace so
