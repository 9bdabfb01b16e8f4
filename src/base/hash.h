// A fast 64-bit hash of bytes, to tell one file content from another and to notice damage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "base/mix_bits.h"
#include "base/thread_pool.h"

namespace so {

// Not cryptographic: it finds accidents, not forgeries. The value is part of the names of caches and of the data keys
// that checkpoints record, and must not change. Depends on the bytes and the seed only (little-endian machines).
std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed = 0);
std::uint64_t hash_text(std::string_view text, std::uint64_t seed = 0);

// The same purpose for large inputs: pieces of 1 MiB are hashed in parallel, then their hashes. Another value than
// hash_bytes, the same for every pool. `passed`, if given, is called by any thread with each piece that is done.
std::uint64_t hash_large(std::span<const std::byte> bytes, ThreadPool& pool,
                         const std::function<void(std::span<const std::byte>)>& passed = {});

}  // namespace so
