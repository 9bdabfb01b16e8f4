#include "data/batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "data_test_util.h"
#include "support/label.h"

namespace so {
namespace {

using test::dataset_of;
using test::Ids;
using test::TemporaryDirectory;

constexpr std::int32_t X = kIgnored;

bool operator==(const MicroBatch& a, const MicroBatch& b) {
  return a.ids == b.ids && a.targets == b.targets && a.positions == b.positions && a.cu_seqlens == b.cu_seqlens &&
         a.tokens == b.tokens && a.trained_tokens == b.trained_tokens && a.rows == b.rows &&
         a.padded_tokens == b.padded_tokens;
}

class Batches : public ::testing::Test {
 protected:
  TokenDataset data(const std::vector<int>& lengths, int untrained = 0) {
    return dataset_of(directory_.path / "cache", lengths, untrained);
  }

  // All micro-batches of the next step, in order.
  static std::vector<MicroBatch> fetch(BatchIterator& iterator, StepPlan* plan = nullptr) {
    const StepPlan step = iterator.next_step();
    if (plan != nullptr) *plan = step;
    std::vector<MicroBatch> batches(static_cast<std::size_t>(step.micro_batches));
    for (std::size_t i = 0; i < batches.size(); ++i) iterator.micro_batch(static_cast<std::int64_t>(i), batches[i]);
    return batches;
  }

  // The documents of a micro-batch of dataset_of().
  static std::vector<int> documents_of(const MicroBatch& batch) {
    std::vector<int> documents;
    for (std::size_t d = 0; d + 1 < batch.cu_seqlens.size(); ++d)
      documents.push_back(batch.ids[static_cast<std::size_t>(batch.cu_seqlens[d])] / 1000);
    return documents;
  }

