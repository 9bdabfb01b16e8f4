// A run's output is checked on a terminal of any width, without one, with --quiet and --verbose, and in run.log.
#include "support/terminal.h"

#include <gtest/gtest.h>

#include <regex>

#include "support/refusal.h"

namespace so::test {
namespace {

class TerminalTest : public RefusalTest {
 protected:
  // Six steps, evaluated every two, saved every three. Paths are relative to the temporary directory: a message cannot
  // be narrower than a path in it.
  TrainCommand six_steps(const std::string& output) const {
    TrainCommand c("model", "data.jsonl", output);
    c.set("eval_data", "data.jsonl").set("batch_size", "2").set("max_length", "32").set("cache_dir", "cache");
    return c.set("max_steps", "6").set("eval_steps", "2").set("save_steps", "3").set("save_total_limit", "1");
  }
  std::vector<std::string> here(const TrainCommand& c) const {
    std::string line = "cd '" + temporary_.path().string() + "' && exec env TERM=xterm";
    for (const std::string& word : c.words()) line += " '" + word + "'";
    return {"/bin/sh", "-c", line};
  }
  Outcome run_here(const TrainCommand& c) const { return run(here(c), temporary_.path()); }
  std::string log_of(const std::string& run) const { return read_file(temporary_ / run / "run.log"); }

