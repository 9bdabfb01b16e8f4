#include <signal.h>

#include <cstdio>
#include <string>
#include <type_traits>
#include <variant>

#include "base/log.h"
#include "cli/guard.h"
#include "cli/parse.h"
#include "train/commands.h"

namespace so {
namespace {

int show(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  return written ? exit_ok : exit_failure;
}

int run(const ParsedCommand& command) {
  return std::visit(
      [&](const auto& options) -> int {
        using O = std::decay_t<decltype(options)>;
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
        else if constexpr (std::is_same_v<O, BenchStepOptions>)
          return run_bench_step(options);
        else if constexpr (std::is_same_v<O, BenchOpsOptions>)
          return run_bench_ops(options);
        else
          return run_bench_load(options);
      },
      command.options);
}

}  // namespace
}  // namespace so

int main(int argc, char** argv) {
  // A file size limit (ulimit -f) then fails the write, which is reported with its file like a full disk.
  ::signal(SIGXFSZ, SIG_IGN);
  std::string message;
  const int code = so::run_guarded([&] { return so::run(so::parse_command_line(argc, argv)); }, message);
  if (!message.empty()) {
    so::set_progress_line("");
    std::fprintf(stderr, "%s\n", message.c_str());
  }
  return code;
}
