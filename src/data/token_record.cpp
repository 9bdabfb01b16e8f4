#include "data/token_record.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/record_keys.h"

namespace so {
namespace {

namespace dom = simdjson::dom;
using Ends = std::vector<std::int64_t>;  // of documents, ascending; the last one is the number of tokens

// Of TRL, ms-swift, verl and Megatron: one value a token, aligned with input_ids, 1 for what is trained.
constexpr std::array<std::string_view, 6> loss_masks = {"completion_mask", "assistant_masks", "assistant_mask",
                                                        "loss_mask",       "response_mask",   "loss_scale"};

// How rows that hold several documents say so.
enum class Packing { positions, lengths, bounds, numbers };
constexpr std::array<std::pair<std::string_view, Packing>, 14> packings = {{{"position_ids", Packing::positions},
                                                                            {"input_pos", Packing::positions},
                                                                            {"seq_lengths", Packing::lengths},
                                                                            {"seq_lens", Packing::lengths},
                                                                            {"cu_seqlens", Packing::bounds},
                                                                            {"cu_seq_lens", Packing::bounds},
                                                                            {"cu_seq_lens_q", Packing::bounds},
                                                                            {"cu_seq_lens_k", Packing::bounds},
                                                                            {"seq_idx", Packing::numbers},
                                                                            {"sequence_ids", Packing::numbers},
                                                                            {"segment_ids", Packing::numbers},
                                                                            {"document_ids", Packing::numbers},
                                                                            {"doc_ids", Packing::numbers},
                                                                            {"attention_mask", Packing::numbers}}};

dom::array list_of(std::string_view key, const dom::element& value) {
  dom::array list, row;
  if (value.get_array().get(list) != simdjson::SUCCESS)
    fail("\"{}\" is {}; it must be an array of integers", key, type_of(value));
  if (list.size() == 1 && list.at(0).get_array().get(row) == simdjson::SUCCESS) return row;
  return list;
}

std::vector<std::int32_t> ids_of(std::string_view key, const dom::element& value, std::int32_t vocabulary_size,
                                 bool may_be_ignored) {
  const dom::array array = list_of(key, value);
  std::vector<std::int32_t> ids;
  ids.reserve(array.size());
  for (const dom::element item : array) {
    std::int64_t id = 0;
    if (item.get_int64().get(id) != simdjson::SUCCESS)
      fail("\"{}\"[{}] is {}; it must be a 32-bit integer", key, ids.size(),
           item.is_number() ? "not a whole number in range" : type_of(item));
    if (may_be_ignored && id == kIgnored) {
      ids.push_back(kIgnored);
      continue;
    }
    if (id < 0 || id >= vocabulary_size)
      fail("\"{}\"[{}] is {}; token ids of this model are 0 to {}{}", key, ids.size(), id, vocabulary_size - 1,
           may_be_ignored ? ", -100 for a label that is not trained" : "");
    ids.push_back(static_cast<std::int32_t>(id));
  }
  return ids;
}

// Numbers and booleans, as doubles; fractions are kept.
std::vector<double> numbers_of(std::string_view key, const dom::element& value) {
  const dom::array array = list_of(key, value);
  std::vector<double> numbers;
  numbers.reserve(array.size());
  for (const dom::element item : array) {
    const auto number = number_of(item);
    if (!number) fail("\"{}\"[{}] is {}; it must be a number", key, numbers.size(), type_of(item));
    numbers.push_back(*number);
  }
  return numbers;
}

void require_one_a_token(std::string_view key, std::size_t entries, std::size_t tokens) {
  if (entries != tokens)
    fail("\"{}\" has {} entries, \"input_ids\" {}; there must be one a token", key, entries, tokens);
}

void leave_out_masked(std::string_view key, const std::vector<double>& mask, std::vector<std::int32_t>& labels) {
  require_one_a_token(key, mask.size(), labels.size());
  for (std::size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] != 0 && mask[i] != 1)
      fail("\"{}\"[{}] is {}; a token is trained (1) or not (0), weights of losses are not supported", key, i, mask[i]);
    if (mask[i] == 0) labels[i] = kIgnored;
  }
}

// The number that a document's token i must have, from that of the token before; each kind has its own way to begin.
Ends ends_of_positions(std::string_view key, const std::vector<double>& positions) {
  Ends ends;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const bool begins = positions[i] == 0;
    if (!begins && (i == 0 || positions[i] != positions[i - 1] + 1))
      fail("\"{}\"[{}] is {}; positions that do not count from 0 in each document are not supported", key, i,
           positions[i]);
    if (begins && i > 0) ends.push_back(static_cast<std::int64_t>(i));
  }
  ends.push_back(static_cast<std::int64_t>(positions.size()));
  return ends;
}

