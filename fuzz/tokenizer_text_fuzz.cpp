// Any bytes as text: the ids decode to the repaired and normalized text, whole and streamed, and the hand-written
// splitters cut as PCRE2 does. The first byte chooses the split pattern. Then the same text for a model on characters
// with byte fallback, whose ids must not depend on where it is cut, and any ids for its decoder.
#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/byte_level.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/utf8.h"

namespace {

const std::string words = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)";
const std::string spaces = R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::array<std::string, 5> patterns = {
    words + R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)" + spaces,
    words + R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)" + spaces,
    words + R"(\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+)" + spaces,
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*)" +
        spaces,
    std::string(so::gpt2_split_pattern),
};

// 256 bytes and the merges of the commonest English pairs; NFC.
so::Tokenizer make_tokenizer(const std::string& pattern) {
  nlohmann::json vocab = nlohmann::json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[so::spell_bytes(std::string(1, static_cast<char>(byte)))] = byte;
  nlohmann::json merges = nlohmann::json::array();
  const std::array<std::array<std::string, 2>, 8> pairs = {
      {{"t", "h"}, {"th", "e"}, {"Ġ", "the"}, {"i", "n"}, {"e", "r"}, {"a", "a"}, {"aa", "aa"}, {"Ġ", "Ġ"}}};
  for (const auto& [left, right] : pairs) {
    vocab[left + right] = vocab.size();
    merges.push_back({left, right});
  }
  const nlohmann::json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  const nlohmann::json split = {
      {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  const nlohmann::json json = {{"version", "1.0"},
                               {"added_tokens", nlohmann::json::array()},
                               {"normalizer", {{"type", "NFC"}}},
                               {"decoder", byte_level},
                               {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}}},
                               {"post_processor", nullptr},
                               {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
  return so::Tokenizer::parse(json.dump(), "fuzz");
}

// Llama 2's structure; `cut`: with a merge of bytes, which never happens, a text is encoded in one piece.
so::Tokenizer make_character_tokenizer(bool cut) {
  nlohmann::json vocab = {{"<unk>", 0}};
  for (int byte = 0; byte < 256; ++byte) vocab[fmt::format("<0x{:02X}>", byte)] = byte + 1;
  for (const char* character : {"▁", "t", "h", "e", "a", "é", "中", "\n"}) vocab[character] = vocab.size();
  nlohmann::json merges = nlohmann::json::array();
  const std::array<std::array<std::string, 2>, 9> pairs = {{{"t", "h"},
                                                            {"th", "e"},
                                                            {"▁", "the"},
                                                            {"▁", "▁"},
                                                            {"▁▁", "▁▁"},
                                                            {"a", "a"},
                                                            {"aa", "aa"},
                                                            {"é", "▁"},
                                                            {"e", "中"}}};
  for (const auto& [left, right] : pairs) {
    if (!vocab.contains(left + right)) vocab[left + right] = vocab.size();
    merges.push_back({left, right});
  }
  if (!cut) {
    vocab["<0xFE><0xFE>"] = vocab.size();
    merges.push_back({"<0xFE>", "<0xFE>"});
  }
  const auto json = nlohmann::json::parse(R"({"version": "1.0",
      "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                     {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
      "decoder": {"type": "Sequence", "decoders": [
                  {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                  {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
      "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": )" +
                                          vocab.dump() + R"(, "merges": )" + merges.dump() + "}}");
  return so::Tokenizer::parse(json.dump(), "fuzz");
}

struct Setup {
  explicit Setup(const std::string& pattern)
      : tokenizer(make_tokenizer(pattern)),
        fast({so::SplitStep{pattern, true, so::SplitBehavior::Isolated, false, "fuzz"}}, true),
        regex({so::SplitStep{pattern, true, so::SplitBehavior::Isolated, false, "fuzz"}}, false) {}
  so::Tokenizer tokenizer;
  so::PreTokenizer fast;
  so::PreTokenizer regex;
};

void require(bool condition) {
  if (!condition) std::abort();
}

void check_stream(const so::Tokenizer& tokenizer, const std::vector<std::int32_t>& ids, const std::string& text) {
  so::StreamDecoder decoder(tokenizer, false);
  std::string streamed;
  for (const std::int32_t id : ids) {
    const std::string piece = decoder.push(id);
    require(so::is_valid_utf8(piece));
    streamed += piece;
  }
  require(streamed + decoder.finish() == text);
}

void check_characters(const std::string& text, std::string_view bytes) {
  static const so::Tokenizer cut = make_character_tokenizer(true);
  static const so::Tokenizer whole = make_character_tokenizer(false);
  const auto ids = cut.encode(text, false);
  require(ids == whole.encode(text, false));
  std::string expected;  // "▁" comes back as a space
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool space = std::string_view(text).substr(at).starts_with("▁");
    expected += space ? ' ' : text[at];
    if (space) at += 2;
  }
  require(cut.decode(ids, false) == expected);
  check_stream(cut, ids, expected);
  std::vector<std::int32_t> any;
  for (const char byte : bytes) any.push_back(static_cast<unsigned char>(byte) + (any.size() % 3 == 2 ? 200 : 0));
  const std::string decoded = cut.decode(any, false);
  require(so::is_valid_utf8(decoded));
  check_stream(cut, any, decoded);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::array<Setup, 5> setups = {Setup(patterns[0]), Setup(patterns[1]), Setup(patterns[2]),
                                              Setup(patterns[3]), Setup(patterns[4])};
  if (size == 0) return 0;
  const Setup& setup = setups[data[0] % setups.size()];
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);

  std::string repaired;
  so::append_repaired_utf8(repaired, bytes);
  std::string storage;
  const std::string text(so::to_nfc(repaired, storage));
  require(so::is_valid_utf8(text));

  const auto ids = setup.tokenizer.encode(bytes, false);
  require(setup.tokenizer.decode(ids, false) == text);
  check_stream(setup.tokenizer, ids, text);
  check_characters(repaired, bytes);

  std::vector<std::string> fast;
  std::vector<std::string> regex;
  so::PreTokenizer::Scratch fast_scratch;
  so::PreTokenizer::Scratch regex_scratch;
  setup.fast.run(text, true, fast_scratch, [&](std::string_view piece) { fast.emplace_back(piece); });
  setup.regex.run(text, true, regex_scratch, [&](std::string_view piece) { regex.emplace_back(piece); });
  require(fast == regex);
  return 0;
}
