// Working memory of one thread, kept from call to call.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace so {

class Scratch {
 public:
  // Arrays of the given numbers of floats, on cache lines of their own, contents unspecified. What an earlier call
  // handed out is gone.
  template <class... Counts>
  std::array<float*, sizeof...(Counts)> carve(Counts... counts) {
    std::array<std::int64_t, sizeof...(Counts)> sizes = {round_up(counts)...};
    std::int64_t total = line;
    for (const std::int64_t size : sizes) total += size;
    if (memory_.size() < static_cast<std::size_t>(total)) {
      memory_.clear();  // nothing of it is worth copying
      memory_.resize(static_cast<std::size_t>(total));
    }
    std::array<float*, sizeof...(Counts)> arrays;
    float* next = reinterpret_cast<float*>(static_cast<std::uintptr_t>(round_up(static_cast<std::int64_t>(
                                               reinterpret_cast<std::uintptr_t>(memory_.data()) / sizeof(float)))) *
                                           sizeof(float));
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      arrays[i] = next;
      next += sizes[i];
    }
    return arrays;
  }

 private:
  static constexpr std::int64_t line = 16;  // floats in a cache line
  static constexpr std::int64_t round_up(std::int64_t count) { return (count + line - 1) / line * line; }

  std::vector<float> memory_;
};

}  // namespace so
