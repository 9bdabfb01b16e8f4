// Lays out the scratch of an op.
#pragma once

#include <cstddef>
#include <cstdint>

namespace so {

// Places one array after another, each at a multiple of 256 bytes.
class Places {
 public:
  std::size_t next(std::int64_t elements, std::size_t element_bytes) {
    const std::size_t at = end_;
    end_ = (at + static_cast<std::size_t>(elements) * element_bytes + 255) / 256 * 256;
    return at;
  }
  std::size_t end() const { return end_; }

 private:
  std::size_t end_ = 0;
};

}  // namespace so