  static bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
  static std::size_t count(const std::string& text, const std::string& part) {
    std::size_t n = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
  }
};

TEST_F(TerminalTest, FitsAnyWidthAndLeavesTheLossesOnTheScreen) {
  for (const std::size_t columns : {80u, 120u, 200u}) {
    SCOPED_TRACE(columns);
    const std::string output = "out" + std::to_string(columns);
    const TerminalOutcome o =
        run_on_terminal(here(six_steps(output).set("log_interval", "3")), temporary_.path(), columns);
    const std::string text = o.screen.text();
    ASSERT_EQ(o.exit_code, 0) << text;
    EXPECT_EQ(o.screen.overflows(), 0) << text;
    std::size_t start = 0, last_step = 0;
    for (const auto& row : o.screen.rows()) {
      if (start == 0 && row.starts_with("step ")) start = static_cast<std::size_t>(&row - o.screen.rows().data());
      if (row.starts_with("step 6/6 | ")) last_step = static_cast<std::size_t>(&row - o.screen.rows().data());
    }
    EXPECT_LE(start, 25u) << text;
    ASSERT_GT(last_step, 0u) << text;
    EXPECT_TRUE(has(o.screen.rows()[last_step], "| loss ")) << text;
    EXPECT_TRUE(has(o.screen.rows()[last_step], " tok/s | ")) << text;
    EXPECT_EQ(has(o.screen.rows()[last_step], "TFLOP/s"), columns >= 120) << text;
    EXPECT_EQ(count(text, "step 5/6 |"), 0u) << "the line is redrawn in place: " << text;
    for (const char* step : {"step 3/6 |", "step 6/6 |"}) EXPECT_EQ(count(text, step), 1u) << text;
    for (const char* part :
         {"model: model: Qwen3ForCausalLM, ", "data: data.jsonl: 120 records, ", "plan: 6 steps of 1 x 2",
          on_gpu() ? "memory: GPU " : "memory: host ", "output: out", "step 2: evaluation loss ",
          "checkpoint saved: out", "checkpoint pruned: out", "trained: steps 1 to 6, ", " at step 1, ",
          "evaluation loss: best ", "(a Hugging Face directory", "next: superoffload generate --model out",
          "superoffload report out"})
      EXPECT_TRUE(has(text, part)) << part << " is missing in:\n" << text;
    for (const char* part : {"settings:", "memory plan:", "warning", "steps clipped", "measured: ", "overlap"})
      EXPECT_FALSE(has(text, part)) << part << text;
    for (const char* part : {"trained: ", "next: superoffload ", " of 6 steps clipped, 0 skipped", "measured: "})
      EXPECT_TRUE(has(log_of(output), part)) << part << log_of(output);
    EXPECT_EQ(has(log_of(output), "overlap efficiency: "), on_gpu()) << "the CPU has nothing to overlap";
  }
}

TEST_F(TerminalTest, LinesAtTheIntervalStayOnTheScreenAndInRunLog) {
  const TerminalOutcome o =
      run_on_terminal(here(six_steps("out").set("log_interval", "2").set("max_steps", "7")), temporary_.path(), 80);
  ASSERT_EQ(o.exit_code, 0) << o.screen.text();
  EXPECT_EQ(o.screen.overflows(), 0) << o.screen.text();
  const auto steps_in = [](const std::vector<std::string>& lines, const std::string& pattern) {
    std::string steps;
    for (const auto& text : lines) {
      std::smatch match;
      if (std::regex_match(text, match, std::regex(pattern))) steps += match[1];
    }
    return steps;
  };
  const std::vector<std::string> rows(o.screen.rows().begin(), o.screen.rows().end());
  EXPECT_EQ(steps_in(rows, R"(step (\d)/7 \| loss .*)"), "2467") << o.screen.text();
  // With every field, however narrow the terminal is, and with --quiet.
  const std::string line = R"(\S+ \S+ step (\d)/7 \| epoch \S+ \| loss \S+ \| .*TFLOP/s .* \| ETA \S+)";
  EXPECT_EQ(steps_in(lines_of(log_of("out")), line), "2467") << log_of("out");
  ASSERT_EQ(run_here(six_steps("quiet").set("log_interval", "3").set("max_steps", "7").flag("quiet")).exit_code, 0);
  EXPECT_EQ(steps_in(lines_of(log_of("quiet")), line), "367") << log_of("quiet");
}

TEST_F(TerminalTest, AWindowMayBeNarrowOrUnknown) {
  const TerminalOutcome narrow =
      run_on_terminal(here(six_steps("a").without("eval_data").without("eval_steps")), temporary_.path(), 40);
  ASSERT_EQ(narrow.exit_code, 0) << narrow.screen.text();
  EXPECT_EQ(narrow.screen.overflows(), 0) << narrow.screen.text();
  EXPECT_TRUE(has(narrow.screen.text(), "step 6/6 | loss ")) << narrow.screen.text();
  // Where the kernel does not know the width, COLUMNS says it.
  auto words = here(six_steps("b"));
  words.back().insert(words.back().find("TERM="), "COLUMNS=60 ");
  const TerminalOutcome unknown = run_on_terminal(words, temporary_.path(), 0);
  for (const auto& row : unknown.screen.rows()) EXPECT_LE(row.size(), 60u) << row;
}

TEST_F(TerminalTest, WithoutATerminalLinesAreStampedAndPlain) {
  const Outcome o = run_here(six_steps("out").set("log_interval", "2"));
  ASSERT_EQ(o.exit_code, 0) << o.err;
  const std::vector<std::string> results = lines_of(o.out);
  ASSERT_EQ(results.size(), 6u) << o.out;
  const char* const begins[] = {"trained: steps 1 to 6, ",
                                "loss: ",
                                "evaluation loss: best ",
                                "model: out (",
                                "next: superoffload generate --model out",
                                "      superoffload report out"};
  for (std::size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(results[i].starts_with(begins[i])) << results[i];
  EXPECT_FALSE(has(o.err, "trained: ")) << o.err;
  EXPECT_EQ((o.out + o.err).find_first_of("\r\x1b"), std::string::npos) << o.err;
  std::vector<std::string> steps;
  const std::regex line(R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d step (\d)/6 \| epoch \S+ \| loss \S+ \| .* \| ETA \S+)");
  for (const auto& text : lines_of(o.err)) {
    std::smatch match;
    if (std::regex_match(text, match, line)) steps.push_back(match[1]);
  }
  EXPECT_EQ(steps, (std::vector<std::string>{"2", "4", "6"})) << o.err;
}

TEST_F(TerminalTest, QuietSaysNothingAndVerboseEverything) {
  const Outcome quiet = run_here(six_steps("quiet").flag("quiet"));
  ASSERT_EQ(quiet.exit_code, 0) << quiet.err;
  EXPECT_EQ(quiet.err + quiet.out, "");
  const TerminalOutcome on_terminal = run_on_terminal(here(six_steps("quiet2").flag("quiet")), temporary_.path(), 80);
  EXPECT_EQ(on_terminal.screen.text(), "\n");
  const Outcome verbose = run_here(six_steps("verbose").flag("verbose"));
  ASSERT_EQ(verbose.exit_code, 0) << verbose.err;
  for (const char* part : {"settings:", "memory plan:", "optimizer state", "token cache "}) {
    EXPECT_TRUE(has(verbose.err, part)) << part;
    EXPECT_TRUE(has(log_of("verbose"), part)) << part;
    EXPECT_TRUE(has(log_of("quiet"), part)) << part;
  }
  expect_refusal(run_here(six_steps("both").flag("verbose").flag("quiet")), {"--verbose", "--quiet"});
}

TEST_F(TerminalTest, RunLogKeepsEveryRunWithTimes) {
  const TrainCommand first = six_steps("out").set("lr_scheduler", "constant").set("max_steps", "3");
  ASSERT_EQ(run_here(first).exit_code, 0);
  ASSERT_EQ(run_here(TrainCommand(first).set("max_steps", "6").flag("resume")).exit_code, 0);
  const std::string log = log_of("out");
  EXPECT_EQ(count(log, "settings:"), 2u) << log;
  EXPECT_EQ(count(log, "# Log of superoffload"), 1u) << log;
  EXPECT_TRUE(has(log, "resumed from ")) << log;
  const std::regex line(R"(|#.*|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d .*)");
  for (const auto& text : lines_of(log)) EXPECT_TRUE(std::regex_match(text, line)) << text;
  const Outcome refused = run_here(TrainCommand(first).set("max_steps", "9").set("lr", "1").flag("resume"));
  EXPECT_EQ(refused.exit_code, 2) << refused.err;
  EXPECT_EQ(log_of("out"), log) << "a run that was refused wrote something";
  // The error that ended a run stands there too.
  const Outcome failed = run(here(six_steps("full")), temporary_.path(), Limits{.file_bytes = 64 * 1024});
  EXPECT_EQ(failed.exit_code, 1) << failed.err;
  EXPECT_TRUE(has(log_of("full"), " superoffload: ")) << log_of("full");
}

TEST_F(TerminalTest, ARunLogThatCannotBeWrittenIsNoFailure) {
  std::filesystem::create_directory(temporary_ / "foreign");
  write_file(temporary_ / "foreign" / "run.log", "of another program\n");
  std::filesystem::create_directories(temporary_ / "directory" / "run.log");
  std::filesystem::create_directory(temporary_ / "link");
  write_file(temporary_ / "target", "");
  std::filesystem::create_symlink(temporary_ / "target", temporary_ / "link" / "run.log");
  for (const std::string name : {"foreign", "directory", "link"}) {
    const Outcome o = run_here(six_steps(name));
    EXPECT_EQ(o.exit_code, 0) << o.err;
    EXPECT_EQ(count(o.err, "warning: " + name + "/run.log cannot be written ("), 1u) << o.err;
    EXPECT_EQ(count(o.err, "warning: "), 1u) << o.err;
  }
  EXPECT_EQ(log_of("foreign"), "of another program\n");
  EXPECT_EQ(read_file(temporary_ / "target"), "");
}

TEST_F(TerminalTest, MetricsEndWithTheNumbersOfTheSummary) {
  const Outcome o = run_here(six_steps("out"));
  ASSERT_EQ(o.exit_code, 0) << o.err;
  const auto last = read_metrics(temporary_ / "out", true).back();
  const auto& run = last.at("run");
  EXPECT_EQ(run.at("steps"), 6);
  EXPECT_EQ(run.at("first_step"), 1);
  EXPECT_EQ(run.at("last_step"), 6);
  EXPECT_EQ(run.at("skipped_steps"), 0);
  std::int64_t tokens = 0;
  double best = 1e9, first = 0, final = 0;
  for (const auto& line : read_metrics(temporary_ / "out")) {
    if (line.contains("eval_loss")) best = std::min(best, line.at("eval_loss").get<double>());
    if (!line.contains("loss")) continue;
    tokens += line.at("tokens").get<std::int64_t>();
    if (line.at("step") == 1) first = line.at("loss");
    final = line.at("loss");
  }
  EXPECT_EQ(run.at("tokens"), tokens);
  const std::int64_t measured = run.at("measured_steps");
  EXPECT_GE(measured, 1);
  EXPECT_LE(measured, 5) << "the first begins with nothing under way";
  EXPECT_GT(run.at("tokens_per_s"), 0);
  EXPECT_EQ(run.at("first_loss"), first);
  EXPECT_EQ(run.at("last_loss"), final);
  EXPECT_EQ(run.at("best_evaluation").at("eval_loss"), best);
  EXPECT_TRUE(has(o.out, "trained: steps 1 to 6, " + std::to_string(tokens) + " tokens in ")) << o.out;
  // A resumed run counts its own steps.
  const Outcome resumed = run_here(six_steps("out").flag("resume"));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_FALSE(has(resumed.out, "trained: ")) << "there was no step left: " << resumed.out;
}

}  // namespace
}  // namespace so::test
