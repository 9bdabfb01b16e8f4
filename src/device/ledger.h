// Named accounting of memory: every byte that is planned or held stands under a name.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace so {

// device: where the model computes. pinned: host memory the device's copy engines reach. pageable: plain host memory.
// On the CPU device all three are plain memory, kept apart so that the books read the same.
enum class MemoryKind : std::uint8_t { device, pinned, pageable };
inline constexpr int memory_kinds = 3;
std::string_view name_of(MemoryKind kind);

// Thread-safe.
class Ledger {
 public:
  void add(MemoryKind kind, const std::string& name, std::size_t bytes);
  void remove(MemoryKind kind, const std::string& name, std::size_t bytes) noexcept;

  std::size_t held(MemoryKind kind) const;
  std::size_t peak(MemoryKind kind) const;  // the most ever held at once
  // Names with the most bytes each held at once, by kind.
  std::map<std::string, std::size_t> peaks(MemoryKind kind) const;
  // A table for people: kind, name, bytes; the total per kind last.
  std::string table() const;

 private:
  struct Entry {
    std::size_t held = 0, peak = 0;
  };
  struct Book {
    std::map<std::string, Entry> entries;
    std::size_t held = 0, peak = 0;
  };
  mutable std::mutex mutex_;
  std::array<Book, memory_kinds> books_;
};

}  // namespace so
