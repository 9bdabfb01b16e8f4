#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <system_error>
#include <vector>

#include "base/host_memory.h"
#include "base/log.h"
#include "base/process_limits.h"
#include "base/program_path.h"
#include "base/standard_streams.h"
#include "commands/program/guard.h"
#include "commands/program/hub_ids.h"
#include "commands/program/parse.h"
#include "commands/program/rank_run.h"
#include "commands/program/terminate.h"

namespace so {
namespace {

int show(const std::string& text) {
  fmt::print("{}", text);
  return exit_ok;
}

int run(const RankRun& ranks, const std::vector<std::string>& arguments) {
  const ParsedCommand parsed = parse_command_line(arguments, ranks.ranks());
  if (!parsed.command) return show(parsed.text);
  use_hub_snapshots({*parsed.command->rows, parsed.options.get()}, ranks.rank(), ranks.ranks());
  return ranks.run(parsed, arguments);
}

// A result that did not reach standard output is a failure, whatever the command thinks, unless its reader has gone.
int run_and_flush(const RankRun& ranks, const std::vector<std::string>& arguments) {
  int code = exit_ok;
  try {
    try {
      code = run(ranks, arguments);
      flush_standard_output();
    } catch (const std::system_error& error) {  // as fmt::print throws it for a stream that cannot be written
      flush_standard_output(error.code().value());
      throw;
    }
  } catch (const ReaderGone&) {
  }
  return code;
}

}  // namespace
}  // namespace so

int main(int argc, char** argv) {
  so::leave_libraries_of_working_directory(argv);
  so::prepare_standard_streams();
  so::prepare_for_memory_limits();
  so::install_terminate_handler();
  so::keep_to_host_nodes();
  // A file size limit (ulimit -f) then fails the write, which is reported with its file like a full disk.
  ::signal(SIGXFSZ, SIG_IGN);
  const so::RankRun ranks;
  std::string message;
  const int code = so::run_guarded(
      [&] {
        so::require_stack();
        return so::run_and_flush(ranks, {argv + std::min(argc, 1), argv + argc});
      },
      message);
  so::keep_progress_line();
  if (!message.empty() && ranks.rank() == 0) so::log_message(so::LogLevel::failure, message);
  return code;
}
