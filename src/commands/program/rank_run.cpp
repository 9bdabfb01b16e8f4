#include "commands/program/rank_run.h"

#include <cstdlib>

#include "base/error.h"
#include "base/log.h"
#include "base/standard_streams.h"
#include "commands/program/guard.h"
#include "ranks/local_launch.h"
#include "ranks/mpi_ranks.h"
#include "ranks/together.h"

namespace so {
namespace {

// How long a rank may keep the others waiting where nobody knows better: train measures its steps
// (train/step_time_limit.h), and what reads or writes files allows for their sizes.
constexpr double time_limit_seconds = 1800;

const char* environment(const char* name) { return std::getenv(name); }

// Whether this rank is to say what ended the run: rank 0, which a rank that gives up has told why, but for the loss of
// rank 0 itself. If that one hears of its loss after all, it speaks where the others have told only the process that
// started them (`launched`).
bool speaks(int rank, const std::optional<int>& lost, bool launched) {
  if (lost != 0) return rank == 0;
  return rank == 1 || (rank == 0 && launched);
}

}  // namespace

RankRun::RankRun() {
  try {
    launch_ = find_launch(environment);
  } catch (const Error& error) {
    unusable_ = error.what();
  }
  if (launch_ && launch_->size == 1) launch_.reset();
}

int RankRun::run(const ParsedCommand& parsed, const std::vector<std::string>& arguments) const {
  const Command& command = *parsed.command;
  const bool knows_ranks = static_cast<bool>(command.asked_ranks);
  const int asked = knows_ranks ? command.asked_ranks(parsed.options.get()) : 1;
  if (knows_ranks && !unusable_.empty()) fail("{}", unusable_);
  if (launch_) return run_rank(parsed);
  if (asked > 1) return run_local_ranks(asked, arguments);
  const auto alone = make_single_communicator();
  return command.run(parsed.options.get(), parsed.origins, *alone);
}

int RankRun::run_rank(const ParsedCommand& parsed) const {
  const std::unique_ptr<LocalLauncher> launcher = LocalLauncher::connect(*launch_, environment);
  std::unique_ptr<Communicator> ranks;
  std::optional<int> lost;
  bool alike = false;  // every rank ends so
  std::string message;
  const int code = run_guarded(
      [&] {
        if (!parsed.command->asked_ranks)
          fail("{} runs on one rank, and {} has started {}: start it alone", parsed.command->name,
               name_of(launch_->launcher), launch_->size);
        ranks = make_mpi_ranks(time_limit_seconds);
        if (ranks->size() != launch_->size)
          fail(
              "{} has started {} ranks, but MPI connects {} of them: start them with mpirun or srun of the MPI library "
              "that this program is built with",
              name_of(launch_->launcher), launch_->size, ranks->size());
        try {
          const int result = parsed.command->run(parsed.options.get(), parsed.origins, *ranks);
          if (ranks->rank() == 0) flush_standard_output();
          return result;
        } catch (const RankFailure& failure) {
          if (!failure.gave_up()) lost = failure.rank();
          throw;
        } catch (const std::exception& exception) {
          alike = thrown_by_all(exception);
          throw;
        }
      },
      message);
  if (!message.empty()) {
    constexpr std::string_view own = "superoffload: ";
    if (ranks && !alike) ranks->abort(message.substr(message.starts_with(own) ? own.size() : 0));
    keep_progress_line();
    if (speaks(launch_->rank, lost, launcher != nullptr)) log_message(LogLevel::failure, message);
  }
  // Rank 0's code is the run's. A launcher ends the other ranks for one that fails, and rank 0 may not have spoken yet.
  if (launch_->rank > 0 && (message.empty() || alike)) return exit_ok;
  return launcher ? launcher->end(code) : code;
}

}  // namespace so
