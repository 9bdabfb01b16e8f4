// Gradients by cuDNN in the scratch that a call has: at once, in parts, or with long documents in tiles.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>

#include "base/error.h"
#include "ops/attention_tiles.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/attention_call.h"
#include "ops/cuda/attention_long.h"

namespace so {
namespace {

std::int64_t largest_divisor(std::int64_t n, std::int64_t at_most) {
  for (std::int64_t d = std::min(n, at_most); d > 1; --d)
    if (n % d == 0) return d;
  return 1;
}

// How a gradient is cut: `shape` is the graph of one part. Either whole documents (dense) and whole key heads; or,
// where one key head's queries are too many, some query heads of one key head at a time, whose dk and dv are added up
// after.
struct Cut {
  SdpaShape shape;
  int head_parts = 1;  // of the query heads of a key head
};

std::int64_t partial_sums_rows(const SdpaShape& s, std::int64_t k_rows) { return s.ragged ? k_rows : s.length; }

// The largest parts that fit into `bytes`, as equal as can be, so that few graphs do them all.
std::optional<Cut> cut_gradient(const SdpaShape& whole, std::int64_t k_rows, std::int64_t bytes) {
  const auto fits = [&](const SdpaShape& s, std::int64_t other = 0) {
    return static_cast<std::int64_t>(CudnnSdpa::workspace(s)) + other <= bytes;
  };
  SdpaShape s = whole;
  for (std::int64_t batch = whole.ragged ? 1 : whole.batch; batch > 1;
       batch = largest_divisor(whole.batch, batch - 1)) {
    s.batch = batch;
    if (fits(s)) return Cut{s};
  }
  if (!whole.ragged) s.batch = 1;
  const std::int64_t group = whole.heads / whole.kv_heads;
  for (std::int64_t n = whole.kv_heads; n > 0; n = n > 1 ? largest_divisor(whole.kv_heads, n - 1) : 0) {
    s.kv_heads = n;
    s.heads = n * group;
    if (fits(s)) return Cut{s};
  }
  s.dk_width = s.dv_width = s.head_dim;
  for (std::int64_t parts = 2; parts <= group; ++parts) {
    s.heads = (group + parts - 1) / parts;
    if ((group + s.heads - 1) / s.heads != parts) continue;
    if (fits(s, 4 * parts * partial_sums_rows(s, k_rows) * s.head_dim + 2 * scratch_alignment))
      return Cut{s, static_cast<int>(parts)};
  }
  return std::nullopt;
}

// False: cuDNN does not take this window.
bool gradient_in_parts(CudnnSdpa& cudnn, AttentionCall call, const SdpaShape& whole, const Cut& cut) {
  const SdpaShape& part = cut.shape;
  if (part.window > 0 && !cudnn.takes(part)) return false;
  const std::int64_t dim = whole.head_dim, group = whole.heads / whole.kv_heads;
  SdpaMemory memory = call.memory(part);
  const bool partial = cut.head_parts > 1;
  const std::int64_t partial_rows = partial_sums_rows(part, call.k_rows());
  using bf16_bits = std::uint16_t;
  bf16_bits* const partial_dk = partial ? call.take<bf16_bits>(cut.head_parts * partial_rows * dim) : nullptr;
  bf16_bits* const partial_dv = partial ? call.take<bf16_bits>(cut.head_parts * partial_rows * dim) : nullptr;
  memory.workspace = call.scratch;
  memory.workspace_bytes = call.scratch_bytes();
  const SdpaMemory base = memory;

  const auto at = [&](SdpaTensor t, std::int64_t row, std::int64_t head) -> void* {
    const bool stats = t == SdpaTensor::stats;
    // Statistics are [batch, heads, length] or, ragged, [rows, heads].
    const std::int64_t elements = row * whole.width(t) + head * (!stats ? dim : whole.ragged ? 1 : whole.length);
    return static_cast<std::byte*>(base.data[static_cast<std::size_t>(t)]) + elements * (stats ? 4 : 2);
  };
  const auto set = [&](SdpaTensor t, void* p) { memory.data[static_cast<std::size_t>(t)] = p; };
  for (std::int64_t document = 0; document < whole.batch; document += part.batch)
    for (std::int64_t kv_head = 0; kv_head < whole.kv_heads; kv_head += part.kv_heads) {
      const std::int64_t row = document * whole.length;  // ragged has one part of documents
      for (const SdpaTensor t : {SdpaTensor::k, SdpaTensor::v, SdpaTensor::dk, SdpaTensor::dv})
        set(t, at(t, row, kv_head));
      for (int p = 0; p < cut.head_parts; ++p) {
        SdpaShape now = part;
        if (partial) {
          now.heads = std::min(part.heads, group - p * part.heads);
          set(SdpaTensor::dk, partial_dk + p * partial_rows * dim);
          set(SdpaTensor::dv, partial_dv + p * partial_rows * dim);
        }
        for (const SdpaTensor t : {SdpaTensor::q, SdpaTensor::out, SdpaTensor::dout, SdpaTensor::dq, SdpaTensor::stats})
          set(t, at(t, row, kv_head * group + p * part.heads));
        cudnn.run(call.stream, now, memory);
      }
      if (!partial) continue;
      const auto sums = [&](SdpaTensor t, const void* parts) {
        return PartialSums{
            {at(t, row, kv_head), whole.width(t)}, parts, cut.head_parts, static_cast<int>(dim), partial_rows};
      };
      add_partial_sums(call.stream, sums(SdpaTensor::dk, partial_dk), sums(SdpaTensor::dv, partial_dv),
                       part.ragged ? call.spans->cu_k.as<std::int32_t>() : nullptr,
                       static_cast<int>(call.spans->documents));
    }
  return true;
}

// Documents that follow each other, and how their gradient is cut.
struct Together {
  AttentionSpans spans;
  SdpaShape whole;
  std::optional<Cut> cut;  // none: they do not fit
};

Together together(const AttentionCall& call, std::size_t first, std::size_t count, std::int64_t longest) {
  Together some;
  some.spans = *call.spans;
  const auto at = static_cast<std::int64_t>(first), documents = static_cast<std::int64_t>(count);
  some.spans.cu_q = call.spans->cu_q.rows(at, documents + 1);
  some.spans.cu_k = call.spans->cu_k.rows(at, documents + 1);
  some.spans.starts = call.spans->starts.subspan(first, count + 1);
  some.spans.documents = documents;
  some.spans.max_q = some.spans.max_k = longest;
  AttentionCall part = call;
  part.spans = &some.spans;
  some.whole = part.shape(true, !call.spans->any_order);
  some.cut = cut_gradient(some.whole, call.k_rows(),
                          static_cast<std::int64_t>(call.scratch_bytes()) - AttentionCall::memory_bytes(some.whole));
  return some;
}

// The smallest tiles: only tests have so little scratch.
constexpr std::int64_t least_tile_rows = 128;

// The largest tiles that fit into the call's scratch for documents of up to `longest` tokens; none if no tiles do.
std::optional<AttentionTiles> tiles_that_fit(const AttentionCall& call, std::int64_t longest) {
  const auto room = static_cast<std::int64_t>(call.scratch_bytes());
  AttentionTiles tiles = attention_tiles(call.q->heads, call.k->heads);
  while (tiles.rows > least_tile_rows && tiles.bytes(call.q->head_dim, longest) > room) tiles.rows /= 2;
  return tiles.bytes(call.q->head_dim, longest) <= room ? std::optional(tiles) : std::nullopt;
}

// Documents one after another: those of which cuDNN cannot take one head at once in tiles, of the others as many
// together as fit. False, and nothing is enqueued: there is too little scratch, or the host does not know where
// documents begin.
bool gradient_by_documents(CudnnSdpa& cudnn, const AttentionCall& call) {
  const std::span<const std::int32_t> starts = call.spans->starts;
  if (call.window() > 0 || starts.empty()) return false;
  const auto documents = static_cast<std::size_t>(call.spans->documents);
  const auto length = [&](std::size_t d) { return std::int64_t{starts[d + 1]} - starts[d]; };
  std::int64_t longest_at_once = 0, longest_in_tiles = 0;
  for (std::size_t d = 0; d < documents; ++d) {
    if (length(d) <= std::max(longest_at_once, longest_in_tiles)) continue;
    std::int64_t& longest = together(call, d, 1, length(d)).cut ? longest_at_once : longest_in_tiles;
    longest = length(d);
  }
  std::optional<LongDocuments> in_tiles;
  if (longest_in_tiles > 0) {
    const std::optional<AttentionTiles> tiles = tiles_that_fit(call, longest_in_tiles);
    if (!tiles) return false;
    in_tiles.emplace(cudnn, call, *tiles, longest_in_tiles);
  }

  for (std::size_t d = 0, end = 0; d < documents; d = end) {
    end = d + 1;
    std::int64_t most = length(d);
    if (most == 0) continue;
    Together some = together(call, d, 1, most);
    if (!some.cut) {
      in_tiles->gradient(starts[d], most);
      continue;
    }
    SO_CHECK(!call.dense, "a document of {} fits where {} as long do not", most, documents);
    for (; end < documents; ++end) {
      most = std::max(most, length(end));
      Together more = together(call, d, end + 1 - d, most);
      if (!more.cut) break;
      some = std::move(more);
    }
    AttentionCall part = call;
    part.spans = &some.spans;
    const bool done = gradient_in_parts(cudnn, part, some.whole, *some.cut);
    SO_CHECK(done, "a window in a gradient by documents");
  }
  return true;
}

}  // namespace

bool CudaAttention::cudnn_backward(const AttentionCall& call) {
  const SdpaShape whole = call.shape(true, !call.spans->any_order);
  const std::int64_t room = static_cast<std::int64_t>(call.scratch_bytes()) - AttentionCall::memory_bytes(whole);
  if (const std::optional<Cut> cut = cut_gradient(whole, call.k_rows(), room))
    return gradient_in_parts(*cudnn_, call, whole, *cut);
  return gradient_by_documents(*cudnn_, call);
}

}  // namespace so
