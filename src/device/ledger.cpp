#include "device/ledger.h"

#include <algorithm>

#include "base/error.h"
#include "base/quantities.h"

namespace so {

std::string_view name_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::device:
      return "device";
    case MemoryKind::pinned:
      return "pinned";
    case MemoryKind::pageable:
      return "pageable";
  }
  SO_BUG("memory kind {}", static_cast<int>(kind));
}

void Ledger::add(MemoryKind kind, const std::string& name, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  Book& book = books_[static_cast<std::size_t>(kind)];
  Entry& entry = book.entries[name];
  entry.held += bytes;
  entry.peak = std::max(entry.peak, entry.held);
  book.held += bytes;
  book.peak = std::max(book.peak, book.held);
}

void Ledger::remove(MemoryKind kind, const std::string& name, std::size_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  Book& book = books_[static_cast<std::size_t>(kind)];
  const auto entry = book.entries.find(name);
  if (entry != book.entries.end()) entry->second.held -= std::min(entry->second.held, bytes);
  book.held -= std::min(book.held, bytes);
}

std::size_t Ledger::held(MemoryKind kind) const {
  std::lock_guard lock(mutex_);
  return books_[static_cast<std::size_t>(kind)].held;
}

std::size_t Ledger::peak(MemoryKind kind) const {
  std::lock_guard lock(mutex_);
  return books_[static_cast<std::size_t>(kind)].peak;
}

std::map<std::string, std::size_t> Ledger::peaks(MemoryKind kind) const {
  std::lock_guard lock(mutex_);
  std::map<std::string, std::size_t> result;
  for (const auto& [name, entry] : books_[static_cast<std::size_t>(kind)].entries) result[name] = entry.peak;
  return result;
}

std::string Ledger::table() const {
  std::string text;
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::pinned, MemoryKind::pageable}) {
    const auto entries = peaks(kind);
    if (entries.empty()) continue;
    for (const auto& [name, bytes] : entries)
      text += fmt::format("  {:<9} {:<28} {:>10}\n", name_of(kind), name, format_bytes(bytes));
    text += fmt::format("  {:<9} {:<28} {:>10}\n", name_of(kind), "at most at once", format_bytes(peak(kind)));
  }
  return text;
}

}  // namespace so
