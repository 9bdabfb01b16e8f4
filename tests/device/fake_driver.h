// A driver that pins as little as a test wants.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/host_pinning.h"

namespace so::test {

class FakeDriver {
 public:
  static constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max();
  std::size_t most_at_once = no_limit, most_in_all = no_limit;  // of the program's pages
  std::size_t most_allocated = no_limit;                        // of the driver's own, at once
  std::size_t window = no_limit;  // mapped pages of another such range have another offset on the device

  std::size_t pinned() const { return sum(pinned_); }
  std::size_t pinned_blocks() const { return pinned_.size(); }
  std::size_t allocated() const { return allocated_bytes_; }
  bool idle() const { return pinned_.empty() && allocated_.empty(); }

  PinningCalls calls() {
    return {.pin = [this](void* data, std::size_t bytes) -> std::string {
              if (bytes > most_at_once) return "invalid argument";
              if (bytes > most_in_all || pinned() > most_in_all - bytes) return "out of memory";
              EXPECT_TRUE(pinned_.emplace(data, bytes).second) << "pinned twice";
              return {};
            },
            .unpin = [this](void* data) { EXPECT_EQ(pinned_.erase(data), 1u) << "was not pinned"; },
            .allocate = [this](std::size_t bytes, std::string& reason) -> void* {
              if (bytes > most_allocated) {
                reason = "no pages";
                return nullptr;
              }
              auto memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
              void* const data = memory.get();
              allocated_bytes_ += bytes;
              allocated_.emplace(data, std::move(memory));
              return data;
            },
            .free = [this](void* data) { EXPECT_EQ(allocated_.erase(data), 1u) << "was not allocated"; },
            .address = [this](void* data) -> void* {
              const auto at = reinterpret_cast<std::uintptr_t>(data);
              return reinterpret_cast<void*>(at + (window == no_limit ? 0 : at / window * 4096));
            }};
  }

 private:
  static std::size_t sum(const std::map<void*, std::size_t>& blocks) {
    std::size_t bytes = 0;
    for (const auto& [data, size] : blocks) bytes += size;
    return bytes;
  }

  std::map<void*, std::size_t> pinned_;
  std::map<void*, std::unique_ptr<std::byte[]>> allocated_;
  std::size_t allocated_bytes_ = 0;
};

}  // namespace so::test
