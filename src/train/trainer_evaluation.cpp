// The trainer's evaluations: when they are due, and what becomes of their loss.
#include <array>
#include <cmath>

#include "base/log.h"
#include "checkpoint/output_directory.h"
#include "checkpoint/source_model.h"
#include "data/token_cache.h"
#include "offload/idle_micro_batch.h"
#include "plan/training_plan.h"
#include "train/evaluation.h"
#include "train/trainer.h"

namespace so {

std::optional<double> Trainer::evaluate() {
  const SequencePlace place =
      in_.exchange ? SequencePlace{in_.exchange->rank(), in_.exchange->size()} : SequencePlace{};
  EvaluationIterator batches(*in_.evaluation_data, in_.plan.shape.evaluation_tokens, in_.ranks.rank() / place.size,
                             in_.ranks.size() / place.size, place);
  // All ranks together: there may be fewer batches than ranks.
  if (in_.ranks.size() > 1) engine_.require_updates(*stream_);
  // A rank without a batch of a round gathers weights with the others.
  const auto idle = [&] {
    if (engine_.gathers_weights()) run_idle_forward(in_.model.layout(), engine_, *stream_);
  };
  const std::optional<EvaluationSums> sums =
      so::evaluate(model_, engine_, *stream_, in_.ranks, batches, in_.evaluation_data->counts().tokens, idle,
                   [&] { return stop_requested(); });
  if (!sums) return std::nullopt;
  return sums->mean_loss();
}

bool Trainer::record_evaluation() {
  if (!in_.evaluation_data) return false;
  time_limit_.begin_other_work();
  const std::optional<double> loss = evaluate();
  const bool best = loss && count_evaluation(*loss);
  if (!keeps_records()) return best;
  if (!loss) {
    interrupt_->announce();
    log_info("step {}: the evaluation was given up{}", state_.step,
             state_.step < in_.length.steps || state_.evaluations ? "; a resumed run begins with it" : "");
    return false;
  }
  // One that was cut short is recorded when it is made up for; one that was recorded may still have to be counted.
  if (state_.step != first_step_ || !has_metrics_line(in_.output.path(), state_.step, "eval_loss")) {
    metrics_->evaluation(state_.step, *loss);
    tensorboard_->evaluation(state_.step, *loss);
  }
  totals_.evaluation(state_.step, *loss);
  if (!std::isfinite(*loss)) log_warning("step {}: the evaluation's loss is not finite", state_.step);
  log_info("step {}: evaluation loss {:.4f}, perplexity {:.2f}{}", state_.step, *loss, std::exp(*loss),
           best ? "; the best so far" : "");
  return best;
}

// Every rank counts the same.
bool Trainer::count_evaluation(double loss) {
  return state_.evaluations && state_.step > 0 &&
         state_.evaluations->count(state_.step, loss, in_.options.early_stopping_threshold);
}

bool Trainer::best_is_unknown() {
  return state_.evaluations && state_.step > 0 && state_.evaluations->last_step < state_.step && stop_requested();
}

bool Trainer::evaluation_is_due() {
  const std::int64_t step = state_.step;
  const std::filesystem::path output = in_.output.path();
  const bool wanted = step == in_.length.steps ||
                      is_due(in_.options.eval_strategy, in_.options.eval_steps, step, state_.begins_epoch());
  if (state_.evaluations) return wanted && state_.evaluations->last_step < step;
  const bool missing = keeps_records() && wanted && has_metrics_line(output, step, "loss") &&
                       !has_metrics_line(output, step, "eval_loss");
  std::array<double, 1> due{missing ? 1.0 : 0.0};
  in_.ranks.all_reduce_sum(due);
  return due[0] != 0;
}

}  // namespace so
