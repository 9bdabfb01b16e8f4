#include "commands/command.h"

#include <algorithm>

namespace so {
namespace {

std::vector<Command (*)()>& makers() {
  static std::vector<Command (*)()> list;
  return list;
}

}  // namespace

RegisteredCommand::RegisteredCommand(Command (*make)()) { makers().push_back(make); }

const std::vector<Command>& all_commands() {
  static const std::vector<Command> commands = [] {
    std::vector<Command> list;
    for (const auto make : makers()) list.push_back(make());
    std::sort(list.begin(), list.end(), [](const Command& a, const Command& b) { return a.position < b.position; });
    return list;
  }();
  return commands;
}

const Command* find_command(std::string_view name) {
  for (const Command& command : all_commands())
    if (command.name == name) return &command;
  return nullptr;
}

Mode all_state_on_device(std::string_view option, std::string_view value) {
  return {option,
          value,
          "all optimizer state is the device's",
          {"streamed_layers", "mode", "cast_side", "update_over_link", "move_gradients"}};
}

Mode one_rank() { return {"gpus", "1", "one rank exchanges nothing", {"collectives"}}; }

void check_mode(const Mode& mode, OptionsView options, const OptionOrigins& origins) {
  const OptionSpec& chosen = options.rows().at(mode.option);
  const std::string value = to_string(options.get(chosen));
  if (mode.value.empty() ? value == to_string(chosen.default_value) : value != mode.value) return;
  for (const std::string_view name : mode.idle) {
    const OptionSpec& spec = options.rows().at(name);
    const OptionValue set = options.get(spec);
    const Origin origin = origins.of(name).origin;
    // The value that stands for unset asks for nothing, and a file may say a default without asking for it.
    if (origin < Origin::run_file || set == spec.special_value) continue;
    if (origin == Origin::run_file && set == spec.default_value) continue;
    fail("--{} has nothing to do with --{} {}, where {}: remove one of them", name, mode.option, value, mode.why);
  }
}

void check_exactly_one(OptionsView options, const OptionOrigins& origins, std::initializer_list<const char*> names) {
  std::vector<std::string> given, all;
  for (const char* name : names) {
    all.push_back(std::string("--") + name);
    if (origins.given(name) && to_string(options.get(name)) != "false") given.push_back(all.back());
  }
  if (given.size() == 1) return;
  if (given.empty()) fail("missing {}", join(all, " or "));
  fail("{} exclude each other: give one of them", join(given, " and "));
}

}  // namespace so
