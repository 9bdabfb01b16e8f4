// What the trainer leaves at its end: the model and the last checkpoint.
#include <exception>
#include <filesystem>

#include "base/error.h"
#include "base/file_system.h"
#include "base/log.h"
#include "checkpoint/export.h"
#include "checkpoint/output_directory.h"
#include "checkpoint/source_model.h"
#include "ranks/together.h"
#include "train/trainer.h"

namespace so {

void Trainer::write_results() {
  time_limit_.begin_other_work();
  finish_save();
  std::exception_ptr failure;
  try {
    write_model();
  } catch (const std::exception& error) {
    // Whatever it is, the checkpoint may still find its place: its rotation makes room, and it does without files that
    // cannot be read. Ranks that failed at different places cannot save together.
    if (in_.ranks.size() > 1 && !thrown_by_all(error)) throw;
    failure = std::current_exception();
  }
  save();
  finish_save();
  if (!failure) return;
  log_where_the_model_is();
  std::rethrow_exception(failure);
}

void Trainer::log_where_the_model_is() {
  std::int64_t step = state_.step;
  if (in_.options.load_best_model_at_end && state_.evaluations && state_.evaluations->best_step > 0)
    step = state_.evaluations->best_step;
  const std::filesystem::path checkpoint = in_.output.checkpoints().path_of(step);
  if (!is_regular_path(checkpoint / trainer_state_file)) return;
  log_error(
      "the model could not be written to {}, but {} is one, with its weights: give that as --model, or copy its "
      "config.json, model*.safetensors and tokenizer files{}",
      in_.output.path().string(), checkpoint.string(),
      in_.options.save_only_model ? "" : "; once the cause is mended, --resume writes the model, too");
}

void Trainer::write_model() {
  if (!in_.options.load_best_model_at_end || !write_best_model()) export_model(engine_, in_.model, in_.output.path());
}

bool Trainer::write_best_model() {
  const EvaluationHistory& evaluations = *state_.evaluations;
  if (evaluations.best_step == state_.step) return false;  // the engine has it
  if (!evaluations.best_loss) {
    log_warning("no evaluation had a loss: the model is that of the last step");
    return false;
  }
  try {
    if (evaluations.best_step == 0) fail("its checkpoint was not saved");
    const std::filesystem::path best = in_.output.checkpoints().path_of(evaluations.best_step);
    export_checkpoint_model(best, in_.ranks, in_.model, engine_.formats().exported, in_.output.path());
  } catch (const Error& error) {
    save_failed_ = true;
    log_error("the best model cannot be written, the model is that of the last step: {}", error.what());
    return false;
  }
  log_info("the model is the best one, of step {}: evaluation loss {:.4f}", evaluations.best_step,
           *evaluations.best_loss);
  return true;
}

}  // namespace so
