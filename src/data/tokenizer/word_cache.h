// Remembers the ids of recent short words. One thread at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "data/tokenizer/table_hash.h"

namespace so {

// Direct-mapped: a word is looked for in one place and replaces what was there.
class WordCache {
 public:
  WordCache() : entries_(1 << 15) {}

  static bool fits(std::string_view word) { return word.size() <= max_bytes; }

  // Appends the word's ids if they are known. The word must fit and not be empty.
  bool append(std::string_view word, std::vector<std::int32_t>& ids) const {
    const Entry& entry = entries_[place(word)];
    if (entry.length != word.size() || std::memcmp(entry.word.data(), word.data(), word.size()) != 0) return false;
    ids.insert(ids.end(), entry.ids.begin(), entry.ids.begin() + entry.count);
    return true;
  }

  // Remembers ids[first..], if they are few enough.
  void remember(std::string_view word, const std::vector<std::int32_t>& ids, std::size_t first) {
    const std::size_t count = ids.size() - first;
    if (count > max_ids) return;
    Entry& entry = entries_[place(word)];
    entry.length = static_cast<std::uint8_t>(word.size());
    entry.count = static_cast<std::uint8_t>(count);
    std::memcpy(entry.word.data(), word.data(), word.size());
    std::copy(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end(), entry.ids.begin());
  }

 private:
  static constexpr std::size_t max_bytes = 30;
  static constexpr std::size_t max_ids = 8;
  struct alignas(64) Entry {  // a cache line
    std::uint8_t length = 0;  // 0: free
    std::uint8_t count = 0;
    std::array<char, max_bytes> word{};
    std::array<std::int32_t, max_ids> ids{};
  };
  static_assert(sizeof(Entry) == 64);

  std::size_t place(std::string_view word) const { return table_hash(word) & (entries_.size() - 1); }

  std::vector<Entry> entries_;
};

}  // namespace so
