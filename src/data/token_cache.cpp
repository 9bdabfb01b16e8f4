#include "data/token_cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "data/hash.h"

namespace so {
namespace {

constexpr std::array<char, 8> kMagic{'S', 'O', 'T', 'O', 'K', 'E', 'N', 'S'};
constexpr std::size_t kBufferBytes = std::size_t{4} << 20;

struct TokenCacheHeader {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kTokenCacheVersion;
  std::uint32_t header_bytes = 128;
  std::uint64_t key = 0;
  DatasetCounts counts;
  std::uint64_t table_checksum = 0;
  std::array<std::uint64_t, 4> reserved{};
  std::uint64_t header_checksum = 0;  // of everything before it
};
static_assert(sizeof(TokenCacheHeader) == 128 && std::is_trivially_copyable_v<TokenCacheHeader>);

std::uint64_t checksum_of(const TokenCacheHeader& header) {
  return hash_bytes(std::as_bytes(std::span(&header, 1)).first(offsetof(TokenCacheHeader, header_checksum)));
}

// Ids are followed by targets, so one checksum over both needs no length.
std::uint32_t checksum_of(std::span<const std::int32_t> ids_and_targets) {
  return static_cast<std::uint32_t>(hash_bytes(std::as_bytes(ids_and_targets)));
}

}  // namespace

TokenDataset::TokenDataset(const std::filesystem::path& path, std::uint64_t key) : path_(path), file_(path), key_(key) {
  file_.advise(MappedFile::Advice::random);
  const std::span<const std::byte> bytes = file_.bytes();
  TokenCacheHeader header;
  if (bytes.size() < sizeof header) fail("{} is no token cache: it has only {} bytes", path.string(), bytes.size());
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMagic) fail("{} is no token cache", path.string());
  if (header.version != kTokenCacheVersion)
    fail("{} is a token cache of version {}, this program reads version {}", path.string(), header.version,
         kTokenCacheVersion);
  if (header.header_checksum != checksum_of(header))
    fail("{} is damaged: its header's checksum is wrong", path.string());
  if (header.key != key) fail("{} was made from other data, tokenizer or options", path.string());

  // With the checksum right these are our writer's figures; the bounds are checked all the same, before any pointer is
  // made from them.
  counts_ = header.counts;
  const auto room = static_cast<std::uint64_t>(bytes.size() - sizeof header);
  const auto tokens = static_cast<std::uint64_t>(counts_.tokens),
             documents = static_cast<std::uint64_t>(counts_.documents);
  if (counts_.tokens < 0 || counts_.documents < 0 || tokens > room / 8 || documents > room / sizeof(TokenCacheEntry) ||
      8 * tokens + sizeof(TokenCacheEntry) * documents != room)
    fail("{} is damaged: {} bytes are not {} tokens and {} documents", path.string(), bytes.size(), counts_.tokens,
         counts_.documents);
  const std::byte* data = bytes.data() + sizeof header;
  tokens_ = reinterpret_cast<const std::int32_t*>(data);
  table_ = {reinterpret_cast<const TokenCacheEntry*>(data + 8 * tokens), static_cast<std::size_t>(documents)};
  if (header.table_checksum != hash_bytes(std::as_bytes(table_)))
    fail("{} is damaged: its table's checksum is wrong", path.string());
  for (std::int64_t i = 0; i < size(); ++i)
    if (first_token(i) < 0 || first_token(i) >= first_token(i + 1))
      fail("{} is damaged: document {} has no extent", path.string(), i);
}

std::int64_t TokenDataset::first_token(std::int64_t document) const {
  return document == size() ? counts_.tokens : table_[static_cast<std::size_t>(document)].first_token;
}

std::int64_t TokenDataset::length(std::int64_t document) const {
  SO_CHECK(document >= 0 && document < size(), "document {} of {}", document, size());
  return first_token(document + 1) - first_token(document);
}

std::int64_t TokenDataset::trained_tokens(std::int64_t document) const {
  SO_CHECK(document >= 0 && document < size(), "document {} of {}", document, size());
  return table_[static_cast<std::size_t>(document)].trained;
}

DocumentView TokenDataset::document(std::int64_t document) const {
  const auto count = static_cast<std::size_t>(length(document));
  const TokenCacheEntry& entry = table_[static_cast<std::size_t>(document)];
  const std::span<const std::int32_t> both(tokens_ + 2 * entry.first_token, 2 * count);
  if (checksum_of(both) != entry.checksum)
    fail("{} is damaged at document {}; delete the file, it will be made again", path_.string(), document);
  return {both.first(count), both.last(count)};
}

TokenCacheWriter::TokenCacheWriter(std::filesystem::path path, std::uint64_t key)
    : path_(std::move(path)), partial_(path_), key_(key) {
  partial_ += ".partial";
  file_ = File::create(partial_);
  buffer_.resize(sizeof(TokenCacheHeader));  // zeros: no reader takes them for a header
}

TokenCacheWriter::~TokenCacheWriter() {
  if (!finished_) ::unlink(partial_.c_str());
}

void TokenCacheWriter::add(const Example& example) {
  ++counts_.records;
  counts_.truncated += example.truncated;
  if (example.trained == 0) {
    ++counts_.dropped;
    return;
  }
  std::vector<std::int32_t> both = example.ids;
  both.insert(both.end(), example.targets.begin(), example.targets.end());
  table_.push_back({counts_.tokens, example.trained, checksum_of(both)});
  append(std::as_bytes(std::span(both)));

  const auto length = static_cast<std::int64_t>(example.ids.size());
  ++counts_.documents;
  counts_.tokens += length;
  counts_.trained_tokens += example.trained;
  counts_.longest = std::max(counts_.longest, length);
}

void TokenCacheWriter::append(std::span<const std::byte> bytes) {
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  if (buffer_.size() >= kBufferBytes) flush();
}

void TokenCacheWriter::flush() {
  file_.write_all(buffer_);
  buffer_.clear();
}

void TokenCacheWriter::finish() {
  SO_CHECK(!finished_, "finish() called twice");
  TokenCacheHeader header;
  header.key = key_;
  header.counts = counts_;
  header.table_checksum = hash_bytes(std::as_bytes(std::span(table_)));
  header.header_checksum = checksum_of(header);
  append(std::as_bytes(std::span(table_)));
  flush();
  file_.pwrite_all(std::as_bytes(std::span(&header, 1)), 0);
  file_.sync();
  if (::rename(partial_.c_str(), path_.c_str()) != 0) fail_io("rename to", path_, errno);
  fsync_directory(path_.parent_path());
  finished_ = true;
}

}  // namespace so
