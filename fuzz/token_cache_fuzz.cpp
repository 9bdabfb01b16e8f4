// A token cache from untrusted bytes: an Error, or documents that can all be read. Most inputs would end at a checksum,
// so those of the header, the documents and the table are made right first where the sizes allow it.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "data/token_cache.h"

namespace {

constexpr std::size_t header_bytes = 4096, documents_at = 32, tokens_at = 56, table_checksum_at = 88,
                      content_checksum_at = 96, header_checksum_at = 4088;

std::uint64_t word(const std::vector<std::byte>& bytes, std::size_t at) {
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

void make_checksums_right(std::vector<std::byte>& bytes) {
  if (bytes.size() < header_bytes) return;
  const std::size_t room = bytes.size() - header_bytes;
  const std::uint64_t tokens = word(bytes, tokens_at), documents = word(bytes, documents_at);
  if (tokens <= room / 8 && documents <= room / 16 && 8 * tokens + 16 * documents == room) {
    const std::span<const std::byte> all(bytes);
    so::PieceHash documents_hash;
    documents_hash.add(all.subspan(header_bytes, 8 * tokens));
    const std::uint64_t content = documents_hash.value();
    const std::uint64_t table = so::xxh3(all.subspan(header_bytes + 8 * tokens));
    std::memcpy(bytes.data() + table_checksum_at, &table, 8);
    std::memcpy(bytes.data() + content_checksum_at, &content, 8);
  }
  const std::uint64_t header = so::xxh3(std::span<const std::byte>(bytes).first(header_checksum_at));
  std::memcpy(bytes.data() + header_checksum_at, &header, 8);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  // The first byte says whether the checksums are made right.
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> bytes(begin + 1, begin + size);
  if ((data[0] & 1) != 0) make_checksums_right(bytes);
  (void)so::read_token_cache_info(bytes, bytes.size());
  static const int memory = ::memfd_create("cache", 0);
  static const std::string path = "/proc/self/fd/" + std::to_string(memory);
  if (::ftruncate(memory, static_cast<off_t>(bytes.size())) != 0 ||
      ::pwrite(memory, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return 0;
  try {
    const std::uint64_t key = bytes.size() >= 24 ? word(bytes, 16) : 0;
    const so::TokenDataset dataset(so::File::open(path), key, 1000);
    std::int64_t tokens = 0;
    for (std::int64_t d = 0; d < dataset.size(); ++d) {
      tokens += dataset.length(d);
      try {
        const so::DocumentView document = dataset.document(d);
        if (document.ids.size() != static_cast<std::size_t>(dataset.length(d))) __builtin_trap();
        for (const std::int32_t id : document.ids)
          if (id < 0 || id >= 1000) __builtin_trap();
      } catch (const so::Error&) {  // its own checksum
      }
    }
    if (dataset.size() > 0 && tokens != dataset.counts().tokens) __builtin_trap();
  } catch (const so::Error&) {
  }
  return 0;
}
