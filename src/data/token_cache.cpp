#include "data/token_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "io/cache_directory.h"

namespace so {
namespace {

constexpr std::array<char, 8> kMagic{'S', 'O', 'T', 'O', 'K', 'E', 'N', 'S'};
constexpr std::size_t kBufferBytes = std::size_t{4} << 20;

struct TokenCacheHeader {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kTokenCacheVersion;
  std::uint32_t header_bytes = 4096;
  std::uint64_t key = 0;
  DatasetCounts counts;
  std::uint64_t table_checksum = 0;
  std::uint64_t content_checksum = 0;
  std::array<char, 400> data{};       // the data file's name, its end if it is longer; zeros follow
  std::array<char, 3584> notes{};     // RecordNotes::text(); zeros follow
  std::uint64_t header_checksum = 0;  // of everything before it
};
static_assert(sizeof(TokenCacheHeader) == 4096 && RecordNotes::most_text < 3584 &&
              std::is_trivially_copyable_v<TokenCacheHeader>);

std::uint64_t checksum_of(const TokenCacheHeader& header) {
  return xxh3(std::as_bytes(std::span(&header, 1)).first(offsetof(TokenCacheHeader, header_checksum)));
}

// Ids are followed by targets, so one checksum over both needs no length.
std::uint32_t checksum_of(std::span<const std::int32_t> ids_and_targets) {
  return static_cast<std::uint32_t>(xxh3(std::as_bytes(ids_and_targets)));
}

// Whether the counts are those of a file of `file_bytes` bytes; no arithmetic on them overflows.
bool sizes_match(const DatasetCounts& counts, std::uint64_t file_bytes) {
  const std::uint64_t room = file_bytes - sizeof(TokenCacheHeader);
  const auto tokens = static_cast<std::uint64_t>(counts.tokens),
             documents = static_cast<std::uint64_t>(counts.documents);
  return counts.tokens >= 0 && counts.documents >= 0 && tokens <= room / 8 &&
         documents <= room / sizeof(TokenCacheEntry) && 8 * tokens + sizeof(TokenCacheEntry) * documents == room;
}

void put_name(decltype(TokenCacheHeader::data)& to, const std::string& name) {
  const std::size_t count = std::min(name.size(), to.size() - 1);
  std::copy(name.end() - static_cast<std::ptrdiff_t>(count), name.end(), to.begin());
}

}  // namespace

std::uint64_t token_cache_bytes(std::uint64_t tokens, std::uint64_t documents) {
  return sizeof(TokenCacheHeader) + 2 * sizeof(std::int32_t) * tokens + sizeof(TokenCacheEntry) * documents;
}

void PieceHash::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), piece_bytes - in_piece_);
    piece_.add(bytes.first(count));
    bytes = bytes.subspan(count);
    in_piece_ += count;
    if (in_piece_ < piece_bytes) return;
    hashes_.push_back(piece_.value());
    piece_ = Xxh3Stream();
    in_piece_ = 0;
  }
}

std::uint64_t PieceHash::value() {
  if (in_piece_ > 0) hashes_.push_back(piece_.value());
  return xxh3(std::as_bytes(std::span(hashes_)));
}

std::uint64_t PieceHash::of(const MappedFile& file, std::span<const std::byte> bytes, ThreadPool* pool,
                            const std::function<void(std::span<const std::byte>)>& look) {
  std::vector<std::uint64_t> hashes((bytes.size() + piece_bytes - 1) / piece_bytes);
  const auto work = [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      const auto piece = bytes.subspan(i * piece_bytes, std::min(piece_bytes, bytes.size() - i * piece_bytes));
      hashes[i] = xxh3(piece);
      look(piece);
      file.give_back(piece);
    }
  };
  const auto count = static_cast<std::int64_t>(hashes.size());
  if (pool != nullptr)
    pool->parallel_for(count, 1, work);
  else
    work(0, count);
  return xxh3(std::as_bytes(std::span(hashes)));
}