 private:
  TemporaryDirectory directory_;
};

// The computed counts must be those that walking through the steps finds.
TEST_F(Batches, CountsAreThoseOfTheLoop) {
  const TokenDataset dataset = data({3, 9, 4, 2, 7, 5, 8, 2, 6, 3, 4});
  for (const bool packing : {false, true})
    for (const bool shuffle : {false, true})
      for (const std::int64_t batch_size : {1, 2, 3, 20})
        for (const std::int64_t accumulation : {1, 2}) {
          const BatchOptions options{.batch_size = batch_size,
                                     .gradient_accumulation_steps = accumulation,
                                     .packing = packing,
                                     .max_length = 12,
                                     .shuffle = shuffle};
          BatchIterator walk(dataset, options);
          const BatchIterator counts(dataset, options);
          std::int64_t most = 0, steps = 0;
          for (std::int64_t epochs = 1; epochs <= 6; ++epochs) {
            for (StepPlan step; !step.ends_epoch;) {
              for (const MicroBatch& batch : fetch(walk, &step)) most = std::max(most, batch.tokens);
              ++steps;
              EXPECT_EQ(counts.max_micro_batch_tokens(steps), most) << batch_size << packing << shuffle << steps;
            }
            EXPECT_EQ(counts.steps_in_epochs(static_cast<double>(epochs)), steps) << batch_size << packing << shuffle;
            EXPECT_EQ(counts.epochs_in_steps(steps), epochs);
            EXPECT_EQ(counts.epochs_in_steps(steps - 1), epochs - 1);
          }
          // Past what is looked at, never less than what may come.
          EXPECT_GE(counts.max_micro_batch_tokens(steps, 0), most);
        }
}

SO_LABEL(sweep, "Batches.CountsOfEndlessRunsAreArithmetic");
TEST_F(Batches, CountsOfEndlessRunsAreArithmetic) {
  const TokenDataset dataset = data({3, 9, 4, 2, 7});
  constexpr std::int64_t endless = std::numeric_limits<std::int64_t>::max();
  BatchOptions options{.batch_size = 2, .gradient_accumulation_steps = 1};
  EXPECT_EQ(BatchIterator(dataset, options).max_micro_batch_tokens(endless), 16);
  EXPECT_EQ(BatchIterator(dataset, options).steps_in_epochs(1'000'000'000'000), 3'000'000'000'000);
  options.shuffle = false;
  EXPECT_EQ(BatchIterator(dataset, options).max_micro_batch_tokens(endless), 12);
  options = {.batch_size = 1, .packing = true, .max_length = 1000};
  EXPECT_EQ(BatchIterator(dataset, options).max_micro_batch_tokens(endless), 1000) << "a bound";
}

// math.ceil(num_train_epochs * steps of an epoch), as transformers' Trainer has it.
TEST_F(Batches, APartOfAnEpochIsThatPartOfItsSteps) {
  const TokenDataset dataset = data({3, 9, 4, 2, 7, 5, 8, 2, 6, 3});
  for (const bool packing : {false, true}) {
    // Each document fills a row.
    const BatchIterator counts(dataset, {.batch_size = 1, .packing = packing, .max_length = 9});
    const auto packed = [&](std::int64_t epoch) { return counts.steps_per_epoch(epoch); };
    EXPECT_EQ(counts.steps_in_epochs(0.5), (packed(0) + 1) / 2);
    EXPECT_EQ(counts.steps_in_epochs(1e-9), 1);
    EXPECT_EQ(counts.steps_in_epochs(2.5), packed(0) + packed(1) + (packed(2) + 1) / 2);
  }
  const BatchIterator ten(dataset, {.batch_size = 1});
  EXPECT_EQ(ten.steps_in_epochs(0.31), 4);
  EXPECT_EQ(ten.steps_in_epochs(2.3), 23);
  EXPECT_EQ(ten.steps_in_epochs(1.1), 11);
}

TEST_F(Batches, AreRagged) {
  const TokenDataset dataset = data({3, 2, 4, 2, 3}, 1);
  BatchIterator iterator(dataset, {.batch_size = 2, .gradient_accumulation_steps = 2, .shuffle = false});
  EXPECT_EQ(iterator.steps_per_epoch(0), 1);
  EXPECT_EQ(iterator.steps_in_epochs(3), 3);
  EXPECT_EQ(iterator.max_micro_batch_tokens(100), 7);
  StepPlan step;
  std::vector<MicroBatch> batches = fetch(iterator, &step);
  // Document 1 and 3 have 2 tokens; with the first untrained nothing of them is, so the data set holds 0, 2 and 4 only.
  ASSERT_EQ(dataset.counts().dropped, 2);
  ASSERT_EQ(batches.size(), 2u);
  EXPECT_EQ(batches[0].ids, (Ids{0, 1, 2, 2000, 2001, 2002, 2003}));
  EXPECT_EQ(batches[0].targets, (Ids{X, 2, X, X, 2002, 2003, X}));
  EXPECT_EQ(batches[0].positions, (Ids{0, 1, 2, 0, 1, 2, 3}));
  EXPECT_EQ(batches[0].cu_seqlens, (Ids{0, 3, 7}));
  EXPECT_EQ(batches[0].tokens, 7);
  EXPECT_EQ(batches[0].trained_tokens, 3);
  EXPECT_EQ(batches[0].rows, 2);
  EXPECT_EQ(batches[0].padded_tokens, 8);
  EXPECT_EQ(batches[1].ids, (Ids{4000, 4001, 4002}));
  EXPECT_EQ(batches[1].rows, 1);
  EXPECT_EQ(batches[1].padded_tokens, 3);
  EXPECT_EQ(step.trained_tokens, 4);
  EXPECT_EQ(step.tokens, 10);
  EXPECT_EQ(step.rows, 3);
  EXPECT_TRUE(step.ends_epoch);
}

TEST_F(Batches, StepsPerEpochCountsTheShortLastStep) {
  const TokenDataset dataset = data({2, 2, 2, 2, 2});
  BatchIterator iterator(dataset, {.batch_size = 2, .gradient_accumulation_steps = 1, .shuffle = false});
  EXPECT_EQ(iterator.steps_per_epoch(0), 3);
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int index = 0; index < 3; ++index) {
      StepPlan step;
      const auto batches = fetch(iterator, &step);
      EXPECT_EQ(step.epoch, epoch);
      EXPECT_EQ(step.index, index);
      EXPECT_EQ(step.rows, index == 2 ? 1 : 2);
      EXPECT_EQ(step.ends_epoch, index == 2);
      ASSERT_EQ(batches.size(), 1u);
      EXPECT_EQ(batches[0].rows, step.rows);
    }
  }
}

