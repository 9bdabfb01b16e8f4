// Training on several ranks, which are threads: each with a device, an engine and a model of its own, and its share of
// every step's micro-batches. The result must be one rank's that runs as many micro-batches.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <random>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/source_model.h"
#include "data/batches.h"
#include "model/model_on_device.h"
#include "offload/counted_settings.h"
#include "offload/engine.h"
#include "offload/sequence_group.h"
#include "ops/runtime.h"
#include "support/files.h"
#include "support/label.h"
#include "support/on_gpu.h"
#include "support/sanitized.h"
#include "support/thread_ranks.h"
#include "support/training_run.h"
#include "train/training_step.h"

namespace so {
namespace {

// Documents of `shortest` to 30 random tokens, or fewer than twice as many, a third of them not trained on.
void write_records(const std::filesystem::path& file, int documents, std::int32_t vocab, int shortest = 5) {
  std::mt19937 random(1);
  TokenCacheWriter writer(file, 1);
  for (int d = 0; d < documents; ++d) {
    Example example;
    const int length = shortest + static_cast<int>(random() % (shortest < 5 ? 2u : 26u));
    for (int j = 0; j < length; ++j)
      example.ids.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(vocab)));
    for (int j = 0; j < length; ++j) {
      const bool trained = j >= length / 3 && j + 1 < length;
      example.targets.push_back(trained ? example.ids[static_cast<std::size_t>(j) + 1] : kIgnored);
      example.trained += trained;
    }
    writer.add(example);
  }
  writer.finish();
}

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<float> weights;
};

struct Job {
  std::string model = "qwen3-tied";
  // Goes on from the checkpoint of so many steps; 0: from the model.
  int from = 0;
  // Saves one after so many steps, while training goes on; 0: none.
  int save_after = 0;
  std::filesystem::path checkpoints;
  DType moments = DType::f32;
  std::int64_t batch_size = 1, accumulation = 1;
  int steps = 6;
  double max_grad_norm = 1;
  Schedule schedule = Schedule::overlapped;
  double lr = 3e-3;
  int sequence = 1;  // ranks that split each micro-batch
  bool packing = false;
  std::vector<Keep> keep;  // DecoderSettings::keep
  int gathered = 0, streamed = 0;
};

// Every rank's outcome must be the same; that of rank 0 is returned.
Outcome train_on(int size, const Job& job, const TokenDataset& data) {
  Outcome outcome;
  std::vector<Outcome> all(static_cast<std::size_t>(size));
  test::run_ranks(size, [&](Communicator& ranks) {
    const ModelFiles files(test::model_fixture(job.model) / "model");
    Runtime runtime(DeviceChoice::cpu, 1);
    const auto stream = runtime.device().create_stream("compute");
    test::CountedSettings settings;
    settings.placement.bucket_elements = 4096;
    settings.placement.spare_buckets = 2;
    settings.weight_decay = 0.01;
    settings.max_grad_norm = job.max_grad_norm;
    settings.placement.schedule = job.schedule;
    settings.formats.moments = job.moments;
    settings.counts.gathered_units = job.gathered;
    settings.counts.streamed_units = job.streamed;
    settings.remade_inputs =
        remade_inputs(kept_by_layer(job.keep, files.spec().layers, files.layout().first_trained_unit()));
    OffloadEngine engine(runtime.device(), runtime.host_pool(), ranks, files.layout(),
                         settings.of(files.layout(), ranks.size()));
    BatchOptions options;
    options.batch_size = job.batch_size;
    options.gradient_accumulation_steps = job.accumulation;
    options.max_length = 32;
    options.seed = 42;
    options.rank = ranks.rank() / job.sequence;
    options.ranks = ranks.size() / job.sequence;
    options.sequence = {ranks.rank() % job.sequence, job.sequence};
    options.packing = job.packing;
    SequenceGroup group(ranks, job.sequence, runtime.device(), CollectiveRoute::host);
    BatchIterator batches(data, options);
    DecoderSettings decoder;
    decoder.loss_chunk_rows = 64;
    decoder.keep = job.keep;
    const std::int64_t tokens = batches.max_micro_batch_tokens(job.steps);
    ModelOnDevice model(runtime.device(), runtime.ops(), *stream, files.spec(), files.layout(), decoder,
                        {.positions = 32, .batch_tokens = tokens, .kept_tokens = tokens, .sequence_tokens = tokens + 4},
                        &group);
    const CheckpointDirectory directory(job.checkpoints);
    CheckpointWriter writer(engine, files, directory, 0);
    TrainerState trainer;
    if (job.from > 0) {
      load_checkpoint(directory.path_of(job.from), files, engine, *stream, runtime.host_pool());
      trainer = read_trainer_state(directory.path_of(job.from) / trainer_state_file);
      batches.restore(trainer.sampler);
    } else {
      files.load(engine, *stream, runtime.host_pool());
    }
    model.make_arena(std::size_t{64} << 20);
    EngineState state(engine);
    TrainingStep step(files.spec(), files.layout(), model, state, ranks, batches, *stream, false);
    Outcome& own = all[static_cast<std::size_t>(ranks.rank())];
    for (int i = job.from; i < job.steps; ++i) {
      const StepResult result = step.run(job.lr, i + 1);
      own.losses.push_back(result.loss);
      own.norms.push_back(result.verdict.norm);
      trainer.step = trainer.updates = i + 1;
      trainer.sampler = batches.state();
      trainer.options = "{}";
      if (i + 1 == job.save_after) writer.start(trainer);
    }
    writer.wait();
    engine.require_updates(*stream);
    stream->synchronize();
    for (int unit = 0; unit < files.layout().units(); ++unit) {
      engine.require_weights(unit, *stream);
      stream->synchronize();
      for (auto [p, end] = files.layout().unit_parameters(unit); p < end; ++p) {
        const std::span<float> values = engine.weight(p).span<float>();
        own.weights.insert(own.weights.end(), values.begin(), values.end());
      }
      engine.release_weights(unit, *stream);
    }
    stream->synchronize();
    ranks.barrier();
  });
  for (const Outcome& other : all) {
    EXPECT_EQ(other.losses, all[0].losses);
    EXPECT_EQ(other.norms, all[0].norms);
    EXPECT_EQ(other.weights, all[0].weights) << "every rank has the same weights";
  }
  return all[0];
}