std::optional<TokenCacheInfo> read_token_cache_info(std::span<const std::byte> begin, std::uint64_t file_bytes) {
  TokenCacheHeader header;
  constexpr std::size_t known_of_every_version = offsetof(TokenCacheHeader, key);
  if (begin.size() < known_of_every_version || std::memcmp(begin.data(), kMagic.data(), kMagic.size()) != 0)
    return std::nullopt;
  std::memcpy(&header, begin.data(), std::min(begin.size(), sizeof header));
  TokenCacheInfo info;
  info.version = header.version;
  if (header.version != kTokenCacheVersion || begin.size() < sizeof header || file_bytes < sizeof header) return info;
  const auto end = std::find(header.data.begin(), header.data.end(), '\0');
  info.data.assign(header.data.begin(), end);
  info.counts = header.counts;
  info.whole = header.header_checksum == checksum_of(header) && sizes_match(header.counts, file_bytes);
  return info;
}

TokenDataset::TokenDataset(const std::filesystem::path& path, std::uint64_t key, std::int32_t vocabulary_size,
                           ThreadPool* pool)
    : TokenDataset(open_own_file(path), key, vocabulary_size, pool) {}

TokenDataset::TokenDataset(const File& file, std::uint64_t key, std::int32_t vocabulary_size, ThreadPool* pool)
    : path_(file.path()), file_(file), key_(key), vocabulary_size_(vocabulary_size) {
  const std::filesystem::path& path = path_;
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
  notes_ = RecordNotes::parse({header.notes.begin(), std::find(header.notes.begin(), header.notes.end(), '\0')});
  if (!sizes_match(counts_, bytes.size()))
    fail("{} is damaged: {} bytes are not {} tokens and {} documents", path.string(), bytes.size(), counts_.tokens,
         counts_.documents);
  const auto tokens = static_cast<std::uint64_t>(counts_.tokens),
             documents = static_cast<std::uint64_t>(counts_.documents);
  const std::byte* data = bytes.data() + sizeof header;
  tokens_ = reinterpret_cast<const std::int32_t*>(data);
  table_ = {reinterpret_cast<const TokenCacheEntry*>(data + 8 * tokens), static_cast<std::size_t>(documents)};
  if (header.table_checksum != xxh3(std::as_bytes(table_)))
    fail("{} is damaged: its table's checksum is wrong", path.string());
  if (first_token(0) != 0) fail("{} is damaged: its documents begin at token {}", path.string(), first_token(0));
  for (std::int64_t i = 0; i < size(); ++i)
    if (first_token(i) < 0 || first_token(i) >= first_token(i + 1))
      fail("{} is damaged: document {} has no extent", path.string(), i);
  require_counts();
  std::atomic<bool> foreign{false};
  const auto look = [&](std::span<const std::byte> piece) {
    const std::span<const std::int32_t> ids(reinterpret_cast<const std::int32_t*>(piece.data()), piece.size() / 4);
    if (!std::all_of(ids.begin(), ids.end(), [&](std::int32_t id) { return is_token(id) || id == kIgnored; }))
      foreign = true;
  };
  file_.advise(MappedFile::Advice::sequential);
  if (header.content_checksum != PieceHash::of(file_, {data, 8 * tokens}, pool, look))
    fail("{} is damaged: its documents' checksum is wrong", path.string());
  if (foreign)
    fail("{} is damaged: it has ids of no token, the vocabulary has {} tokens", path.string(), vocabulary_size);
  file_.advise(MappedFile::Advice::random);  // which is how batches read it
}

void TokenDataset::require_counts() const {
  const auto require = [&](bool right, const char* what) {
    if (!right) fail("{} is damaged: its number of {} is not that of its documents", path_.string(), what);
  };
  std::int64_t trained = 0, longest = 0;
  for (std::int64_t i = 0; i < size(); ++i) {
    const std::int64_t all = length(i), own = trained_tokens(i);
    require(own >= 1 && own <= all, "trained tokens");
    trained += own;
    longest = std::max(longest, all);
  }
  const DatasetCounts& c = counts_;
  require(c.trained_tokens == trained, "trained tokens");
  require(c.longest == longest, "the longest one's tokens");
  require(c.dropped >= 0 && c.records - c.dropped == c.documents, "records");
  require(c.truncated >= 0 && c.truncated <= c.records && c.special_tokens >= 0, "records");
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
  const DocumentView view{both.first(count), both.last(count)};
  std::int32_t trained = 0;
  bool tokens = true;
  for (const std::int32_t target : view.targets) {
    trained += target != kIgnored;
    tokens &= is_token(target) || target == kIgnored;
  }
  for (const std::int32_t id : view.ids) tokens &= is_token(id);
  if (!tokens || trained != entry.trained)
    fail("{} is damaged at document {}: {}; delete the file, it will be made again", path_.string(), document,
         tokens ? "it has another number of targets" : "it has ids of no token");
  return view;
}