TEST_F(Batches, EveryEpochVisitsEveryDocumentOnceInAnotherOrder) {
  const TokenDataset dataset = data(std::vector<int>(50, 3));
  BatchIterator iterator(dataset, {.batch_size = 3, .gradient_accumulation_steps = 2, .seed = 4});
  std::vector<std::vector<int>> epochs(2);
  for (auto& epoch : epochs) {
    for (StepPlan step; !step.ends_epoch;) {
      std::int64_t trained = 0;
      for (const MicroBatch& batch : fetch(iterator, &step)) {
        for (const int d : documents_of(batch)) epoch.push_back(d);
        EXPECT_EQ(batch.trained_tokens,
                  std::count_if(batch.targets.begin(), batch.targets.end(), [](auto t) { return t != X; }));
        trained += batch.trained_tokens;
      }
      EXPECT_EQ(trained, step.trained_tokens);
    }
    EXPECT_EQ(epoch.size(), 50u);
    EXPECT_EQ(std::set<int>(epoch.begin(), epoch.end()).size(), 50u);
  }
  EXPECT_NE(epochs[0], epochs[1]);
}

TEST_F(Batches, PackingFillsRowsWithWholeDocuments) {
  const TokenDataset dataset = data({6, 7, 4, 3, 9, 2, 2});
  BatchIterator iterator(dataset, {.batch_size = 2, .packing = true, .max_length = 10, .shuffle = false});
  // Rows: {0, 2}, {1, 3}, {4}, {5, 6}.
  EXPECT_EQ(iterator.steps_per_epoch(0), 2);
  EXPECT_EQ(iterator.max_micro_batch_tokens(100), 20);
  const auto first = fetch(iterator);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(documents_of(first[0]), (std::vector<int>{0, 2, 1, 3}));
  EXPECT_EQ(first[0].cu_seqlens, (Ids{0, 6, 10, 17, 20}));
  EXPECT_EQ(first[0].positions, (Ids{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2}));
  EXPECT_EQ(first[0].rows, 2);
  EXPECT_EQ(first[0].padded_tokens, 20);
  EXPECT_EQ(first[0].trained_tokens, 5 + 3 + 6 + 2);
  const auto second = fetch(iterator);
  EXPECT_EQ(documents_of(second[0]), (std::vector<int>{4, 5, 6}));
  EXPECT_EQ(second[0].tokens, 13);
  EXPECT_EQ(second[0].padded_tokens, 18);
}

std::vector<int> mixed_lengths() {
  std::vector<int> lengths;
  for (int i = 0; i < 200; ++i) lengths.push_back(2 + (i * 37) % 29);
  return lengths;
}

TEST_F(Batches, PackedStepsPerEpochAreKnownUpFront) {
  const TokenDataset dataset = data(mixed_lengths());
  BatchIterator iterator(dataset,
                         {.batch_size = 2, .gradient_accumulation_steps = 3, .packing = true, .max_length = 40});
  const std::int64_t expected[] = {iterator.steps_per_epoch(0), iterator.steps_per_epoch(1),
                                   iterator.steps_per_epoch(2)};
  EXPECT_EQ(iterator.steps_in_epochs(3), expected[0] + expected[1] + expected[2]);
  for (const std::int64_t steps : expected) {
    std::int64_t taken = 0;
    std::multiset<int> seen;
    for (StepPlan step; !step.ends_epoch; ++taken) {
      for (const MicroBatch& batch : fetch(iterator, &step)) {
        EXPECT_LE(batch.tokens, 80);
        for (const int d : documents_of(batch)) seen.insert(d);
      }
    }
    EXPECT_EQ(taken, steps);
    EXPECT_EQ(seen.size(), 200u);
    EXPECT_EQ(std::set<int>(seen.begin(), seen.end()).size(), 200u);
  }
}

TEST_F(Batches, ResumeAtEveryStepBitForBit) {
  const TokenDataset dataset = data(mixed_lengths());
  for (const bool packing : {false, true}) {
    const BatchOptions options{
        .batch_size = 4, .gradient_accumulation_steps = 5, .packing = packing, .max_length = 40, .seed = 9};
    BatchIterator whole(dataset, options);
    const std::int64_t steps = whole.steps_in_epochs(2);
    std::vector<SamplerState> states;
    std::vector<std::vector<MicroBatch>> expected;
    for (std::int64_t i = 0; i < steps; ++i) {
      states.push_back(whole.state());
      expected.push_back(fetch(whole));
    }
    EXPECT_EQ(whole.state(), (SamplerState{2, 0}));
    for (std::size_t i = 0; i < states.size(); ++i) {
      BatchIterator resumed(dataset, options);
      resumed.restore(states[i]);
      EXPECT_EQ(resumed.state(), states[i]);
      for (std::size_t j = i; j < std::min(i + 3, states.size()); ++j) {
        const auto batches = fetch(resumed);
        ASSERT_EQ(batches.size(), expected[j].size());
        for (std::size_t m = 0; m < batches.size(); ++m) EXPECT_TRUE(batches[m] == expected[j][m]) << i << " " << j;
      }
    }
  }
}

