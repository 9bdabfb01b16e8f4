#include "data/document_mix.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>

#include "base/comma_list.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "data/data_files.h"
#include "data/sampler.h"

namespace so {
namespace {

constexpr double largest_weight = 1000;

DatasetCounts sum_of(const std::vector<TokenDataset>& caches) {
  DatasetCounts sum;
  for (const TokenDataset& cache : caches) {
    const DatasetCounts& c = cache.counts();
    sum.records += c.records;
    sum.documents += c.documents;
    sum.truncated += c.truncated;
    sum.dropped += c.dropped;
    sum.tokens += c.tokens;
    sum.trained_tokens += c.trained_tokens;
    sum.longest = std::max(sum.longest, c.longest);
    sum.special_tokens += c.special_tokens;
  }
  return sum;
}

std::uint64_t joint_key(const std::vector<TokenDataset>& caches) {
  if (caches.size() == 1) return caches.front().key();
  std::string text = "joined";
  for (const TokenDataset& cache : caches) text += fmt::format(" {:016x}", cache.key());
  return hash_text(text);
}

// Draws `count` of `from` by seed and purpose; they keep their order.
std::vector<std::int64_t> draw(const std::vector<std::int64_t>& from, std::int64_t count, std::uint64_t seed,
                               std::string_view purpose) {
  const auto size = static_cast<std::int64_t>(from.size());
  std::vector<std::int64_t> order = epoch_order(size, seed ^ hash_text(purpose), 0, true);
  order.resize(static_cast<std::size_t>(count));
  std::sort(order.begin(), order.end());
  for (std::int64_t& place : order) place = from[static_cast<std::size_t>(place)];
  return order;
}

std::int64_t held_out(double asked, std::int64_t documents) {
  const double count = asked < 1 ? std::ceil(asked * static_cast<double>(documents)) : asked;
  if (count >= static_cast<double>(documents))
    fail("--validation_split {} leaves nothing to train on: there are {} records", asked, documents);
  return static_cast<std::int64_t>(count);
}

// The places of one part as an epoch has them.
std::vector<std::int64_t> weighted(const std::vector<std::int64_t>& part, double weight, std::size_t index,
                                   std::uint64_t seed) {
  std::vector<std::int64_t> places;
  const double whole = std::floor(weight);
  for (double copy = 0; copy < whole; ++copy) places.insert(places.end(), part.begin(), part.end());
  const auto rest = static_cast<std::int64_t>(std::llround((weight - whole) * static_cast<double>(part.size())));
  const std::vector<std::int64_t> drawn = draw(part, rest, seed, fmt::format("part {}", index));
  places.insert(places.end(), drawn.begin(), drawn.end());
  if (places.empty())
    fail("--data_weights {} leaves none of the {} records of part {} of --data; give it more", weight, part.size(),
         index + 1);
  return places;
}

}  // namespace

JoinedDocuments::JoinedDocuments(std::vector<TokenDataset> caches)
    : caches_(std::make_shared<const std::vector<TokenDataset>>(std::move(caches))),
      first_(1, 0),
      counts_(sum_of(*caches_)),
      key_(joint_key(*caches_)) {
  SO_CHECK(!caches_->empty(), "no token cache");
  for (const TokenDataset& cache : *caches_) first_.push_back(first_.back() + cache.size());
}

JoinedDocuments::JoinedDocuments(const JoinedDocuments& all, std::vector<std::int64_t> places, std::string_view what)
    : caches_(all.caches_),
      first_(all.first_),
      chosen_(std::move(places)),
      key_(hash_text(fmt::format("{} of {:016x}", what, all.key_))) {
  SO_CHECK(!all.chosen_, "a choice of a choice");
  count_chosen();
}

void JoinedDocuments::count_chosen() {
  counts_ = {};
  counts_.records = counts_.documents = static_cast<std::int64_t>(chosen_->size());
  for (std::int64_t i = 0; i < counts_.documents; ++i) {
    counts_.tokens += length(i);
    counts_.trained_tokens += trained_tokens(i);
    counts_.longest = std::max(counts_.longest, length(i));
  }
}

JoinedDocuments::Place JoinedDocuments::place(std::int64_t document) const {
  SO_CHECK(document >= 0 && document < counts_.documents, "document {} of {}", document, counts_.documents);
  const std::int64_t at = chosen_ ? (*chosen_)[static_cast<std::size_t>(document)] : document;
  // No cache is empty, so the place is in the last one that begins at or before it.
  const auto next = std::upper_bound(first_.begin(), first_.end(), at);
  const auto cache = static_cast<std::size_t>(next - first_.begin()) - 1;
  return {(*caches_)[cache], at - first_[cache]};
}

std::int64_t JoinedDocuments::length(std::int64_t document) const {
  const Place p = place(document);
  return p.cache.length(p.document);
}
std::int64_t JoinedDocuments::trained_tokens(std::int64_t document) const {
  const Place p = place(document);
  return p.cache.trained_tokens(p.document);
}
DocumentView JoinedDocuments::document(std::int64_t document) const {
  const Place p = place(document);
  return p.cache.document(p.document);
}

MixedDocuments mix_documents(JoinedDocuments all, const DocumentMix& mix) {
  if (mix.weights.empty() && !mix.validation) return {std::move(all), std::nullopt};
  std::vector<std::int64_t> rest(static_cast<std::size_t>(all.size())), out;
  for (std::size_t i = 0; i < rest.size(); ++i) rest[i] = static_cast<std::int64_t>(i);
  std::string what;
  if (mix.validation) {
    out = draw(rest, held_out(*mix.validation, all.size()), mix.seed, "validation");
    std::vector<std::int64_t> kept;
    std::set_difference(rest.begin(), rest.end(), out.begin(), out.end(), std::back_inserter(kept));
    rest = std::move(kept);
    what = fmt::format("all but {} by seed {}", out.size(), mix.seed);
  }
  std::vector<std::int64_t> places;
  std::size_t file = 0;
  for (std::size_t part = 0; part < mix.weights.size(); ++part) {
    const std::int64_t begin = all.first_of(file), end = all.first_of(file += mix.files[part]);
    const auto from = std::lower_bound(rest.begin(), rest.end(), begin), to = std::lower_bound(from, rest.end(), end);
    const auto of_part = weighted({from, to}, mix.weights[part], part, mix.seed);
    places.insert(places.end(), of_part.begin(), of_part.end());
    what += fmt::format(" {} files x {} by seed {}", mix.files[part], mix.weights[part], mix.seed);
  }
  if (mix.weights.empty()) places = std::move(rest);
  MixedDocuments mixed{JoinedDocuments(all, std::move(places), what), std::nullopt};
  const std::size_t held = out.size();
  if (mix.validation)
    mixed.validation.emplace(all, std::move(out), fmt::format("{} held out by seed {}", held, mix.seed));
  return mixed;
}

std::vector<double> parse_weights(std::string_view text, std::size_t parts, std::string_view option) {
  std::vector<double> weights;
  for (const std::string_view number : between_commas(text)) {
    double weight = 0;
    const auto [stop, error] = std::from_chars(number.data(), number.data() + number.size(), weight);
    if (error != std::errc() || stop != number.data() + number.size() || !(weight > 0) || weight > largest_weight)
      fail("{} {}: {} is no number above 0 and at most {}", option, printable(text), printable(number), largest_weight);
    weights.push_back(weight);
  }
  if (weights.size() != parts)
    fail("{} {}: weights: {}; parts of --data: {}; give each part one", option, printable(text), weights.size(), parts);
  return weights;
}

}  // namespace so