// 1,1,1,2,2,2 or 0,0,0,1,1,1.
Ends ends_of_numbers(std::string_view key, const std::vector<double>& numbers) {
  Ends ends;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const bool first = i == 0 && (numbers[i] == 0 || numbers[i] == 1);
    const bool next = i > 0 && numbers[i] == numbers[i - 1] + 1;
    if (!first && !next && (i == 0 || numbers[i] != numbers[i - 1]))
      fail("\"{}\"[{}] is {}; of a row of several documents it must number them in their order (1,1,1,2,2,2)", key, i,
           numbers[i]);
    if (next) ends.push_back(static_cast<std::int64_t>(i));
  }
  ends.push_back(static_cast<std::int64_t>(numbers.size()));
  return ends;
}

Ends ends_of_lengths(std::string_view key, const std::vector<double>& lengths, std::size_t tokens) {
  Ends ends;
  double sum = 0;
  for (const double length : lengths) {
    if (length < 1 || length != std::floor(length))
      fail("\"{}\" has {}; a document has one token at least", key, length);
    sum += length;
    if (sum > static_cast<double>(tokens)) break;
    ends.push_back(static_cast<std::int64_t>(sum));
  }
  if (sum != static_cast<double>(tokens))
    fail("the lengths in \"{}\" are not those of {} tokens together; is the row padded? Remove the padding", key,
         tokens);
  return ends;
}

Ends ends_of_bounds(std::string_view key, std::vector<double> bounds, std::size_t tokens) {
  if (bounds.empty() || bounds.front() != 0) fail("\"{}\" must begin with 0", key);
  for (std::size_t i = bounds.size() - 1; i > 0; --i) bounds[i] -= bounds[i - 1];
  bounds.erase(bounds.begin());
  return ends_of_lengths(key, bounds, tokens);
}

// Nothing where it says nothing: an attention mask of ones.
std::optional<Ends> ends_of(std::string_view key, Packing packing, const std::vector<double>& values,
                            std::size_t tokens) {
  if (packing == Packing::positions || packing == Packing::numbers) require_one_a_token(key, values.size(), tokens);
  if (key == "attention_mask") {
    if (std::find(values.begin(), values.end(), 0.0) != values.end())
      fail("\"attention_mask\" holds a 0: the record is padded; remove the padding, batches need none");
    if (std::all_of(values.begin(), values.end(), [](double value) { return value == 1; })) return std::nullopt;
  }
  switch (packing) {
    case Packing::positions:
      return ends_of_positions(key, values);
    case Packing::numbers:
      return ends_of_numbers(key, values);
    case Packing::lengths:
      return ends_of_lengths(key, values, tokens);
    case Packing::bounds:
      return ends_of_bounds(key, values, tokens);
  }
  SO_BUG("packing {}", static_cast<int>(packing));
}

}  // namespace

std::vector<std::string_view> token_keys() {
  std::vector<std::string_view> keys = {"input_ids", "labels"};
  keys.insert(keys.end(), loss_masks.begin(), loss_masks.end());
  for (const auto& packing : packings) keys.push_back(packing.first);
  return keys;
}

bool is_token_key(std::string_view key) {
  static const std::vector<std::string_view> keys = token_keys();
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

TokenRecord token_record(const dom::object& record, std::int32_t vocabulary_size) {
  const auto find = [&record](std::string_view wanted) {
    std::optional<dom::element> found;
    for (const auto& [key, value] : record)
      if (key == wanted) found = value;  // the last of them counts
    return found;
  };
  TokenRecord tokens;
  tokens.ids = ids_of("input_ids", *find("input_ids"), vocabulary_size, false);
  if (tokens.ids.empty()) fail("\"input_ids\" is empty; remove the record");
  const auto labels = find("labels");
  const bool has_labels = labels && !labels->is_null();
  tokens.labels = has_labels ? ids_of("labels", *labels, vocabulary_size, true) : tokens.ids;
  if (tokens.labels.size() != tokens.ids.size())
    fail("\"labels\" has {} entries, \"input_ids\" {}; there must be one label a token", tokens.labels.size(),
         tokens.ids.size());
  for (const std::string_view key : loss_masks)
    if (const auto mask = find(key); mask && !says_nothing(*mask))
      leave_out_masked(key, numbers_of(key, *mask), tokens.labels);
  std::string_view divided_by;
  for (const auto& [key, packing] : packings) {
    const auto value = find(key);
    if (!value || says_nothing(*value)) continue;
    const auto ends = ends_of(key, packing, numbers_of(key, *value), tokens.ids.size());
    if (!ends) continue;
    if (!divided_by.empty() && *ends != tokens.ends)
      fail("\"{}\" divides the row into other documents than \"{}\"; remove one of them", key, divided_by);
    divided_by = key;
    tokens.ends = *ends;
  }
  return tokens;
}

}  // namespace so
