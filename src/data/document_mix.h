// Several token caches as one sequence of documents: joined, weighted, and with some held out for evaluation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "data/token_cache.h"

namespace so {

// Documents of several caches, all in the caches' order or a choice of them. Copies share the caches.
class JoinedDocuments final : public Documents {
 public:
  // All documents. The key of a single cache is its own.
  explicit JoinedDocuments(std::vector<TokenDataset> caches);
  // Those of `all` at these places, which may repeat. `what` and the places' origin make another key.
  JoinedDocuments(const JoinedDocuments& all, std::vector<std::int64_t> places, std::string_view what);

  const DatasetCounts& counts() const override { return counts_; }
  std::uint64_t key() const override { return key_; }
  std::int64_t length(std::int64_t document) const override;
  std::int64_t trained_tokens(std::int64_t document) const override;
  DocumentView document(std::int64_t document) const override;

  // The first document of cache `index` among all documents; of the index behind the last, how many there are.
  std::int64_t first_of(std::size_t index) const { return first_[index]; }

 private:
  struct Place {
    const TokenDataset& cache;
    std::int64_t document;
  };
  Place place(std::int64_t document) const;
  void count_chosen();

  std::shared_ptr<const std::vector<TokenDataset>> caches_;
  std::vector<std::int64_t> first_;  // by cache, and one more
  std::optional<std::vector<std::int64_t>> chosen_;
  DatasetCounts counts_;
  std::uint64_t key_ = 0;
};

struct DocumentMix {
  // For each part, how often an epoch has its documents. 2: each twice; 0.5: half of them, the same in each epoch.
  // Empty: all once.
  std::vector<double> weights;
  std::vector<std::size_t> files;  // of each part
  // To be held out: below 1 a share of all documents, rounded up, else their number. Unset: none.
  std::optional<double> validation;
  std::uint64_t seed = 0;
};

struct MixedDocuments {
  JoinedDocuments training;
  std::optional<JoinedDocuments> validation;
};

// The documents that are held out are drawn from all, before weights, and keep the order of the files; no document is
// in both. The result is a function of the arguments alone. Throws Error if nothing is left of a part, or nothing to
// train on.
MixedDocuments mix_documents(JoinedDocuments all, const DocumentMix& mix);

// "2,0.5" as numbers, one for each of `parts`. Throws Error naming `option`.
std::vector<double> parse_weights(std::string_view text, std::size_t parts, std::string_view option);

}  // namespace so
