#include "base/xxh3.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace so {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// By Debian's xxhsum: printf TEXT | xxhsum -H3.
TEST(Xxh3, IsTheOneThatXxhsumPrints) {
  EXPECT_EQ(xxh3({}), 0x2d06800538d394c2u);
  EXPECT_EQ(xxh3(bytes_of("a")), 0xe6c632b61e964e1fu);
  EXPECT_EQ(xxh3(bytes_of("abc")), 0x78af5f94892f3950u);
}

TEST(Xxh3, PiecesDoNotMatter) {
  std::vector<std::byte> bytes(100'003);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 + (i >> 8));
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, std::size_t{4096}, bytes.size()}) {
    Xxh3Stream stream;
    for (std::size_t at = 0; at < bytes.size(); at += piece)
      stream.add(std::span(bytes).subspan(at, std::min(piece, bytes.size() - at)));
    EXPECT_EQ(stream.value(), xxh3(bytes)) << piece;
  }
}

}  // namespace
}  // namespace so
