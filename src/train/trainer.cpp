#include "train/trainer.h"

#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/export.h"
#include "checkpoint/output_directory.h"
#include "checkpoint/resume_point.h"
#include "checkpoint/source_model.h"
#include "data/token_cache.h"
#include "device/backend.h"
#include "io/trace_file.h"
#include "offload/engine_report.h"
#include "ops/runtime.h"
#include "plan/memory/activation_memory.h"
#include "plan/training_plan.h"
#include "ranks/communicator.h"
#include "ranks/together.h"
#include "train/divergence.h"

namespace so {
namespace {

LrSchedule make_schedule(const ScheduleOptions& options, const RunLength& length) {
  return LrSchedule({.kind = options.lr_scheduler,
                     .peak = options.lr,
                     .least = options.min_lr,
                     .warmup_steps = length.warmup_steps,
                     .decay_steps = share_of_steps(options.decay, length.steps),
                     .total_steps = length.steps});
}

DecoderSettings decoder_settings(const TrainerInputs& in) {
  DecoderSettings settings = in.plan.decoder;
  settings.label_smoothing = static_cast<float>(in.options.label_smoothing_factor);
  return settings;
}

std::int64_t most_tokens_of_a_step(const TrainingShape& shape) {
  return shape.micro_batch_tokens * shape.micro_batches * (shape.ranks / shape.sequence);
}

}  // namespace

Trainer::Trainer(const TrainerInputs& in)
    : in_(in),
      stream_(in.runtime.device().create_stream("compute")),
      engine_(in.runtime.device(), in.runtime.host_pool(), in.ranks, in.model.layout(), in.plan.engine),
      model_(in.runtime.device(), in.runtime.ops(), *stream_, in.spec, in.model.layout(), decoder_settings(in),
             model_shape(in.plan.shape), in.exchange),
      engine_state_(engine_),
      step_(in.spec, in.model.layout(), model_, engine_state_, in.ranks, in.batches, *stream_,
            all_recomputed(in.plan.decoder.keep)),
      time_limit_(in.ranks, most_tokens_of_a_step(in.plan.shape)),
      schedule_(make_schedule(in.options, in.length)),
      checkpoints_(engine_, in.model, in.output.checkpoints(), in.options.save_total_limit.value_or(0),
                   in.options.load_best_model_at_end, in.options.save_only_model),
      progress_(0, in.length.steps, in.options.log_interval) {
  state_.data_key = in.data.key();
  state_.options = in.record;
  if (in.samples)
    samples_.emplace(in.runtime.device(), model_, engine_, *stream_, *in.samples, sample_batch_tokens(in.plan.shape));
  if (in.options.looks_for_best()) state_.evaluations.emplace().data_key = in.evaluation_data->key();
  for (const std::string& remark : in.spec.remarks) log_info("{}", remark);
}

// After an error work may still be queued that uses the members' memory: the stream ends first.
Trainer::~Trainer() { stream_.reset(); }

bool Trainer::stops_early() const { return stopped_early(in_.options, state_); }

// Nothing of an earlier run is replaced before this one has its weights.
void Trainer::open_records() {
  if (!keeps_records()) return;
  const std::filesystem::path output = in_.options.output_dir;
  in_.output.begin();
  metrics_.emplace(output);
  tensorboard_.emplace(output / "runs");
  // A resumed run keeps the record of one that made samples, whether or not it makes more.
  if (in_.samples || in_.output.owns(std::string(samples_file))) {
    in_.output.add({std::string(samples_file)});
    samples_log_.emplace(output);
  }
  in_.output.add({"runs/" + tensorboard_->path().filename().string()});
}

void Trainer::start() {
  in_.model.load(engine_, *stream_, in_.runtime.host_pool());
  model_.make_arena(in_.plan.activation_bytes);
  open_records();
}

void Trainer::resume(const std::filesystem::path& checkpoint, const TrainerState& state) {
  load_checkpoint(checkpoint, in_.model, engine_, *stream_, in_.runtime.host_pool());
  model_.make_arena(in_.plan.activation_bytes);
  open_records();
  TrainerState fresh = std::exchange(state_, state);
  state_.options = std::move(fresh.options);
  if (!state_.evaluations) state_.evaluations = fresh.evaluations;
  if (in_.length.records_warmup) state_.warmup_steps = in_.length.warmup_steps;
  first_step_ = last_saved_step_ = state.step;
  checkpoints_.goes_on_from(state.step);
  resumed_from_ = checkpoint;
  in_.batches.restore(state.sampler);
  if (!keeps_records()) return;
  metrics_->truncate_after(state.step);
  tensorboard_->truncate_after(state.step);
  if (samples_log_) samples_log_->truncate_after(state.step);
}

Trainer::Step Trainer::train_step() {
  time_limit_.begin_step(checkpoints_.writing());
  Step step{step_.run(schedule_.rate(state_.updates), state_.updates + 1, [&] { interrupt_->announce(); }), {}, {}};
  count(step);
  state_.sampler = in_.batches.state();
  state_.tokens += step.plan.tokens;
  if (state_.step - first_step_ > 1)
    steps_.add({.overlap = overlap_of(step.counters),
                .tokens = static_cast<double>(step.plan.tokens),
                .model_flops = step.model_flops,
                .reference_flops = step.reference_flops});
  time_limit_.end_step(step.seconds, step.plan.tokens);
  return step;
}

void Trainer::count(Step& step) {
  ++state_.step;
  if (step.verdict.finite) {
    ++state_.updates;
    state_.skipped_in_a_row = 0;
    return;
  }
  ++state_.skipped_in_a_row;
  if (step.verdict.non_finite_parameter >= 0)
    step.skipped_tensor = in_.model.layout().parameter(step.verdict.non_finite_parameter).name;
  find_origin(step);
}

void Trainer::find_origin(Step& step) {
  // Any rank's losses may show it.
  std::array<double, 1> bad{step.bad_micro_batch < 0 ? 0.0 : 1.0};
  in_.ranks.all_reduce_sum(bad);
  step.skipped_origin = bad[0] == 0 ? "the gradients" : "the loss";
  // Looked for in the first of a streak: its weights are still those of all the others.
  if (bad[0] == 0 || state_.skipped_in_a_row > 1) return;
  // The search may end in the middle of a pass, where the other ranks would wait for this one's gathers, or for its
  // slice.
  if (engine_.gathers_weights() || in_.exchange) return;
  // All ranks together, since one alone may look.
  if (in_.ranks.size() > 1) engine_.require_updates(*stream_);
  const std::string own = step.bad_micro_batch < 0 ? "" : find_activation(step.bad_micro_batch);
  for (const std::string& origin : in_.ranks.all_gather(own)) {
    if (origin.empty()) continue;
    step.skipped_origin = origin;
    return;
  }
}

std::string Trainer::find_activation(std::int64_t micro_batch) {
  in_.batches.micro_batch(micro_batch, batch_);
  const DeviceBatch batch = model_.upload().upload(*stream_, batch_);
  return find_non_finite_activation(model_.decoder(), *stream_, batch, engine_, model_.arena(),
                                    model_.upload().losses());
}

bool Trainer::stop_requested() {
  if (!stopped_by_.empty()) return true;
  std::array<double, 1> signals{interrupt_->requested() ? 1.0 : 0.0};
  in_.ranks.all_reduce_sum(signals);
  if (signals[0] == 0) return false;
  for (const std::string& name : in_.ranks.all_gather(interrupt_->signal_name()))
    if (stopped_by_.empty()) stopped_by_ = name;
  return true;
}

void Trainer::save(std::uint64_t room) {
  if (last_saved_step_ == state_.step) return;
  time_limit_.begin_save();
  finish_save();
  checkpoints_.start(state_, room);
  last_saved_step_ = state_.step;
}

void Trainer::finish_save() {
  try {
    checkpoints_.wait();
  } catch (const Error& error) {
    save_failed_ = true;
    // Without its checkpoint the best model is lost.
    if (state_.evaluations && state_.evaluations->best_step == last_saved_step_) state_.evaluations->best_step = 0;
    last_saved_step_ = -1;
    log_error("a checkpoint was not saved: {}", error.what());
  }
}

void Trainer::trace(std::int64_t steps_done) {
  const std::int64_t first = steps_before_trace, last = first + in_.options.trace_steps;
  const bool begin = in_.options.trace && steps_done == first;
  const bool end = tracing_ && (steps_done < 0 || steps_done == last);
  if (!begin && !end) return;
  time_limit_.begin_other_work();
  // A step's last copies may still be under way; they belong to its trace, and not to the next step's.
  engine_.require_updates(*stream_);
  stream_->synchronize();
  tracing_ = begin;
  if (!keeps_records()) return;  // a timeline shows rank 0's work
  if (begin) {
    trace_ = std::make_unique<TraceSession>(in_.runtime.device());
    return;
  }
  const Trace trace = trace_->stop();
  trace_.reset();
  write_trace_file(*in_.options.trace, trace);
  for (const std::string& remark : trace.remarks) log_warning("{}", remark);
  log_info("wrote {}: {} activities in {:.4g} s", *in_.options.trace, trace.activities.size(),
           static_cast<double>(trace.duration) / 1e9);
}

Trainer::Outcome Trainer::run() {
  try {
    return run_steps();
  } catch (const std::exception& error) {
    // The others wait for this rank, and with them the work on this rank's streams.
    if (!thrown_by_all(error))
      in_.ranks.abort(dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "out of memory" : error.what());
    progress_.end();
    if (state_.step > first_step_) log_last_checkpoint();
    throw;
  }
}

namespace {

template <class Body>
void log_failure(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    log_error("{}", error.what());
  }
}

}  // namespace

