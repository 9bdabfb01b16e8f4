#include "checkpoint/resume_point.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "checkpoint/directory_checks.h"
#include "checkpoint/source_model.h"
#include "io/metrics.h"

namespace so {

ResumePoint read_resume_point(const OutputDirectory& output, const TrainOptions& asked, std::uint64_t data_key,
                              std::uint64_t evaluation_key, bool checks_files) {
  ResumePoint from{output.checkpoint(), {}};
  if (!from.checkpoint) return from;
  const ResumeCheck check(from.checkpoint->path);
  check.require_whole_state();
  from.state = read_trainer_state(from.state_file());
  if (from.state->only_model)
    fail(
        "{} holds the model alone (--save_only_model), and no run can resume from it; a new run can begin with --model {}",
        printable_path(from.checkpoint->path), printable_path(from.checkpoint->path));
  output.require_same_run(*from.state, asked, data_key, evaluation_key);
  if (asked.load_best_model_at_end) output.require_best(*from.state);
  if (checks_files) check.require_whole();
  return from;
}

bool stopped_early(const BestModelOptions& options, const TrainerState& state) {
  return options.early_stopping_patience && state.evaluations &&
         state.evaluations->without_gain >= *options.early_stopping_patience;
}

namespace {

// Whether a model that was written is there. Small files may have been edited since.
bool has_all_files(const std::filesystem::path& output) {
  if (!has_weight_files(output)) return false;
  const ChecksumsAsRead written(output);
  if (!written.list) return written.error.empty();
  return std::all_of(written.list->files.begin(), written.list->files.end(), [&](const auto& file) {
    const std::filesystem::path path = output / file.first;
    return is_regular_path(path) &&
           (path.extension() != ".safetensors" || File::open(path).size() == file.second.bytes);
  });
}

}  // namespace

bool is_finished(const LoopOptions& options, const ResumePoint& from, std::int64_t total_steps) {
  const std::filesystem::path output = options.output_dir;
  return from.state && (from.step() >= total_steps || stopped_early(options, *from.state)) &&
         has_metrics_line(output, from.step(), "summary") && has_all_files(output);
}

}  // namespace so