TEST_F(Batches, RestoringElsewhereForgetsTheCurrentStep) {
  const TokenDataset dataset = data({2, 3, 4});
  BatchIterator iterator(dataset, {.shuffle = false});
  iterator.next_step();
  iterator.restore({0, 2});
  MicroBatch batch;
  EXPECT_THROW(iterator.micro_batch(0, batch), Bug);
  EXPECT_EQ(fetch(iterator)[0].tokens, 4);
  EXPECT_NE(test::error_of([&] {
              iterator.restore({0, 3});
            }).find("row 3 of epoch 0, which has 3 rows"),
            std::string::npos);
  EXPECT_NE(test::error_of([&] { iterator.restore({-1, 0}); }), "");
}

TEST_F(Batches, RanksShareAStepsMicroBatchesRoundRobin) {
  // 14 documents, 2 a micro-batch, 2 x 3 micro-batches a step: the second step has one micro-batch for three ranks.
  const TokenDataset dataset = data({2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 2, 2, 2});
  const auto options = [](std::int64_t rank) {
    return BatchOptions{.batch_size = 2, .gradient_accumulation_steps = 2, .shuffle = false, .rank = rank, .ranks = 3};
  };
  std::vector<StepPlan> plans(3), last(3);
  std::vector<std::vector<MicroBatch>> batches(3), rest(3);
  for (std::size_t r = 0; r < 3; ++r) {
    BatchIterator iterator(dataset, options(static_cast<std::int64_t>(r)));
    EXPECT_EQ(iterator.steps_per_epoch(0), 2);
    batches[r] = fetch(iterator, &plans[r]);
    rest[r] = fetch(iterator, &last[r]);
    EXPECT_EQ(plans[r].micro_batches, 2);
    EXPECT_EQ(plans[r].trained_tokens, 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10 + 11 + 1);
    EXPECT_EQ(last[r].trained_tokens, 2);
    EXPECT_EQ(last[r].micro_batches, 1);
  }
  EXPECT_EQ(documents_of(batches[0][0]), (std::vector<int>{0, 1}));
  EXPECT_EQ(documents_of(batches[1][0]), (std::vector<int>{2, 3}));
  EXPECT_EQ(documents_of(batches[2][0]), (std::vector<int>{4, 5}));
  EXPECT_EQ(documents_of(batches[0][1]), (std::vector<int>{6, 7}));
  EXPECT_EQ(documents_of(batches[2][1]), (std::vector<int>{10, 11}));
  EXPECT_EQ(documents_of(rest[0][0]), (std::vector<int>{12, 13}));
  for (const std::size_t r : {1u, 2u}) {  // nothing left for them, but a micro-batch all the same
    EXPECT_EQ(rest[r][0].tokens, 0);
    EXPECT_EQ(rest[r][0].rows, 0);
    EXPECT_EQ(rest[r][0].cu_seqlens, Ids{0});
  }
}

TEST_F(Batches, TheStateHoldsForAnotherNumberOfRanks) {
  const TokenDataset dataset = data(std::vector<int>(24, 3));
  BatchIterator one(dataset, {.batch_size = 2, .gradient_accumulation_steps = 2, .seed = 3});
  fetch(one);
  std::vector<int> expected, got;
  const SamplerState state = one.state();
  for (const MicroBatch& batch : fetch(one))
    for (const int d : documents_of(batch)) expected.push_back(d);
  for (const std::int64_t rank : {0, 1}) {
    BatchIterator two(dataset,
                      {.batch_size = 2, .gradient_accumulation_steps = 1, .seed = 3, .rank = rank, .ranks = 2});
    two.restore(state);
    for (const MicroBatch& batch : fetch(two))
      for (const int d : documents_of(batch)) got.push_back(d);
  }
  EXPECT_EQ(got, expected);
}

