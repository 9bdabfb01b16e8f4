#include "ranks/agreement.h"

#include <cstddef>

#include "base/error.h"
#include "base/file.h"
#include "ranks/together.h"

namespace so {
namespace {

// A name, a value and so on, each with a zero byte behind it, which neither has in it.
std::string packed(const RankFacts& facts) {
  std::string text;
  for (const auto& [name, value] : facts) text.append(name).append(1, '\0').append(value).append(1, '\0');
  return text;
}

RankFacts unpacked(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size(); at += words.back().size() + 1)
    words.push_back(text.substr(at, text.find('\0', at) - at));
  RankFacts facts;
  for (std::size_t i = 0; i + 1 < words.size(); i += 2) facts.emplace_back(words[i], words[i + 1]);
  return facts;
}

}  // namespace

void require_agreement(Communicator& ranks, const RankFacts& facts, const std::string& advice) {
  if (ranks.size() == 1) return;
  const std::vector<std::string> texts = ranks.all_gather(packed(facts));
  const RankFacts first = unpacked(texts[0]);
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    const RankFacts own = unpacked(texts[rank]);
    for (std::size_t i = 0; i < first.size(); ++i) {
      const bool there = i < own.size() && own[i].first == first[i].first;
      if (there && own[i].second == first[i].second) continue;
      fail_on_all(fmt::format("rank {} differs from rank 0 in {}: {}, not {}; {}", rank, first[i].first,
                              there ? printable(own[i].second) : "unknown to it", printable(first[i].second), advice));
    }
    fail_on_all(fmt::format("rank {} differs from rank 0 in what it knows of the run; {}", rank, advice));
  }
}

}  // namespace so
