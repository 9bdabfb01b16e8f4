#include "data/tokenizer/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "base/error.h"

namespace so {
namespace {

// Up to here looking for the best pair by a linear scan is cheaper than keeping a heap.
constexpr std::size_t few = 48;
constexpr std::uint32_t no_merge = std::numeric_limits<std::uint32_t>::max();

std::uint64_t pair_hash(std::int32_t left, std::int32_t right) {
  const std::uint64_t key =
      static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  return (key ^ key >> 29) * 0x9E3779B97F4A7C15u >> 20;
}

bool is_later(const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
}

}  // namespace

Bpe::Bpe(const std::vector<Merge>& merges) : slots_(std::bit_ceil(merges.size() * 2 + 2)) {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    SO_CHECK(merge.left >= 0 && merge.right >= 0 && merge.result >= 0, "merge {}", rank);
    std::size_t slot = pair_hash(merge.left, merge.right) & mask;
    while (slots_[slot].left >= 0) slot = (slot + 1) & mask;
    slots_[slot] = {merge.left, merge.right, static_cast<std::uint32_t>(rank), merge.result};
  }
}

const Bpe::Slot* Bpe::find(std::int32_t left, std::int32_t right) const {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t slot = pair_hash(left, right) & mask; slots_[slot].left >= 0; slot = (slot + 1) & mask) {
    if (slots_[slot].left == left && slots_[slot].right == right) return &slots_[slot];
  }
  return nullptr;
}

void Bpe::merge(std::span<const std::int32_t> symbols, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  if (symbols.size() <= few) {
    merge_few(symbols, ids);
  } else {
    merge_many(symbols, scratch, ids);
  }
}

void Bpe::merge_few(std::span<const std::int32_t> symbols, std::vector<std::int32_t>& ids) const {
  std::array<std::int32_t, few> symbol;
  std::array<std::uint32_t, few> rank;  // of the merge of symbols i and i+1
  std::array<std::int32_t, few> result;
  std::size_t count = symbols.size();
  std::copy(symbols.begin(), symbols.end(), symbol.begin());
  const auto look_up = [&](std::size_t i) {
    const Slot* slot = i + 1 < count ? find(symbol[i], symbol[i + 1]) : nullptr;
    rank[i] = slot != nullptr ? slot->rank : no_merge;
    result[i] = slot != nullptr ? slot->result : 0;
  };
  for (std::size_t i = 0; i < count; ++i) look_up(i);
  while (count > 1) {
    const std::size_t best =
        static_cast<std::size_t>(std::min_element(rank.begin(), rank.begin() + count) - rank.begin());
    if (rank[best] == no_merge) break;
    symbol[best] = result[best];
    std::copy(symbol.begin() + best + 2, symbol.begin() + count, symbol.begin() + best + 1);
    std::copy(rank.begin() + best + 2, rank.begin() + count, rank.begin() + best + 1);
    std::copy(result.begin() + best + 2, result.begin() + count, result.begin() + best + 1);
    --count;
    look_up(best);
    if (best > 0) look_up(best - 1);
  }
  ids.insert(ids.end(), symbol.begin(), symbol.begin() + count);
}

// Symbols are a linked list; the heap holds every mergeable pair, and pairs that no longer exist are recognised when
// they come up: a symbol only grows, so the same two ids at the same place are the same pair.
void Bpe::merge_many(std::span<const std::int32_t> given, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  SO_CHECK(given.size() < static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()), "a word of {} symbols",
           given.size());
  const auto count = static_cast<std::int32_t>(given.size());
  const auto symbol = [&](std::int32_t at) -> Scratch::Symbol& { return symbols[static_cast<std::size_t>(at)]; };
  constexpr std::int32_t gone = -1;

  symbols.clear();
  for (std::int32_t i = 0; i < count; ++i) {
    symbols.push_back({given[static_cast<std::size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  }
  heap.clear();
  const auto candidate = [&](std::int32_t at) {
    const std::int32_t next = symbol(at).next;
    const Slot* slot = next >= 0 ? find(symbol(at).id, symbol(next).id) : nullptr;
    if (slot != nullptr) heap.push_back({slot->rank, at, slot->left, slot->right});
    return slot != nullptr;
  };
  for (std::int32_t i = 0; i < count; ++i) candidate(i);
  std::make_heap(heap.begin(), heap.end(), is_later);

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), is_later);
    const Scratch::Candidate best = heap.back();
    heap.pop_back();
    Scratch::Symbol& left = symbol(best.at);
    if (left.id != best.left || left.next < 0 || symbol(left.next).id != best.right) continue;
    left.id = find(best.left, best.right)->result;
    Scratch::Symbol& right = symbol(left.next);
    right.id = gone;
    left.next = right.next;
    if (left.next >= 0) symbol(left.next).previous = best.at;
    if (candidate(best.at)) std::push_heap(heap.begin(), heap.end(), is_later);
    if (left.previous >= 0 && candidate(left.previous)) std::push_heap(heap.begin(), heap.end(), is_later);
  }
  for (std::int32_t at = 0; at >= 0; at = symbol(at).next) ids.push_back(symbol(at).id);
}

}  // namespace so
