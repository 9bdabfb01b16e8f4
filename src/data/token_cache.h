// Tokenised documents in one memory-mapped file.
//
// Layout, little-endian, every section aligned to 8 bytes:
//   header       TokenCacheHeader, 4096 bytes
//   documents    back to back; each its ids, then its targets (shifted, see example.h), both int32
//   table        one TokenCacheEntry a document, in record order
// All of it is checksummed (XXH3) and checked when the file is opened, several pieces at once; each document's checksum
// again when it is read, since a run lasts longer than what was checked at its start.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/thread_pool.h"
#include "base/xxh3.h"
#include "data/example.h"
#include "data/record_notes.h"

namespace so {

// The version of the file's layout alone: the contents of a cache, and so TokenDataset::key(), do not depend on it.
inline constexpr std::uint32_t kTokenCacheVersion = 3;

// The size of a cache of `tokens` tokens in `documents` documents.
std::uint64_t token_cache_bytes(std::uint64_t tokens, std::uint64_t documents);

// The fate of a file's records. Counts are of records or tokens; truncated documents are in `documents` too.
struct DatasetCounts {
  std::int64_t records = 0;         // in the file; a row that another program packed counts as its documents
  std::int64_t documents = 0;       // kept
  std::int64_t truncated = 0;       // records with more than max_length tokens (kept or dropped)
  std::int64_t dropped = 0;         // records without any trained token within max_length
  std::int64_t tokens = 0;          // in all documents
  std::int64_t trained_tokens = 0;  // targets that are not kIgnored
  std::int64_t longest = 0;         // tokens of the longest document
  std::int64_t special_tokens = 0;  // that stood in the text of the records

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

// The checksum of documents: pieces of 4 MiB are hashed, several at once where a pool does it, then their hashes.
class PieceHash {
 public:
  static constexpr std::size_t piece_bytes = std::size_t{4} << 20;
  void add(std::span<const std::byte> bytes);
  std::uint64_t value();  // of all so far; nothing may follow

  // The same of what is there at once, in a mapped file, whose pages it gives back. Each piece is shown to `look`, by
  // several threads.
  static std::uint64_t of(const MappedFile& file, std::span<const std::byte> bytes, ThreadPool* pool,
                          const std::function<void(std::span<const std::byte>)>& look);

 private:
  Xxh3Stream piece_;
  std::size_t in_piece_ = 0;
  std::vector<std::uint64_t> hashes_;
};

// The header of a file that begins like a token cache, as far as it can be trusted.
struct TokenCacheInfo {
  std::uint32_t version = 0;
  bool whole = false;  // a header of this version with the right checksum, whose sizes are the file's
  std::string data;    // the data file it was made from, as the header names it; untrusted text
  DatasetCounts counts;
};

// From a file's first bytes (at most 4096 are looked at) and its size: none if they are no token cache's, of whatever
// version, nor an unfinished one's.
std::optional<TokenCacheInfo> read_token_cache_info(std::span<const std::byte> begin, std::uint64_t file_bytes);

// A read-only sequence of documents. Any number of threads may read.
class Documents {
 public:
  virtual ~Documents() = default;

  std::int64_t size() const { return counts().documents; }
  virtual const DatasetCounts& counts() const = 0;
  // Identifies content, tokenizer and options; what a checkpoint records to notice that the data changed.
  virtual std::uint64_t key() const = 0;

  virtual std::int64_t length(std::int64_t document) const = 0;          // tokens, at least 1
  virtual std::int64_t trained_tokens(std::int64_t document) const = 0;  // at least 1
  // Throws Error if the document's bytes are damaged.
  virtual DocumentView document(std::int64_t document) const = 0;
};

// The documents of one cache. Its memory is the page cache's.
class TokenDataset final : public Documents {
 public:
  // Reads all of the file. Throws Error saying why if it is not this user's alone (io/cache_directory.h), not a whole,
  // undamaged token cache with this key, or holds what no writer puts there: an id or a target of no token of the
  // vocabulary, or counts that are not those of its documents.
  TokenDataset(const std::filesystem::path& path, std::uint64_t key, std::int32_t vocabulary_size,
               ThreadPool* pool = nullptr);
  // The same of an open file, whosever it is.
  TokenDataset(const File& file, std::uint64_t key, std::int32_t vocabulary_size, ThreadPool* pool = nullptr);

  const DatasetCounts& counts() const override { return counts_; }
  const RecordNotes& notes() const { return notes_; }
  std::uint64_t key() const override { return key_; }
  std::int64_t length(std::int64_t document) const override;
  std::int64_t trained_tokens(std::int64_t document) const override;
  DocumentView document(std::int64_t document) const override;

 private:
  std::int64_t first_token(std::int64_t document) const;

  void require_counts() const;
  bool is_token(std::int32_t id) const { return id >= 0 && id < vocabulary_size_; }

  std::filesystem::path path_;
  MappedFile file_;
  DatasetCounts counts_;
  RecordNotes notes_;
  std::uint64_t key_ = 0;
  std::int32_t vocabulary_size_;
  const std::int32_t* tokens_ = nullptr;
  std::span<const TokenCacheEntry> table_;
};

// Writes a cache file: add() in record order, then finish(), which puts the file in place atomically. Without finish()
// nothing is left behind; nor by a process that is killed, where the file system has files without a name. The table
// (16 bytes a document) is held in memory until then.
class TokenCacheWriter {
 public:
  // Writes to a sibling of its own until finish(), so that several may write the same cache; the last one stands. Only
  // its owner may read it. It is noted to be of `data`.
  TokenCacheWriter(std::filesystem::path path, std::uint64_t key, const std::filesystem::path& data = {});
  ~TokenCacheWriter();
  TokenCacheWriter(const TokenCacheWriter&) = delete;
  TokenCacheWriter& operator=(const TokenCacheWriter&) = delete;

  // Counts the example, and keeps it unless nothing of it is trained.
  void add(const Example& example);
  const DatasetCounts& counts() const { return counts_; }
  // `notes`: what TokenDataset::notes() shall be.
  void finish(const RecordNotes& notes = {});

 private:
  void append(std::span<const std::byte> bytes);
  void flush();
  void write(std::span<const std::byte> bytes, std::uint64_t at) const;

  std::filesystem::path path_, partial_, data_;
  std::uint64_t key_;
  int file_ = -1;              // its descriptor
  std::uint64_t written_ = 0;  // bytes of it
  PieceHash content_;
  DatasetCounts counts_;
  std::vector<TokenCacheEntry> table_;
  std::vector<std::byte> buffer_;
  bool named_ = false;  // the partial file has a name: it must be removed if it is not finished
  bool finished_ = false;
};

}  // namespace so
