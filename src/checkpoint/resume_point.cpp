#include "checkpoint/resume_point.h"

#include "checkpoint/directory_checks.h"
#include "checkpoint/model_files.h"
#include "io/metrics.h"

namespace so {

ResumePoint read_resume_point(const OutputDirectory& output, const TrainOptions& asked, std::uint64_t data_key,
                              bool checks_files) {
  ResumePoint from{output.checkpoint(), {}};
  if (!from.checkpoint) return from;
  const ResumeCheck check(from.checkpoint->path);
  check.require_whole_state();
  from.state = read_trainer_state(from.state_file());
  output.require_same_run(*from.state, asked, data_key);
  if (checks_files) check.require_whole();
  return from;
}

bool is_finished(const std::filesystem::path& output, const ResumePoint& from, std::int64_t total_steps) {
  return from.state && from.step() >= total_steps && has_metrics_line(output, from.step(), "summary") &&
         has_weight_files(output);
}

}  // namespace so
