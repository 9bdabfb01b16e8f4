// superoffload completion.
#include <fmt/format.h>

#include "commands/command.h"
#include "commands/shell_text.h"

namespace so {

enum class ShellText : std::uint8_t { bash, zsh, man };

template <>
struct EnumNames<ShellText> {
  static constexpr std::pair<ShellText, std::string_view> list[] = {
      {ShellText::bash, "bash"}, {ShellText::zsh, "zsh"}, {ShellText::man, "man"}};
};

namespace {

struct CompletionOptions : MessageOptions {
  ShellText shell = ShellText::bash;
};

OptionTable<CompletionOptions> completion_table() {
  using O = CompletionOptions;
  OptionTable<O> t;
  t.group("What");
  t.add("shell", &O::shell, "The shell whose completion is printed; man: the manual page instead")
      .default_from(default_from::ours);
  t.group("Messages");
  t.take(message_rows());
  return t;
}

int run(const CompletionOptions& options, const OptionOrigins&) {
  fmt::print("{}", options.shell == ShellText::bash  ? bash_completion()
                   : options.shell == ShellText::zsh ? zsh_completion()
                                                     : manual_page());
  return exit_ok;
}

const RegisteredCommand completion_command([] {
  return make_command<CompletionOptions>(
      {.name = "completion",
       .position = 16,
       .summary = "print the completion of bash or zsh, or the manual page",
       .details =
           R"sh(Prints a script by which bash or zsh completes commands, options and their values, or the manual page.
cmake --install puts all three where the shells and man look for them. Without that, a line in ~/.bashrc
does: eval "$(superoffload completion bash)"; for zsh the output is the file _superoffload of a directory
on $fpath.)sh",
       .examples = {"superoffload completion bash", "superoffload completion man"},
       .bare = "shell"},
      completion_table(), nullptr, run);
});

}  // namespace
}  // namespace so
