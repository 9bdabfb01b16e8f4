#include <fmt/core.h>
#include <signal.h>

#include <cstdio>
#include <string>
#include <system_error>
#include <type_traits>
#include <variant>

#include "base/log.h"
#include "base/process_limits.h"
#include "base/standard_streams.h"
#include "commands/commands.h"
#include "commands/guard.h"
#include "commands/parse.h"
#include "commands/terminate.h"
#include "options/verbosity.h"

namespace so {
namespace {

int show(const std::string& text) {
  fmt::print("{}", text);
  return exit_ok;
}

int run(const ParsedCommand& command) {
  return std::visit(
      [&](const auto& options) -> int {
        using O = std::decay_t<decltype(options)>;
        if constexpr (requires { options.quiet; }) apply_verbosity(options.verbose, options.quiet);
        if constexpr (std::is_same_v<O, ShowText>)
          return show(options.text);
        else if constexpr (std::is_same_v<O, TrainOptions>)
          return run_train(options, command.origins);
        else if constexpr (std::is_same_v<O, InitOptions>)
          return run_init(options);
        else if constexpr (std::is_same_v<O, EvalOptions>)
          return run_eval(options, command.origins);
        else if constexpr (std::is_same_v<O, GenerateOptions>)
          return run_generate(options);
        else if constexpr (std::is_same_v<O, TokenizeOptions>)
          return run_tokenize(options);
        else if constexpr (std::is_same_v<O, PlanOptions>)
          return run_plan(options);
        else if constexpr (std::is_same_v<O, ProfileOptions>)
          return run_profile(options);
        else if constexpr (std::is_same_v<O, VerifyOptions>)
          return run_verify(options);
        else if constexpr (std::is_same_v<O, CacheOptions>)
          return run_cache(options);
        else if constexpr (std::is_same_v<O, BenchStepOptions>)
          return run_bench_step(options);
        else if constexpr (std::is_same_v<O, BenchOpsOptions>)
          return run_bench_ops(options);
        else
          return run_bench_load(options);
      },
      command.options);
}

// A result that did not reach standard output is a failure, whatever the command thinks.
int run_and_flush(const ParsedCommand& command) {
  try {
    const int code = run(command);
    flush_standard_output();
    return code;
  } catch (const std::system_error& error) {  // as fmt::print throws it for a stream that cannot be written
    flush_standard_output(error.code().value());
    throw;
  }
}

}  // namespace
}  // namespace so

int main(int argc, char** argv) {
  so::prepare_standard_streams();
  so::prepare_for_memory_limits();
  so::install_terminate_handler();
  // A file size limit (ulimit -f) then fails the write, which is reported with its file like a full disk.
  ::signal(SIGXFSZ, SIG_IGN);
  std::string message;
  const int code = so::run_guarded(
      [&] {
        so::require_stack();
        return so::run_and_flush(so::parse_command_line(argc, argv));
      },
      message);
  so::keep_progress_line();
  if (!message.empty()) so::log_message(so::LogLevel::failure, message);
  return code;
}
