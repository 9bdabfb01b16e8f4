// XXH3 of 64 bits, by libxxhash: a checksum that finds accidents, not forgeries. `xxhsum -H3 FILE` prints it too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace so {

std::uint64_t xxh3(std::span<const std::byte> bytes);

// The same of bytes that come in pieces; their sizes do not matter.
class Xxh3Stream {
 public:
  Xxh3Stream();
  ~Xxh3Stream();
  Xxh3Stream(Xxh3Stream&&) noexcept;
  Xxh3Stream& operator=(Xxh3Stream&&) noexcept;

  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const;  // of all bytes so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace so