void Trainer::log_divergence() {
  time_limit_.begin_other_work();
  const std::int64_t before = state_.step - state_.skipped_in_a_row;
  closing_sentence_ =
      fmt::format("{} (--max_skipped_steps {}): the run has diverged and stops; no model was written",
                  describe_streak(state_.step, state_.skipped_in_a_row), in_.options.max_skipped_steps.value_or(0));
  log_failure([&] { checkpoints_.wait(); });
  log_failure([&] {
    const auto good = in_.output.checkpoints().latest_up_to(before);
    if (good)
      log_info(
          "the last checkpoint from before is {} (step {}); "
          "it can be a new run's --model, with a lower --lr or other data",
          good->path.string(), good->step);
    else
      log_info("there is no checkpoint from before; begin anew with a lower --lr or other data");
  });
}

void Trainer::log_last_checkpoint() {
  log_failure([&] { checkpoints_.wait(); });  // a save under way may yet make one
  log_failure([&] {
    if (const auto last = in_.output.checkpoints().latest_up_to(state_.step))
      log_info(
          "the last checkpoint is {} (step {}): {}", last->path.string(), last->step,
          in_.options.save_only_model ? "the model alone, which a new run's --model can be" : "continue with --resume");
    else if (!resumed_from_.empty())
      log_info("the last checkpoint is {} (step {}): continue with --resume {}", resumed_from_.string(), first_step_,
               resumed_from_.string());
    else
      log_info("no checkpoint had been saved: --resume would begin anew");
  });
}