void expect_close(const Outcome& found, const Outcome& expected) {
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(found.losses[i], expected.losses[i], 1e-6 * expected.losses[i]) << "step " << i + 1;
    EXPECT_NEAR(found.norms[i], expected.norms[i], 1e-5 * expected.norms[i]) << "step " << i + 1;
  }
}

class TrainingOnRanks : public testing::Test {
 protected:
  void SetUp() override {
    if (test::on_gpu()) GTEST_SKIP() << "on the CPU only: collectives of ranks reach its memory alone";
    write_records(directory_.path() / "data.tokens", 22, 120);
  }
  std::filesystem::path output(const std::string& name) const { return directory_.path() / name; }
  TokenDataset data() const { return TokenDataset(directory_.path() / "data.tokens", 1, 1 << 20); }

 private:
  test::TemporaryDirectory directory_;
};

// 22 rows, four a step: the sixth step has two, so with four ranks two have none.
TEST_F(TrainingOnRanks, LossesAreThoseOfOneRankWithAsManyMicroBatches) {
  const TokenDataset records = data();
  for (const char* model : {"qwen3-tied", "llama-untied"}) {
    SCOPED_TRACE(model);
    const Outcome one = train_on(1, {.model = model, .accumulation = 4}, records);
    expect_close(train_on(2, {.model = model, .accumulation = 2}, records), one);
    expect_close(train_on(4, {.model = model, .accumulation = 1}, records), one);
    expect_close(train_on(1, {.model = model, .batch_size = 4}, records), one);
  }
}

TEST_F(TrainingOnRanks, TheSameRunTwiceGivesTheSameBytes) {
  const TokenDataset records = data();
  const Outcome first = train_on(3, {.accumulation = 2}, records), second = train_on(3, {.accumulation = 2}, records);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.weights, second.weights);
  const Outcome synchronous = train_on(3, {.accumulation = 2, .schedule = Schedule::synchronous}, records);
  EXPECT_EQ(first.losses, synchronous.losses);
  EXPECT_EQ(first.weights, synchronous.weights) << "when the host updates changes no bit";
}

Outcome after(const Outcome& whole, int steps) {
  return {{whole.losses.begin() + steps, whole.losses.end()},
          {whole.norms.begin() + steps, whole.norms.end()},
          whole.weights};
}

void expect_equal(const Outcome& found, const Outcome& expected) {
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.norms, expected.norms);
  EXPECT_EQ(found.weights, expected.weights);
}

