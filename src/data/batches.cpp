#include "data/batches.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/sequence_slice.h"

namespace so {
namespace {

void clear(MicroBatch& batch) {
  batch.ids.clear();
  batch.targets.clear();
  batch.positions.clear();
  batch.cu_seqlens.assign(1, 0);
  batch.tokens = batch.trained_tokens = batch.rows = batch.padded_tokens = 0;
  batch.sequence_tokens = batch.sequence_trained = batch.sequence_begin = batch.filler = 0;
}

void append_document(const Documents& dataset, std::int64_t document, MicroBatch& batch) {
  const DocumentView view = dataset.document(document);
  batch.ids.insert(batch.ids.end(), view.ids.begin(), view.ids.end());
  batch.targets.insert(batch.targets.end(), view.targets.begin(), view.targets.end());
  for (std::size_t i = 0; i < view.ids.size(); ++i) batch.positions.push_back(static_cast<std::int32_t>(i));
  SO_CHECK(batch.ids.size() <= std::numeric_limits<std::int32_t>::max(), "a micro-batch of {} tokens",
           batch.ids.size());
  batch.cu_seqlens.push_back(static_cast<std::int32_t>(batch.ids.size()));
  batch.tokens = static_cast<std::int64_t>(batch.ids.size());
  batch.trained_tokens += dataset.trained_tokens(document);
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

void take_slice(MicroBatch& batch, const SequencePlace& place) {
  if (place.size == 1 || batch.tokens == 0) return;
  const std::int64_t own = batch.tokens;
  for (; batch.tokens < place.size; ++batch.tokens) {
    batch.ids.push_back(0);
    batch.targets.push_back(kIgnored);
    batch.positions.push_back(static_cast<std::int32_t>(batch.tokens - own));
  }
  if (batch.tokens > own) batch.cu_seqlens.push_back(static_cast<std::int32_t>(batch.tokens));
  batch.sequence_tokens = batch.tokens;
  batch.sequence_trained = batch.trained_tokens;
  const std::int64_t begin = slice_begin(batch.tokens, place.size, place.rank),
                     end = slice_begin(batch.tokens, place.size, place.rank + 1);
  for (std::vector<std::int32_t>* values : {&batch.ids, &batch.targets, &batch.positions}) {
    values->erase(values->begin() + end, values->end());
    values->erase(values->begin(), values->begin() + begin);
  }
  batch.tokens = end - begin;
  batch.sequence_begin = begin;
  batch.filler = end - std::min(end, std::max(begin, own));
  batch.trained_tokens =
      std::count_if(batch.targets.begin(), batch.targets.end(), [](std::int32_t target) { return target >= 0; });
}

BatchIterator::BatchIterator(const Documents& dataset, BatchOptions options) : dataset_(dataset), options_(options) {
  SO_CHECK(dataset.size() > 0, "no documents");
  SO_CHECK(options.batch_size > 0 && options.gradient_accumulation_steps > 0, "batches of {} rows, {} of them a step",
           options.batch_size, options.gradient_accumulation_steps);
  SO_CHECK(options.rank >= 0 && options.rank < options.ranks, "rank {} of {}", options.rank, options.ranks);
  SO_CHECK(options.sequence.rank >= 0 && options.sequence.rank < options.sequence.size, "slice {} of {}",
           options.sequence.rank, options.sequence.size);
  SO_CHECK(!options.packing || options.max_length >= dataset.counts().longest, "rows of {}, a document of {} tokens",
           options.max_length, dataset.counts().longest);
}

RowPlan BatchIterator::rows_of(std::int64_t epoch) const {
  std::vector<std::int64_t> order = epoch_order(dataset_.size(), options_.seed, epoch, options_.shuffle);
  if (!options_.packing) return single_document_rows(std::move(order));
  return packed_rows(
      order, [this](std::int64_t document) { return dataset_.length(document); }, options_.max_length);
}

void BatchIterator::enter(std::int64_t epoch) {
  if (planned_epoch_ == epoch) return;
  rows_ = rows_of(epoch);
  planned_epoch_ = epoch;
}

std::int64_t BatchIterator::rows_per_step() const {
  return options_.batch_size * options_.gradient_accumulation_steps * options_.ranks;
}

std::int64_t BatchIterator::micro_batches_of(std::int64_t rows) const { return ceil_div(rows, options_.batch_size); }

StepPlan BatchIterator::next_step() {
  enter(epoch_);
  StepPlan plan;
  plan.epoch = epoch_;
  plan.index = position_ / rows_per_step();
  step_begin_ = position_;
  step_end_ = std::min(rows_.size(), position_ + rows_per_step());
  plan.rows = step_end_ - step_begin_;
  plan.micro_batches = ceil_div(micro_batches_of(plan.rows), options_.ranks);
  for (std::int64_t row = step_begin_; row < step_end_; ++row) {
    for (const std::int64_t document : rows_.row(row)) {
      plan.tokens += dataset_.length(document);
      plan.trained_tokens += dataset_.trained_tokens(document);
    }
  }
  plan.ends_epoch = step_end_ == rows_.size();
  // rows_ stays this epoch's until the next step: micro_batch() reads it.
  epoch_ += plan.ends_epoch;
  position_ = plan.ends_epoch ? 0 : step_end_;
  return plan;
}

void BatchIterator::micro_batch(std::int64_t i, MicroBatch& out) const {
  const std::int64_t per_rank = ceil_div(micro_batches_of(step_end_ - step_begin_), options_.ranks);
  SO_CHECK(i >= 0 && i < per_rank, "micro-batch {} of {}", i, per_rank);
  clear(out);
  const std::int64_t begin =
      std::min(step_end_, step_begin_ + (i * options_.ranks + options_.rank) * options_.batch_size);
  const std::int64_t end = std::min(step_end_, begin + options_.batch_size);
  std::int64_t longest = 0;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int64_t before = out.tokens;
    for (const std::int64_t document : rows_.row(row)) append_document(dataset_, document, out);
    longest = std::max(longest, out.tokens - before);
  }
  out.rows = end - begin;
  out.padded_tokens = out.rows * longest;
  take_slice(out, options_.sequence);
}

std::int64_t BatchIterator::steps_per_epoch(std::int64_t epoch) const {
  std::int64_t rows = dataset_.size();
  if (options_.packing) rows = epoch == planned_epoch_ ? rows_.size() : rows_of(epoch).size();
  return ceil_div(rows, rows_per_step());
}

std::int64_t BatchIterator::steps_in_epochs(double epochs) const {
  const auto part_of = [](double part, std::int64_t steps) {
    return static_cast<std::int64_t>(std::ceil(part * static_cast<double>(steps)));
  };
  if (!options_.packing || !options_.shuffle) return part_of(epochs, steps_per_epoch(0));
  std::int64_t steps = 0, epoch = 0;
  for (; static_cast<double>(epoch + 1) <= epochs; ++epoch) steps += steps_per_epoch(epoch);
  const double rest = epochs - static_cast<double>(epoch);
  return rest > 0 ? steps + part_of(rest, steps_per_epoch(epoch)) : steps;
}

std::int64_t BatchIterator::epochs_in_steps(std::int64_t steps) const {
  const std::int64_t counted = options_.packing && options_.shuffle ? 16 : 0;
  for (std::int64_t epoch = 0; epoch < counted; ++epoch) {
    const std::int64_t own = steps_per_epoch(epoch);
    if (steps < own) return epoch;
    steps -= own;
  }
  return counted + steps / steps_per_epoch(std::max<std::int64_t>(counted - 1, 0));
}

std::int64_t BatchIterator::most_micro_batch_tokens() const {
  if (options_.packing) return options_.batch_size * options_.max_length;
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < dataset_.size(); ++i) lengths.push_back(dataset_.length(i));
  const std::int64_t rows = std::min(options_.batch_size, dataset_.size());
  std::partial_sort(lengths.begin(), lengths.begin() + rows, lengths.end(), std::greater<>());
  return std::accumulate(lengths.begin(), lengths.begin() + rows, std::int64_t{0});
}

std::int64_t BatchIterator::max_micro_batch_tokens(std::int64_t steps, std::int64_t looks) const {
  const std::int64_t bound = most_micro_batch_tokens();
  std::int64_t most = 0;
  for (std::int64_t epoch = 0; steps > 0 && most < bound; ++epoch) {
    if (epoch > 0 && !options_.shuffle) break;  // the first again
    if (epoch > 0 && epoch * dataset_.size() > looks) return bound;
    const RowPlan rows = rows_of(epoch);
    const std::int64_t steps_here = std::min(steps, ceil_div(rows.size(), rows_per_step()));
    const std::int64_t end = std::min(rows.size(), steps_here * rows_per_step());
    for (std::int64_t begin = 0; begin < end; begin += options_.batch_size) {
      std::int64_t tokens = 0;
      for (std::int64_t row = begin; row < std::min(end, begin + options_.batch_size); ++row)
        for (const std::int64_t document : rows.row(row)) tokens += dataset_.length(document);
      most = std::max(most, tokens);
    }
    steps -= steps_here;
  }
  return most;
}

void BatchIterator::restore(const SamplerState& state) {
  if (state.epoch < 0) fail("the data position to resume from is epoch {}", state.epoch);
  enter(state.epoch);
  if (state.position < 0 || state.position >= rows_.size())
    fail("the data position to resume from is row {} of epoch {}, which has {} rows; the data or the options changed",
         state.position, state.epoch, rows_.size());
  epoch_ = state.epoch;
  position_ = state.position;
  step_begin_ = step_end_ = 0;  // no current step
}

EvaluationIterator::EvaluationIterator(const Documents& dataset, std::int64_t max_tokens, std::int64_t rank,
                                       std::int64_t ranks, const SequencePlace& sequence)
    : dataset_(dataset), rank_(rank), ranks_(ranks), sequence_(sequence), next_(rank) {
  SO_CHECK(max_tokens > 0 && rank >= 0 && rank < ranks, "{} tokens a batch, rank {} of {}", max_tokens, rank, ranks);
  std::int64_t tokens = 0;  // of the batch being filled
  for (std::int64_t document = 0; document < dataset.size(); ++document) {
    const std::int64_t length = dataset.length(document);
    if (tokens == 0 || tokens + length > max_tokens) {
      if (tokens > 0) batches_.begin.push_back(document);
      tokens = 0;
    }
    batches_.documents.push_back(document);
    tokens += length;
    max_batch_tokens_ = std::max(max_batch_tokens_, tokens);
  }
  batches_.begin.push_back(dataset.size());
}

bool EvaluationIterator::next(MicroBatch& out) {
  if (next_ >= batches_.size()) return false;
  clear(out);
  std::int64_t longest = 0;
  for (const std::int64_t document : batches_.row(next_)) {
    append_document(dataset_, document, out);
    longest = std::max(longest, dataset_.length(document));
  }
  out.rows = out.documents();
  out.padded_tokens = out.rows * longest;
  take_slice(out, sequence_);
  next_ += ranks_;
  return true;
}

}  // namespace so
