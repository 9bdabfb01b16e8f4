// Whatever a command prints fits the terminal, and the answer is where one looks for it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <sstream>

#include "base/terminal.h"
#include "commands/program/parse.h"
#include "support/label.h"
#include "support/refusal.h"
#include "support/terminal.h"

namespace so::test {
namespace {

constexpr std::size_t widths[] = {80, 120};

void expect_fits(const std::string& text, std::size_t columns) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(columns_of(line), columns) << line;
}

TEST(HelpScreens, FitEveryWidth) {
  for (const std::size_t columns : {widths[0], std::size_t{100}, widths[1]}) {
    SCOPED_TRACE(columns);
    expect_fits(program_help(columns), columns);
    expect_fits(group_help("bench", columns), columns);
    for (const Command& command : all_commands()) expect_fits(command_help(command, columns), columns);
  }
}

TEST(HelpScreens, ExamplesStayCommands) {
  EXPECT_EQ(example_lines("a --b c --d e", 80, "  "), "  a --b c --d e\n");
  EXPECT_EQ(example_lines("a --b c --d e", 12, "  "), "  a --b c \\\n      --d e\n");
}

class Screens : public RefusalTest {
 protected:
  TerminalOutcome shown(const std::vector<std::string>& words, std::size_t columns, const std::string& before = "") {
    std::string line = "cd '" + temporary_.path().string() + "'; " + before + "exec env TERM=xterm '" + binary() + "'";
    for (const std::string& word : words) line += " '" + word + "'";
    TerminalOutcome o = run_on_terminal({"/bin/sh", "-c", line}, temporary_.path(), columns);
    EXPECT_EQ(o.screen.overflows(), 0) << o.screen.text();
    return o;
  }
  // The rows that are not empty.
  static std::vector<std::string> rows_of(const TerminalOutcome& o) {
    std::vector<std::string> rows = o.screen.rows();
    std::erase(rows, "");
    return rows;
  }
  static std::vector<std::string> arguments(const TrainCommand& c) {
    std::vector<std::string> words = c.words();
    words.erase(words.begin());
    return words;
  }
  TrainCommand small(const std::string& output) const {
    TrainCommand c("model", "data.jsonl", output);
    return c.set("batch_size", "2").set("max_length", "32").set("cache_dir", "cache").set("max_steps", "3");
  }
};

TEST_F(Screens, HelpIsAsWideAsTheTerminal) {
  for (const std::size_t columns : widths) {
    const TerminalOutcome o = shown({"train", "--help"}, columns);
    EXPECT_EQ(o.exit_code, 0);
    EXPECT_EQ(o.screen.text().substr(0, command_help(*find_command("train"), columns).size()),
              command_help(*find_command("train"), columns));
  }
}

TEST_F(Screens, APlanBeginsWithItsAnswerInTenLines) {
  for (const std::size_t columns : widths) {
    const TerminalOutcome o = shown({"plan", "--model", "qwen3-0.6b", "--max_length", "512"}, columns);
    EXPECT_EQ(o.exit_code, 0) << o.screen.text();
    const std::vector<std::string> rows = rows_of(o);
    EXPECT_EQ(rows.size(), 10u) << o.screen.text();
    EXPECT_TRUE(rows.at(0).starts_with("it fits; expected: ")) << rows[0];
    EXPECT_NE(rows[0].find(" s a step, "), std::string::npos) << rows[0];
    EXPECT_NE(rows[0].find(" tokens/s"), std::string::npos) << rows[0];
    for (const char* part : {"GPU memory   ", "host memory  ", " of ", "%)"})
      EXPECT_NE(o.screen.text().find(part), std::string::npos) << part << o.screen.text();
    shown({"plan", "--model", "qwen3-0.6b", "--max_length", "512", "--verbose", "--explain", "split"}, columns);
  }
  shown({"plan", "--model", "qwen3-0.6b", "--gpus", "8", "--max_length", "512", "--verbose"}, widths[0]);
}

// And then what a person can do, at a line or two each.
// The search for what to freeze has seconds of CPU time. Where they end it early, as under the address sanitizer beside
// other work, its pattern can be longer than a row.
SO_LABEL(no_asan, "Screens.APlanThatDoesNotFitSaysSoFirst");
TEST_F(Screens, APlanThatDoesNotFitSaysSoFirst) {
  const TerminalOutcome o =
      shown({"plan", "--model", "qwen3-0.6b", "--max_length", "512", "--host_memory", "1GB", "--device_memory", "4GB"},
            widths[0]);
  EXPECT_EQ(o.exit_code, 2);
  EXPECT_LE(rows_of(o).size(), 16u) << o.screen.text();
  EXPECT_EQ(rows_of(o).at(0), "does not fit:") << o.screen.text();
}

TEST_F(Screens, ADryRunEndsWithItsVerdict) {
  for (const std::size_t columns : widths) {
    const TerminalOutcome o = shown(arguments(small("new").flag("dry_run")), columns);
    EXPECT_EQ(o.exit_code, 0) << o.screen.text();
    EXPECT_EQ(rows_of(o).back(), "dry run: it fits; nothing was trained");
    EXPECT_LE(rows_of(o).size(), 25u) << "a screen: " << o.screen.text();
    shown(arguments(small("new").flag("dry_run").flag("verbose")), columns);
  }
}

TEST_F(Screens, ARunEndsWithWhatToDoNext) {
  for (const std::size_t columns : widths) {
    const std::string output = "a run " + std::to_string(columns);
    const TerminalOutcome o = shown(arguments(small(output).set("cpu_threads", "1")), columns);
    EXPECT_EQ(o.exit_code, 0) << o.screen.text();
    if (!on_gpu()) {
      for (const char* part : {"GPU", "1 threads"})
        EXPECT_EQ(o.screen.text().find(part), std::string::npos) << part << " on the CPU: " << o.screen.text();
    }
    const std::vector<std::string> rows = rows_of(o);
    EXPECT_EQ(rows.back(), "      superoffload report '" + output + "'") << "as a shell takes it";
    EXPECT_TRUE(rows.at(rows.size() - 2).starts_with("next: superoffload generate --model '" + output + "'"));
  }
}

SO_LABEL(tsan, "Screens.ARunThatIsInterruptedEndsWithWhereItWasSaved");
TEST_F(Screens, ARunThatIsInterruptedEndsWithWhereItWasSaved) {
  const std::string interrupt =
      "(until grep -q '\"loss\"' out/metrics.jsonl 2>/dev/null; do sleep 0.01; done; kill -INT $$) & ";
  for (const bool quiet : {false, true}) {
    TrainCommand c = small("out").set("max_steps", "1000000").set("overwrite_output_dir", "true");
    if (quiet) c.flag("quiet");
    std::filesystem::remove_all(temporary_ / "out");
    const TerminalOutcome o = shown(arguments(c), widths[0], interrupt);
    EXPECT_EQ(o.exit_code, 130) << o.screen.text();
    std::string end;
    for (const std::string& row : rows_of(o)) end = row.starts_with("superoffload: ") ? row : end + row.substr(1);
    EXPECT_TRUE(end.starts_with("superoffload: interrupted by SIGINT: saved out/checkpoint-")) << o.screen.text();
    EXPECT_TRUE(end.ends_with("continue with --resume")) << o.screen.text();
  }
}

// As `| head` leaves it: nobody wants the rest, and that is no failure.
TEST_F(Screens, AReaderThatGoesIsNoFailure) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"train", "--help"},
                                                {"plan", "--model", "qwen3-0.6b", "--json"},
                                                arguments(small("o"))}) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    ::close(ends[0]);
    Limits limits;
    limits.output = ends[1];
    limits.directory = temporary_.path();
    std::vector<std::string> command = words;
    command.insert(command.begin(), binary());
    EXPECT_EQ(run(command, temporary_.path(), limits).exit_code, 0) << words[0];
    ::close(ends[1]);
  }
  EXPECT_TRUE(std::filesystem::exists(temporary_ / "o/model.safetensors"));
}

}  // namespace
}  // namespace so::test
