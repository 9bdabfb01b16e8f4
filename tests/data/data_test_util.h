// The data room's tests share a tokenizer one can check by eye, temporary files, and data sets made of lengths.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/text_encoder.h"
#include "data/token_cache.h"

namespace so::test {

using Ids = std::vector<std::int32_t>;

// One token a byte. kBegin before and kEnd after a document where `begin`, `end` say so; and one merge, of the two
// bytes "\n\n", so that a boundary between two texts can vanish in their concatenation.
class ByteEncoder : public TextEncoder {
 public:
  static constexpr std::int32_t kEnd = 256, kBegin = 257, kMerged = 258, kVocabulary = 259;

  bool begin = false, end = false, merge = false;
  std::optional<std::int32_t> end_id = kEnd;
  std::int32_t vocabulary = kVocabulary;
  std::string print = "bytes";

  Ids encode(std::string_view text, bool add_special_tokens) const override {
    Ids ids;
    if (begin && add_special_tokens) ids.push_back(kBegin);
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (merge && text.substr(i, 2) == "\n\n") {
        ids.push_back(kMerged);
        ++i;
      } else {
        ids.push_back(static_cast<unsigned char>(text[i]));
      }
    }
    if (end && add_special_tokens) ids.push_back(kEnd);
    return ids;
  }
  std::optional<std::int32_t> end_token() const override { return end_id; }
  std::int32_t vocabulary_size() const override { return vocabulary; }
  std::string fingerprint() const override { return print; }
};

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "superoffload-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path path;
};

inline void write_file(const std::filesystem::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
}

inline std::string read_file(const std::filesystem::path& path) {
  std::stringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

// The message of the Error that `body` throws; "" if it throws none.
template <class Body>
std::string error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Documents of the given lengths. Token j of document d is 1000*d + j; every target but each document's first
// `untrained` and its last is the next token.
inline TokenDataset dataset_of(const std::filesystem::path& path, const std::vector<int>& lengths, int untrained = 0) {
  TokenCacheWriter writer(path, 1);
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    Example example;
    for (int j = 0; j < lengths[d]; ++j) {
      example.ids.push_back(static_cast<int>(1000 * d) + j);
      example.targets.push_back(j < untrained || j + 1 == lengths[d] ? kIgnored : example.ids.back() + 1);
      example.trained += example.targets.back() != kIgnored;
    }
    writer.add(example);
  }
  writer.finish();
  return TokenDataset(path, 1, 1 << 30);
}

}  // namespace so::test
