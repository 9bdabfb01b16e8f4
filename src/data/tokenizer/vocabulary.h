// A two-way table between strings and ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace so {

// Ids may have holes; memory grows with the highest id, which must be below max_vocabulary.
class Vocabulary {
 public:
  static constexpr std::int32_t max_vocabulary = 1 << 22;  // 16 times the largest published one

  enum class Added { yes, string_taken, id_taken };
  Added add(std::int32_t id, std::string_view string);  // adds nothing unless `yes`

  std::int32_t end_id() const { return static_cast<std::int32_t>(entries_.size()); }  // highest id + 1
  std::int32_t count() const { return count_; }
  bool contains(std::int32_t id) const {
    return id >= 0 && id < end_id() && entries_[static_cast<std::size_t>(id)].used;
  }
  std::string_view string(std::int32_t id) const;    // "" for an unused id
  std::int32_t find(std::string_view string) const;  // -1: none

 private:
  struct Entry {
    std::uint64_t offset = 0;
    std::uint32_t length = 0;
    bool used = false;
  };
  std::size_t slot_of(std::string_view string) const;
  void grow();

  std::string arena_;
  std::vector<Entry> entries_;       // by id
  std::vector<std::int32_t> slots_;  // open addressing, -1: free; at most half full
  std::int32_t count_ = 0;
};

}  // namespace so
