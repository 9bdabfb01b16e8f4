// The training loop: data in, optimizer steps, metrics, evaluation, checkpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/run_length.h"
#include "checkpoint/trainer_state.h"
#include "data/batches.h"
#include "device/trace.h"
#include "io/metrics.h"
#include "io/tensorboard.h"
#include "model/model_on_device.h"
#include "offload/engine.h"
#include "optim/lr_schedule.h"
#include "options/train_options.h"
#include "plan/step_figures.h"
#include "train/interrupt.h"
#include "train/run_totals.h"
#include "train/step_time_limit.h"
#include "train/training_progress.h"
#include "train/training_samples.h"
#include "train/training_step.h"

namespace so {

class Documents;
class ModelFiles;
class OutputDirectory;
class Runtime;
struct DecoderSpec;
struct TrainingPlan;

struct TrainerInputs {
  // For what no plan decides: the rate's schedule; what is logged, evaluated and saved, and when.
  const LoopOptions& options;
  std::string record;     // of all options, for checkpoints
  const RunFacts& facts;  // for the run's record
  Runtime& runtime;
  const ModelFiles& model;
  const DecoderSpec& spec;  // the model's, as this run computes with it
  const TrainingPlan& plan;
  Communicator& ranks;         // the first of them writes and logs; what they decide, they decide together
  SequenceExchange* exchange;  // of the ranks that split this one's batches; null: batches are whole
  const Documents& data;
  const Documents* evaluation_data;  // null: none
  BatchIterator& batches;            // this rank's
  RunLength length;
  OutputDirectory& output;                 // of rank 0; the others only look
  const SampleRequest* samples = nullptr;  // null: none
};

class Trainer {
 public:
  explicit Trainer(const TrainerInputs& inputs);
  ~Trainer();

  // From a checkpoint, or from the model's own weights.
  void resume(const std::filesystem::path& checkpoint, const TrainerState& state);
  void start();

  // A trace begins after this number of steps.
  static constexpr std::int64_t steps_before_trace = 2;

  enum class Outcome { finished, interrupted, diverged };
  // Runs to the end, or until interrupted (then a checkpoint has been saved), or until max_skipped_steps in a row were
  // skipped (then nothing has been saved). Throws Error when a save fails, Divergence when state is not fit for it.
  // After an error of any kind the log says where the run can be resumed, once it has done a step.
  Outcome run();

  // What the closing figures say of the steps: all but the first, which begins with nothing under way.
  StepFigures step_figures() const { return steps_.figures(); }
  // Whether the run ended without something it should have written: a checkpoint, or a line of a record. Each was
  // reported when it happened.
  bool incomplete() const {
    return save_failed_ || (metrics_ && metrics_->lost_any()) || (tensorboard_ && tensorboard_->lost_any()) ||
           (samples_log_ && samples_log_->lost_any());
  }
  // The last line of the run's metrics, and the closing lines of the log.
  void record_summary(Outcome outcome, std::span<const PlannedFigure> figures, std::span<const NamedMemory> memory);
  // Why the run ended without its model, and how it can go on. Empty after another one.
  const std::string& closing_sentence() const { return closing_sentence_; }

  // Whether this rank keeps the run's records and says what happens.
  bool keeps_records() const { return in_.ranks.rank() == 0; }

 private:
  // A step, and if it was skipped, for what.
  struct Step : StepResult {
    std::string skipped_tensor, skipped_origin;
  };
  void open_records();
  Outcome run_steps();
  // After a signal: saves a checkpoint of this step, unless there is one.
  Outcome save_and_stop();
  void log_last_checkpoint();
  Step train_step();
  // After a step: what the run's state counts of it; and if it was skipped, for what.
  void count(Step& step);
  void find_origin(Step& step);
  // In which activation of the micro-batch; empty: in none.
  std::string find_activation(std::int64_t micro_batch);
  void log_divergence();
  void report(const Step& step);
  void log_breakdown(const StepResult& result);
  // Whether a signal has come to any rank, the same on all: a collective, after each step and evaluation batch.
  bool stop_requested();
  // None if a signal came: what is to be saved goes first.
  std::optional<double> evaluate();
  // Returns whether it is the best so far, where the run looks for that.
  bool record_evaluation();
  bool count_evaluation(double loss);
  // Whether the evaluation that belongs to the step resumed from is missing, as after a signal; rank 0 looks.
  bool evaluation_is_due();
  // Whether the run looks for the best model and a signal cut short this step's evaluation, so that the model is not to
  // be chosen yet.
  bool best_is_unknown();
  // Generates and records the samples of the weights as they are, where there are any to make.
  void record_samples();
  bool samples_are_due(bool ends_epoch) const;
  // Whether those that belong to the step resumed from are missing; rank 0 looks.
  bool samples_are_missing();
  // Leaves `room` bytes free.
  void save(std::uint64_t room = 0);
  // Waits for the save under way. One that fails is reported, and training goes on.
  void finish_save();
  // The model, then the last checkpoint, so that a checkpoint that finds no room does not cost the model.
  void write_results();
  void log_where_the_model_is();  // where it could not be written, and a checkpoint has it
  void write_model();
  // Puts the best model into its place; false, and says why, if it is not to be had.
  bool write_best_model();
  bool stops_early() const;
  // Whether no step is left to do.
  bool ended() const { return state_.step == in_.length.steps || stops_early(); }
  // Starts and ends the trace; called before the step after `steps_done` of this run, and at its end (-1).
  void trace(std::int64_t steps_done);

  const TrainerInputs in_;
  std::unique_ptr<Stream> stream_;
  OffloadEngine engine_;
  ModelOnDevice model_;  // with its arena when what loading takes has been given back
  EngineState engine_state_;
  TrainingStep step_;
  StepTimeLimit time_limit_;
  LrSchedule schedule_;
  CheckpointWriter checkpoints_;
  std::optional<MetricsLog> metrics_;  // on rank 0, from open_records() on, like the next
  std::optional<TensorBoardWriter> tensorboard_;
  std::optional<TrainingSamples> samples_;  // none were asked for: empty
  std::optional<SamplesLog> samples_log_;   // on rank 0
  std::int64_t sampled_step_ = -1;
  TrainerState state_;
  std::int64_t first_step_ = 0;  // steps done before this run
  std::filesystem::path resumed_from_;
  std::int64_t last_saved_step_ = -1;
  bool save_failed_ = false;
  StepHistory steps_;  // those that the closing figures may count
  Progress progress_;
  std::optional<InterruptGuard> interrupt_;  // while run() is under way
  std::string stopped_by_;                   // the signal, once stop_requested()
  RunTotalsMeter totals_;
  std::string closing_sentence_;
  EngineCounters reported_;  // at the last log_breakdown()
  MicroBatch batch_;
  bool tracing_ = false;                 // on every rank
  std::unique_ptr<TraceSession> trace_;  // rank 0's
};

}  // namespace so
