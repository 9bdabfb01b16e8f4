// A command of the program: what it declares, and what it does. Each is registered by the file of its name, which is
// the only one that knows it:
//
//   const RegisteredCommand verify_command([] {
//     return make_command<VerifyOptions>({.name = "verify", ...}, verify_table(), check, run);
//   });
//
// `run` returns an exit code: exit_ok, exit_interrupted, or exit_failure where numbers are not finite. Everything else
// is an exception: Error (exit_user_error), Bug (exit_internal_error); std::runtime_error where the system failed
// (exit_failure); what else the standard library throws is translated in guard.cpp. Results go to standard output, the
// rest to the log.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/option_table.h"
#include "options/option_groups.h"
#include "ranks/communicator.h"

namespace so {

enum ExitCode : int {
  exit_ok = 0,
  exit_failure = 1,          // the system failed: out of memory, disk full; or a run or a loss is not finite
  exit_user_error = 2,       // so::Error
  exit_internal_error = 70,  // so::Bug; EX_SOFTWARE of sysexits.h
  exit_interrupted = 130,    // train has saved a checkpoint and stopped, upon SIGINT or another signal of interrupt.h
};

// A setting under which other options of the command have nothing to do. Those are refused when the command line gives
// them a value, so that none is silently ignored.
struct Mode {
  std::string_view option;
  std::string_view value;  // empty: any but the default
  std::string_view why;    // "there is no optimizer"
  std::vector<std::string_view> idle;
};

// The modes of several commands: with that value of that option the device has all optimizer state, and there is one
// rank.
Mode all_state_on_device(std::string_view option, std::string_view value);
Mode one_rank();

struct CommandText {
  std::string_view name;     // one word, or two: "bench step"
  int position = 0;          // where it stands in lists: the lower, the earlier
  std::string_view summary;  // one line
  std::string_view details;  // paragraphs for --help
  std::vector<std::string_view> examples;
  std::string_view bare = {};  // the option whose value may stand alone: "verify DIR"; empty: none
  bool several_bare = false;   // or several values, which become one with commas between them: "report DIR DIR"
  std::vector<Mode> modes = {};
};

// `void*` is the command's own options struct, of which `type` is the type.
struct Command : CommandText {
  std::shared_ptr<const OptionRows> rows;
  const std::type_info* type = nullptr;
  std::function<std::shared_ptr<void>()> make_options;  // with their defaults
  // After the line's values are set: reads a DeepSpeed file, and refuses what no single row can.
  std::function<void(void* options, OptionOrigins& origins, int ranks)> complete;
  // The file of options that the options ask for. Empty: the command takes none.
  std::function<const RunFileOptions&(const void* options)> asked_file;
  // The ranks that the options ask for. Empty: the command knows no ranks, and runs on one.
  std::function<int(const void* options)> asked_ranks;
  std::function<int(const void* options, const OptionOrigins& origins, Communicator& ranks)> run;
};

// Refuses the options that the mode leaves idle, where the options are in it.
void check_mode(const Mode& mode, OptionsView options, const OptionOrigins& origins);

// `run` shares the work with the other ranks, of which only the first says anything.
template <class S>
Command make_rank_command(CommandText text, OptionTable<S> table,
                          std::type_identity_t<void (*)(S&, OptionOrigins&, int)> complete,
                          std::type_identity_t<std::function<int(const S&, const OptionOrigins&, Communicator&)>> run) {
  Command command{std::move(text)};
  command.rows = std::make_shared<const OptionTable<S>>(std::move(table));
  command.type = &typeid(S);
  command.make_options = [] { return std::make_shared<S>(); };
  command.complete = [complete, rows = command.rows, modes = command.modes](void* options, OptionOrigins& origins,
                                                                            int ranks) {
    check_required(OptionsView(*rows, options));
    if (complete) complete(*static_cast<S*>(options), origins, ranks);
    for (const Mode& mode : modes) check_mode(mode, OptionsView(*rows, options), origins);
  };
  if constexpr (std::is_base_of_v<RunFileOptions, S>)
    command.asked_file = [](const void* options) -> const RunFileOptions& { return *static_cast<const S*>(options); };
  if constexpr (std::is_base_of_v<RankOptions, S>)
    command.asked_ranks = [](const void* options) { return static_cast<const S*>(options)->gpus; };
  command.run = [run](const void* options, const OptionOrigins& origins, Communicator& ranks) {
    const S& own = *static_cast<const S*>(options);
    apply_verbosity(own);
    if (ranks.rank() > 0) set_log_level(LogLevel::failure);
    return run(own, origins, ranks);
  };
  return command;
}

template <class S>
Command make_command(CommandText text, OptionTable<S> table,
                     std::type_identity_t<void (*)(S&, OptionOrigins&, int)> complete,
                     std::type_identity_t<int (*)(const S&, const OptionOrigins&)> run) {
  return make_rank_command<S>(
      std::move(text), std::move(table), complete,
      [run](const S& options, const OptionOrigins& origins, Communicator&) { return run(options, origins); });
}

// Adds a command to all_commands(), where it is made when the list is first asked for.
struct RegisteredCommand {
  explicit RegisteredCommand(Command (*make)());
};

// In the order of their positions.
const std::vector<Command>& all_commands();
const Command* find_command(std::string_view name);  // null: there is none

// `names` are options of which exactly one must be given, even if its value is empty.
void check_exactly_one(OptionsView options, const OptionOrigins& origins, std::initializer_list<const char*> names);

}  // namespace so