Trainer::Outcome Trainer::save_and_stop() {
  progress_.end();
  trace(-1);
  save();
  checkpoints_.wait();
  closing_sentence_ = fmt::format(
      "interrupted by {}: saved {} at step {}; {}", stopped_by_, in_.output.checkpoints().path_of(state_.step).string(),
      state_.step,
      in_.options.save_only_model ? "the model alone, which a new run's --model can be" : "continue with --resume");
  return Outcome::interrupted;
}

Trainer::Outcome Trainer::run_steps() {
  interrupt_.emplace();
  if (metrics_) metrics_->start(state_.step, in_.facts);
  const LoopOptions& o = in_.options;
  progress_ = Progress(state_.step, in_.length.steps, o.log_interval);
  totals_.start();
  const bool resumed_at_end = ended();
  if (state_.step == 0 || evaluation_is_due()) record_evaluation();
  if (state_.step == 0 || samples_are_missing()) record_samples();
  if (stop_requested() && !ended()) {
    closing_sentence_ =
        fmt::format("interrupted by {} before the first step: nothing was saved; continue with --resume", stopped_by_);
    return Outcome::interrupted;
  }

  while (!ended()) {
    trace(state_.step - first_step_);
    const Step r = train_step();
    report(r);
    if (o.max_skipped_steps && state_.skipped_in_a_row >= *o.max_skipped_steps) {
      progress_.end();
      trace(-1);
      log_divergence();
      return Outcome::diverged;
    }
    const bool last = state_.step == in_.length.steps;
    const bool best = !last && is_due(o.eval_strategy, o.eval_steps, state_.step, r.plan.ends_epoch) &&
                      record_evaluation() && o.load_best_model_at_end;
    if (!last && samples_are_due(r.plan.ends_epoch)) record_samples();
    if (stops_early()) break;
    if (stop_requested() && !last) return save_and_stop();
    if (best || (!last && is_due(o.save_strategy, o.save_steps, state_.step, r.plan.ends_epoch)))
      save(
          exported_bytes(in_.model, in_.plan.engine.formats.exported));  // a checkpoint must not take the model's place
  }
  progress_.end();
  trace(-1);
  if (stops_early())
    log_info("step {}: stopped early: {} evaluation{} in a row, none better than that of step {}, {:.4f}", state_.step,
             state_.evaluations->without_gain, state_.evaluations->without_gain == 1 ? "" : "s",
             state_.evaluations->best_step,
             state_.evaluations->best_loss.value_or(std::numeric_limits<double>::quiet_NaN()));
  else if (!resumed_at_end)
    record_evaluation();
  if (best_is_unknown()) return save_and_stop();
  if (!resumed_at_end && sampled_step_ != state_.step) record_samples();
  write_results();
  return Outcome::finished;
}

}  // namespace so
