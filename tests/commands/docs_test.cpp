// docs/command-line.md repeats --help; here it is held to it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "commands/program/parse.h"
#include "support/generated_text.h"

namespace so {
namespace {

TEST(Docs, CommandLineMatchesTheTables) {
  for (const Command& command : all_commands()) {
    std::string text = fmt::format("`{}`\n\n{}\n\n```sh\n", usage(command), command.details);
    for (const std::string_view example : command.examples) text += example_lines(example, 118);
    expect_generated_text("command-line.md", std::string(command.name),
                          text + "```\n\n" + markdown_text(*command.rows));
  }
}

}  // namespace
}  // namespace so
