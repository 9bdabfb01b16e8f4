// Micro-batches: ragged, without padding; and the iterators that yield them for training and evaluation.
#pragma once

#include <cstdint>
#include <vector>

#include "data/packing.h"
#include "data/sampler.h"
#include "data/token_cache.h"

namespace so {

// Documents laid end to end. Attention must stay within a document: document d is tokens
// [cu_seqlens[d], cu_seqlens[d+1]). Owns its memory. Where ranks split the tokens of a micro-batch, a rank's is a
// *slice* of it (base/sequence_slice.h): `tokens` and what stands for each token are the slice's, and documents, rows
// and padding are those of all slices together.
struct MicroBatch {
  std::vector<std::int32_t> ids;         // [tokens]
  std::vector<std::int32_t> targets;     // [tokens], shifted (example.h), kIgnored where not trained
  std::vector<std::int32_t> positions;   // [tokens], from 0 in each document
  std::vector<std::int32_t> cu_seqlens;  // [documents + 1], begins with 0
  std::int64_t tokens = 0;
  std::int64_t trained_tokens = 0;                         // targets that are not kIgnored
  std::int64_t sequence_tokens = 0, sequence_trained = 0;  // of all slices; 0: the micro-batch is whole
  std::int64_t sequence_begin = 0;                         // the tokens before this slice
  // Tokens of this slice that no record has. A micro-batch with fewer tokens than slices gets one for each that lacks
  // one: a document behind the others, whose targets are kIgnored.
  std::int64_t filler = 0;
  std::int64_t rows = 0;           // without packing a row is a document
  std::int64_t padded_tokens = 0;  // rows x the longest row: what a padded batch would compute on

  std::int64_t documents() const { return static_cast<std::int64_t>(cu_seqlens.size()) - 1; }
};

// Which slice of its micro-batches a rank has, and how many there are.
struct SequencePlace {
  int rank = 0, size = 1;
};
// Leaves this slice of a whole micro-batch. An empty one stays as it is, as does all where there is one slice.
void take_slice(MicroBatch& batch, const SequencePlace& place);

struct BatchOptions {
  std::int64_t batch_size = 1;  // rows a micro-batch
  std::int64_t gradient_accumulation_steps = 1;
  bool packing = false;
  std::int64_t max_length = 0;  // tokens a row with packing; at least the longest document
  bool shuffle = true;
  std::uint64_t seed = 0;
  // The ranks that share a step's micro-batches. Those that split each micro-batch count as one.
  std::int64_t rank = 0, ranks = 1;
  SequencePlace sequence;
};

// One optimizer step. Sums are over all micro-batches of all ranks.
struct StepPlan {
  std::int64_t epoch = 0;
  std::int64_t index = 0;          // of the step within the epoch
  std::int64_t micro_batches = 0;  // to fetch with micro_batch(); the same on every rank
  std::int64_t rows = 0;
  std::int64_t tokens = 0;
  std::int64_t trained_tokens = 0;  // what the step's loss and gradient are divided by; at least 1
  bool ends_epoch = false;
};

// Where optimizer steps come from. One thread.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  // Moves on to the next step and says what it consists of, before any of its tokens is read.
  virtual StepPlan next_step() = 0;
  // Fills `out` with micro-batch i of the current step and this rank, i in [0, StepPlan::micro_batches). May be called
  // in any order and again.
  virtual void micro_batch(std::int64_t i, MicroBatch& out) const = 0;
};

// Yields optimizer steps, epoch after epoch without end. A step takes the next
// batch_size x gradient_accumulation_steps x ranks rows of the epoch; the epoch's last step takes what is left, in
// micro-batches of batch_size of which the last may be smaller, as transformers' Trainer does. Micro-batch j of a step
// is rank j % ranks's. Only a step that ends an epoch, with several ranks, can have an *empty* micro-batch
// (tokens == 0): its rank joins the collectives and computes nothing.
//
// Steps are a function of (data, options, state), so an iterator restored from state() continues bit for bit. The state
// counts rows, so it also holds for another number of ranks.
// One thread. The dataset must outlive it. An epoch's plan takes 16 bytes a document.
class BatchIterator final : public BatchSource {
 public:
  BatchIterator(const Documents& dataset, BatchOptions options);

  StepPlan next_step() override;
  // Throws Error if the token cache is damaged.
  void micro_batch(std::int64_t i, MicroBatch& out) const override;

  std::int64_t steps_per_epoch(std::int64_t epoch) const;  // with packing it may differ between epochs
  // Steps of the first `epochs` epochs; of a part of an epoch that part of its steps. A fraction of a step counts as
  // one, as in transformers' Trainer. Packed rows in a new order each epoch must be packed to be counted; all else is
  // arithmetic.
  std::int64_t steps_in_epochs(double epochs) const;
  // Whole epochs in the first `steps` steps. Where an epoch must be packed to be counted, epochs after the
  // first few count as those did.
  std::int64_t epochs_in_steps(std::int64_t steps) const;
  // Returns the most tokens of any rank's micro-batch in the first `steps` steps, from the documents' lengths. Exact if
  // these steps' epochs have no more than about `looks` documents together. Else an upper bound, the largest that any
  // order could give: in that many orders, chance has had time to bring the longest documents together.
  std::int64_t max_micro_batch_tokens(std::int64_t steps, std::int64_t looks = 4'000'000) const;

  // Where to go on after the current step: save it with the step's result. Before the first step: the start.
  SamplerState state() const { return {epoch_, position_}; }
  // Throws Error if the state cannot be of this data.
  void restore(const SamplerState& state);

 private:
  RowPlan rows_of(std::int64_t epoch) const;
  void enter(std::int64_t epoch);
  std::int64_t rows_per_step() const;
  std::int64_t micro_batches_of(std::int64_t rows) const;  // of all ranks
  // No micro-batch of any order has more tokens.
  std::int64_t most_micro_batch_tokens() const;

  const Documents& dataset_;
  BatchOptions options_;
  RowPlan rows_;  // of planned_epoch_
  std::int64_t planned_epoch_ = -1;
  std::int64_t epoch_ = 0, position_ = 0;       // where the next step begins
  std::int64_t step_begin_ = 0, step_end_ = 0;  // rows of the current step
};

// One pass over all documents in file order, one document a row, in batches of at most max_tokens tokens (a longer
// document is a batch of its own). Batch j is rank j % ranks's, where those that split each batch count as one.
class EvaluationIterator {
 public:
  EvaluationIterator(const Documents& dataset, std::int64_t max_tokens, std::int64_t rank = 0, std::int64_t ranks = 1,
                     const SequencePlace& sequence = {});

  bool next(MicroBatch& out);  // false after the last one
  void rewind() { next_ = rank_; }
  std::int64_t batches() const { return batches_.size(); }                         // of all ranks
  std::int64_t rounds() const { return (batches_.size() + ranks_ - 1) / ranks_; }  // most batches of a rank
  std::int64_t max_batch_tokens() const { return max_batch_tokens_; }

 private:
  const Documents& dataset_;
  RowPlan batches_;  // "row" i: the documents of batch i
  std::int64_t rank_, ranks_;
  SequencePlace sequence_;
  std::int64_t next_;
  std::int64_t max_batch_tokens_ = 0;
};

}  // namespace so
