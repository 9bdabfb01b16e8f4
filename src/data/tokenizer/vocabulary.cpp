#include "data/tokenizer/vocabulary.h"

#include "base/error.h"
#include "data/tokenizer/table_hash.h"

namespace so {

std::string_view Vocabulary::string(std::int32_t id) const {
  if (!contains(id)) return {};
  const Entry& entry = entries_[static_cast<std::size_t>(id)];
  return std::string_view(arena_).substr(entry.offset, entry.length);
}

std::size_t Vocabulary::slot_of(std::string_view wanted) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = table_hash(wanted) & mask;
  while (slots_[slot] >= 0 && string(slots_[slot]) != wanted) slot = (slot + 1) & mask;
  return slot;
}

std::int32_t Vocabulary::find(std::string_view wanted) const { return slots_.empty() ? -1 : slots_[slot_of(wanted)]; }

void Vocabulary::grow() {
  slots_.assign(slots_.empty() ? 1024 : slots_.size() * 2, -1);
  for (std::int32_t id = 0; id < end_id(); ++id) {
    if (contains(id)) slots_[slot_of(string(id))] = id;
  }
}

Vocabulary::Added Vocabulary::add(std::int32_t id, std::string_view added) {
  SO_CHECK(id >= 0 && id < max_vocabulary, "id {}", id);
  if (contains(id)) return Added::id_taken;
  if (static_cast<std::size_t>(count_ + 1) * 2 > slots_.size()) grow();
  const std::size_t slot = slot_of(added);
  if (slots_[slot] >= 0) return Added::string_taken;
  if (id >= end_id()) entries_.resize(static_cast<std::size_t>(id) + 1);
  entries_[static_cast<std::size_t>(id)] = {arena_.size(), static_cast<std::uint32_t>(added.size()), true};
  arena_.append(added);
  slots_[slot] = id;
  ++count_;
  return Added::yes;
}

}  // namespace so