// With as many ranks to the bit, and with others to what another order of additions changes.
SO_LABEL(tsan, "TrainingOnRanks.AResumedRunGoesOnAsIfItHadNotStopped");
TEST_F(TrainingOnRanks, AResumedRunGoesOnAsIfItHadNotStopped) {
  const TokenDataset records = data();
  std::vector<const char*> models{"qwen3-tied", "qwen3-moe"};
  if (!test::sanitized)  // whose arithmetic differs, not how ranks meet and cut their state
    for (const char* more : {"qwen3-next", "gemma4-moe", "gemma4-e", "glm4-moe-lite", "nemotron-h"})
      models.push_back(more);
  for (const char* model : models)
    for (const int saved : {1, 2, 4}) {
      SCOPED_TRACE(testing::Message() << model << " saved on " << saved);
      const auto job = [&](int ranks) {
        return Job{.model = model,
                   .checkpoints = output(std::string(model) + std::to_string(saved)),
                   .moments = std::string_view(model) == "qwen3-moe" ? DType::bf16 : DType::f32,
                   .accumulation = 4 / ranks};
      };
      Job whole = job(saved);
      whole.save_after = 3;
      const Outcome uninterrupted = train_on(saved, whole, records);
      for (const int ranks : {1, 2, 4}) {
        Job rest = job(ranks);
        rest.from = 3;
        const Outcome resumed = train_on(ranks, rest, records);
        if (ranks == saved)
          expect_equal(resumed, after(uninterrupted, 3));
        else
          expect_close(resumed, after(uninterrupted, 3));
      }
    }
}

// The last step of an epoch has two rows, so that of two groups of two ranks each has one. At a learning rate ten times
// as high, rounding alone drives the steps of these models apart by more than this, those of whole rows on two and on
// one rank too.
TEST_F(TrainingOnRanks, RanksThatSplitRowsTrainAsOneRank) {
  const TokenDataset records = data();
  for (const char* model : {"llama-bias", "gpt-oss", "qwen3-moe-balance"})
    for (const bool packing : {false, true}) {
      if (test::sanitized && !packing) continue;
      SCOPED_TRACE(testing::Message() << model << (packing ? " packed" : ""));
      const auto train = [&](int ranks, int sequence) {
        return train_on(ranks,
                        {.model = model,
                         .accumulation = 4 / (ranks / sequence),
                         .steps = 20,
                         .lr = 3e-4,
                         .sequence = sequence,
                         .packing = packing},
                        records);
      };
      const Outcome one = train(1, 1);
      expect_close(train(2, 2), one);
      expect_close(train(4, 2), one);
      expect_close(train(4, 4), one);
    }
}

// Weights stream, or are gathered; rows are split, or ranks have none in the last step of an epoch.
TEST_F(TrainingOnRanks, InputsThatAreMadeAgainChangeNoBit) {
  const TokenDataset records = data();
  struct Manner {
    int ranks, sequence, gathered, streamed;
  };
  for (const Manner& manner :
       {Manner{1, 1, 0, 4}, {1, 1, 0, 1}, {2, 1, 4, 0}, {4, 1, 3, 0}, {2, 2, 4, 0}, {4, 2, 2, 0}}) {
    SCOPED_TRACE(testing::Message() << manner.ranks << " ranks, " << manner.sequence << " split a row, "
                                    << manner.gathered << " layers are gathered, " << manner.streamed << " stream");
    const auto train = [&](std::vector<Keep> keep) {
      return train_on(manner.ranks,
                      {.model = "olmo3",
                       .accumulation = 4 / (manner.ranks / manner.sequence),
                       .sequence = manner.sequence,
                       .keep = std::move(keep),
                       .gathered = manner.gathered,
                       .streamed = manner.streamed},
                      records);
    };
    const Outcome kept = train(std::vector(4, Keep::input));
    expect_equal(train({Keep::input, Keep::nothing, Keep::input, Keep::nothing}), kept);
    expect_equal(train({Keep::host, Keep::nothing, Keep::nothing, Keep::host}), kept);
  }
}

// Rows of 2 or 3 tokens leave one or two of four ranks without one.
TEST_F(TrainingOnRanks, RowsMayHaveFewerTokensThanRanks) {
  const std::filesystem::path file = output("short.tokens");
  write_records(file, 9, 120, 2);
  const TokenDataset records(file, 1, 1 << 20);
  const auto train = [&](int ranks) { return train_on(ranks, {.accumulation = 2, .sequence = ranks}, records); };
  const Outcome one = train(1);
  expect_close(train(2), one);
  expect_close(train(4), one);
}

TEST_F(TrainingOnRanks, ARunMayGoOnWithAnotherSplit) {
  const TokenDataset records = data();
  const auto job = [&](int ranks, int sequence, int from) {
    return Job{.from = from,
               .save_after = from == 0 ? 3 : 0,
               .checkpoints = output("split"),
               .accumulation = 4 / (ranks / sequence),
               .sequence = sequence};
  };
  const Outcome whole = train_on(4, job(4, 2, 0), records);
  expect_equal(train_on(4, job(4, 2, 3), records), after(whole, 3));
  for (const auto& [ranks, sequence] : {std::pair{1, 1}, {2, 2}, {4, 4}, {4, 1}})
    expect_close(train_on(ranks, job(ranks, sequence, 3), records), after(whole, 3));
}

}  // namespace
}  // namespace so