TEST_F(Batches, EvaluationCoversAllInOrderWithinTheBound) {
  const TokenDataset dataset = data({3, 4, 5, 12, 2, 2, 6});
  EvaluationIterator iterator(dataset, 10);
  EXPECT_EQ(iterator.batches(), 4);
  EXPECT_EQ(iterator.max_batch_tokens(), 12);
  for (int pass = 0; pass < 2; ++pass, iterator.rewind()) {
    MicroBatch batch;
    ASSERT_TRUE(iterator.next(batch));
    EXPECT_EQ(documents_of(batch), (std::vector<int>{0, 1}));
    EXPECT_EQ(batch.positions, (Ids{0, 1, 2, 0, 1, 2, 3}));
    EXPECT_EQ(batch.padded_tokens, 8);
    EXPECT_EQ(batch.trained_tokens, 5);
    ASSERT_TRUE(iterator.next(batch));
    EXPECT_EQ(documents_of(batch), std::vector<int>{2});
    ASSERT_TRUE(iterator.next(batch));
    EXPECT_EQ(documents_of(batch), std::vector<int>{3});  // longer than the bound
    ASSERT_TRUE(iterator.next(batch));
    EXPECT_EQ(documents_of(batch), (std::vector<int>{4, 5, 6}));
    EXPECT_FALSE(iterator.next(batch));
  }
}

TEST_F(Batches, EvaluationIsSharedByRanks) {
  const TokenDataset dataset = data({3, 3, 3, 3, 3});
  std::vector<int> seen;
  for (const std::int64_t rank : {0, 1}) {
    EvaluationIterator iterator(dataset, 3, rank, 2);
    for (MicroBatch batch; iterator.next(batch);) seen.push_back(documents_of(batch).at(0));
  }
  EXPECT_EQ(seen, (std::vector<int>{0, 2, 4, 1, 3}));
}

// Joined again, the slices are the micro-batch; each knows the documents of all.
TEST_F(Batches, SlicesAreContiguousAndDifferByOneToken) {
  const TokenDataset records = data({7, 5, 2, 9});
  BatchOptions whole{.batch_size = 3, .shuffle = false};
  BatchIterator one(records, whole);
  const MicroBatch batch = fetch(one).front();
  ASSERT_EQ(batch.tokens, 14);
  for (const int ranks : {2, 3, 4}) {
    MicroBatch joined;
    std::int64_t trained = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      BatchOptions options = whole;
      options.sequence = {rank, ranks};
      BatchIterator slices(records, options);
      StepPlan plan;
      const MicroBatch slice = fetch(slices, &plan).front();
      EXPECT_EQ(plan.tokens, 14) << "a step counts whole rows";
      EXPECT_GE(slice.tokens, 14 / ranks);
      EXPECT_LE(slice.tokens, 14 / ranks + 1);
      EXPECT_EQ(slice.cu_seqlens, batch.cu_seqlens);
      EXPECT_EQ(slice.sequence_tokens, 14);
      EXPECT_EQ(slice.sequence_trained, batch.trained_tokens);
      EXPECT_EQ(slice.filler, 0);
      trained += slice.trained_tokens;
      for (auto member : {&MicroBatch::ids, &MicroBatch::targets, &MicroBatch::positions})
        (joined.*member).insert((joined.*member).end(), (slice.*member).begin(), (slice.*member).end());
    }
    EXPECT_EQ(joined.ids, batch.ids);
    EXPECT_EQ(joined.targets, batch.targets) << "the label of a slice's last token is the next one's first";
    EXPECT_EQ(joined.positions, batch.positions);
    EXPECT_EQ(trained, batch.trained_tokens);
  }
}

TEST_F(Batches, EverySliceHasAToken) {
  const TokenDataset records = data({2, 9});
  for (int rank = 0; rank < 4; ++rank) {
    EvaluationIterator batches(records, 2, 0, 1, {rank, 4});
    EXPECT_EQ(batches.rounds(), 2);
    MicroBatch batch;
    ASSERT_TRUE(batches.next(batch));
    EXPECT_EQ(batch.tokens, 1);
    EXPECT_EQ(batch.filler, rank < 2 ? 0 : 1);
    EXPECT_EQ(batch.cu_seqlens, (Ids{0, 2, 4})) << "what fills is a document of its own";
    EXPECT_EQ(batch.positions, (Ids{rank % 2}));
    if (rank >= 2) {
      EXPECT_EQ(batch.targets, (Ids{X}));
    }
    ASSERT_TRUE(batches.next(batch));
    EXPECT_EQ(batch.tokens, rank == 0 ? 3 : 2);
    EXPECT_EQ(batch.filler, 0);
    EXPECT_FALSE(batches.next(batch));
  }
}

}  // namespace
}  // namespace so
