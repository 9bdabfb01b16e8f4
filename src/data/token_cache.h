// Tokenised documents in one memory-mapped file.
//
// Layout, little-endian, every section aligned to 8 bytes:
//   header       TokenCacheHeader, 128 bytes
//   documents    back to back; each its ids, then its targets (shifted, see example.h), both int32
//   table        one TokenCacheEntry a document, in record order
// Header and table are checksummed and checked when the file is opened, each document's checksum when it is read, so
// that a damaged file is noticed without reading all of it first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/file.h"
#include "data/example.h"

namespace so {

inline constexpr std::uint32_t kTokenCacheVersion = 1;

// What became of a file's records. Counts are of records or tokens; truncated documents are in `documents` too.
struct DatasetCounts {
  std::int64_t records = 0;         // in the file
  std::int64_t documents = 0;       // kept
  std::int64_t truncated = 0;       // records with more than max_length tokens (kept or dropped)
  std::int64_t dropped = 0;         // records without any trained token within max_length
  std::int64_t tokens = 0;          // in all documents
  std::int64_t trained_tokens = 0;  // targets that are not kIgnored
  std::int64_t longest = 0;         // tokens of the longest document

  bool operator==(const DatasetCounts&) const = default;
};

// Views of one document; valid while the TokenDataset lives.
struct DocumentView {
  std::span<const std::int32_t> ids;
  std::span<const std::int32_t> targets;  // as many
};

struct TokenCacheEntry {
  std::int64_t first_token = 0;  // tokens of all documents before this one
  std::int32_t trained = 0;      // trained tokens of this document
  std::uint32_t checksum = 0;    // of its ids and targets
};
static_assert(sizeof(TokenCacheEntry) == 16);

// A read-only set of documents. Its memory is the page cache's. Any number of threads may read.
class TokenDataset {
 public:
  // Throws Error saying why if the file is not a whole, undamaged token cache with this key.
  TokenDataset(const std::filesystem::path& path, std::uint64_t key);

  std::int64_t size() const { return counts_.documents; }
  const DatasetCounts& counts() const { return counts_; }
  // Identifies content, tokenizer and options; what a checkpoint records to notice that the data changed.
  std::uint64_t key() const { return key_; }

  std::int64_t length(std::int64_t document) const;          // tokens, at least 1
  std::int64_t trained_tokens(std::int64_t document) const;  // at least 1
  // Throws Error if the document's bytes are damaged.
  DocumentView document(std::int64_t document) const;

 private:
  std::int64_t first_token(std::int64_t document) const;

  std::filesystem::path path_;
  MappedFile file_;
  DatasetCounts counts_;
  std::uint64_t key_ = 0;
  const std::int32_t* tokens_ = nullptr;
  std::span<const TokenCacheEntry> table_;
};

// Writes a cache file: add() in record order, then finish(), which puts the file in place atomically. Without finish()
// nothing is left behind. The table (16 bytes a document) is held in memory until then.
class TokenCacheWriter {
 public:
  // Writes to "PATH.partial" until finish(); the caller sees to it that nobody else does.
  TokenCacheWriter(std::filesystem::path path, std::uint64_t key);
  ~TokenCacheWriter();
  TokenCacheWriter(const TokenCacheWriter&) = delete;
  TokenCacheWriter& operator=(const TokenCacheWriter&) = delete;

  // Counts the example, and keeps it unless nothing of it is trained.
  void add(const Example& example);
  const DatasetCounts& counts() const { return counts_; }
  void finish();

 private:
  void append(std::span<const std::byte> bytes);
  void flush();

  std::filesystem::path path_, partial_;
  std::uint64_t key_;
  File file_;
  DatasetCounts counts_;
  std::vector<TokenCacheEntry> table_;
  std::vector<std::byte> buffer_;
  bool finished_ = false;
};

}  // namespace so