TokenCacheWriter::TokenCacheWriter(std::filesystem::path path, std::uint64_t key, const std::filesystem::path& data)
    : path_(std::move(path)), partial_(path_), data_(data), key_(key) {
  static std::atomic<unsigned> counter{0};
  partial_ += fmt::format(".tmp-{}-{}", ::getpid(), counter.fetch_add(1));
  // Private from its first moment: who opens a file may read what is written into it later. What lies there under this
  // name is a dead process's.
  ::unlink(partial_.c_str());
  const std::filesystem::path directory = path_.has_parent_path() ? path_.parent_path() : ".";
  // A file without a name is gone when the process ends, however it ends. Some file systems (NFS) have none, and giving
  // it a name later needs /proc.
  named_ = ::access("/proc/self/fd", X_OK) != 0;
  if (!named_) file_ = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file_ < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) named_ = true;
  if (named_) file_ = ::open(partial_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file_ < 0) fail_io("create", partial_, errno);
  TokenCacheHeader
      header;  // the checksum of zero is no reader's; the rest says whose file this is if it is never finished
  put_name(header.data, data_.string());
  buffer_.resize(sizeof header);
  std::memcpy(buffer_.data(), &header, sizeof header);
}

TokenCacheWriter::~TokenCacheWriter() {
  if (!finished_ && named_) ::unlink(partial_.c_str());
  ::close(file_);
}

void TokenCacheWriter::add(const Example& example) {
  ++counts_.records;
  counts_.truncated += example.truncated;
  counts_.special_tokens += example.special;
  if (example.trained == 0) {
    ++counts_.dropped;
    return;
  }
  std::vector<std::int32_t> both = example.ids;
  both.insert(both.end(), example.targets.begin(), example.targets.end());
  table_.push_back({counts_.tokens, example.trained, checksum_of(both)});
  content_.add(std::as_bytes(std::span(both)));
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
  write(buffer_, written_);
  written_ += buffer_.size();
  buffer_.clear();
}

void TokenCacheWriter::write(std::span<const std::byte> bytes, std::uint64_t at) const {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(file_, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_io("write", partial_, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    at += static_cast<std::uint64_t>(n);
  }
}

void TokenCacheWriter::finish(const RecordNotes& notes) {
  SO_CHECK(!finished_, "finish() called twice");
  TokenCacheHeader header;
  header.key = key_;
  header.counts = counts_;
  header.table_checksum = xxh3(std::as_bytes(std::span(table_)));
  header.content_checksum = content_.value();
  put_name(header.data, data_.string());
  const std::string text = notes.text();
  std::copy(text.begin(), text.end(), header.notes.begin());
  header.header_checksum = checksum_of(header);
  flush();
  write(std::as_bytes(std::span(table_)), written_);  // not through the buffer, which would hold it once more
  write(std::as_bytes(std::span(&header, 1)), 0);
  while (::fsync(file_) != 0)
    if (errno != EINTR) fail_io("write", partial_, errno);
  if (!named_) {
    const std::string opened = fmt::format("/proc/self/fd/{}", file_);
    if (::linkat(AT_FDCWD, opened.c_str(), AT_FDCWD, partial_.c_str(), AT_SYMLINK_FOLLOW) != 0)
      fail_io("create", partial_, errno);
    named_ = true;
  }
  if (::rename(partial_.c_str(), path_.c_str()) != 0) fail_io("rename to", path_, errno);
  fsync_directory(path_.parent_path());
  finished_ = true;
}

}  // namespace so
