// A model whose tokens are split among ranks (Ulysses): which heads each rank attends with. In delta layers each has as
// many key heads as any other, with their value heads.
#pragma once

#include <cstdint>
#include <string>

#include "model/spec.h"

namespace so {

// The heads of one rank of a group. Each rank has as many query heads as any other. Key and value heads are dealt out
// with their queries where there are enough; where there are fewer than ranks, each is replicated on the ranks of its
// queries, which costs the memory and the message of one head and no arithmetic. To split those by position instead
// would need a second softmax over the parts.
struct RankHeads {
  std::int64_t q = 0, kv = 0;              // on each rank
  std::int64_t first_q = 0, first_kv = 0;  // of this one
  std::int64_t replicas = 1;               // consecutive ranks that have the same key and value head
};
RankHeads rank_heads(const AttentionShape& shape, int rank, int ranks);

// Throws Error, which names the sizes that would do, unless that number of ranks can share the heads equally. `model`:
// as the user called it.
void require_sequence_split(const DecoderSpec& spec, int ranks, const std::string& model);

}  // namespace so
