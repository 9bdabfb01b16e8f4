#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/comma_list.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/quantities.h"
#include "commands/command.h"
#include "commands/report/page_server.h"
#include "commands/report/report_page.h"
#include "io/metrics_reader.h"
#include "io/output_file.h"
#include "io/run_lock.h"

namespace so {
namespace {

namespace fs = std::filesystem;

struct ReportOptions : MessageOptions {
  std::string runs;
  std::string output = "report.html";
  bool watch = false;
  std::optional<int> port;
};

OptionTable<ReportOptions> report_table() {
  using namespace default_from;
  using O = ReportOptions;
  OptionTable<O> t;
  t.group("Runs");
  t.add("runs", &O::runs, "Output directories of train, with commas between them; --runs itself may be left out")
      .metavar("DIR")
      .required()
      .elsewhere("output_dir")
      .elsewhere("logdir");
  t.group("Page");
  t.add("output", &O::output, "The page; one that this program wrote before is written over")
      .metavar("FILE")
      .default_from(ours);
  t.add("watch", &O::watch, "Serve the page on this machine while the runs go on; then write it").default_from(ours);
  t.add("port", &O::port, "Where to serve it")
      .at_least(1)
      .at_most(65535)
      .or_else(std::int64_t{0}, "a free one")
      .default_from(ours);
  t.group("Messages");
  t.take(message_rows());
  return t;
}

// The directories of a list. A name that has commas itself is known by being there.
std::vector<fs::path> directories_of(std::string_view text) {
  const std::vector<std::string_view> parts = between_commas(text);
  std::vector<fs::path> directories;
  std::error_code ignored;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::size_t last = i;
    for (std::size_t j = i; j < parts.size(); ++j)
      if (fs::is_directory(fs::path(std::string_view(parts[i].data(), parts[j].data() + parts[j].size())), ignored))
        last = j;
    directories.emplace_back(std::string_view(parts[i].data(), parts[last].data() + parts[last].size()));
    i = last;
  }
  std::set<fs::path> seen;
  for (const fs::path& directory : directories) {
    if (directory.empty()) fail("--runs has an empty name: give the --output_dir of each run");
    if (!seen.insert(fs::weakly_canonical(directory, ignored)).second)
      fail("{} is given twice; name each run once", printable_path(directory));
  }
  return directories;
}

ReportRun read_run(const fs::path& directory) {
  ReportRun run;
  run.name = directory.string();
  // Asked before reading, so that a run that ends meanwhile counts as going on, and is looked at once more.
  run.going_on = RunLock::held(directory);
  run.metrics = read_metrics_file(directory);
  run.samples = read_samples_file(directory);
  return run;
}

std::vector<ReportRun> read_runs(const std::vector<fs::path>& directories) {
  std::vector<ReportRun> runs;
  for (const fs::path& directory : directories) runs.push_back(read_run(directory));
  return runs;
}

bool any_goes_on(const std::vector<ReportRun>& runs) {
  return std::any_of(runs.begin(), runs.end(), [](const ReportRun& run) { return run.going_on; });
}

void write_page(const std::string& file, const std::vector<ReportRun>& runs) {
  const std::string page = report_page(runs);
  write_text_file_atomically(file, page);
  for (const ReportRun& run : runs)
    if (!run.metrics.damage.empty())
      log_warning("{}/metrics.jsonl: {}; it was read up to there", printable(run.name), run.metrics.damage);
  log_info("wrote {}: {} of {} run{}", printable_path(file), format_bytes(page.size()), runs.size(),
           runs.size() == 1 ? "" : "s");
}

// Serves until no run goes on. Then whoever has looked may fetch the last state.
std::vector<ReportRun> serve(const std::vector<fs::path>& directories, std::vector<ReportRun> runs, int port) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds between_looks{500};
  constexpr double page_seconds = 3;  // between two looks of the page
  constexpr std::chrono::seconds last_look{10};
  PageServer server(port);
  const auto publish = [&](double watching) {
    server.publish(report_page(runs, watching), report_data(runs, watching));
  };
  publish(page_seconds);
  log_message(
      LogLevel::info,
      fmt::format("serving http://127.0.0.1:{}/ until the runs end; Ctrl-C stops it, and no run", server.port()));
  while (any_goes_on(runs)) {
    // Reading a long run again takes its time: no more than a fifth of a core goes into it.
    const auto begin = Clock::now();
    runs = read_runs(directories);
    publish(any_goes_on(runs) ? page_seconds : 0);
    std::this_thread::sleep_for(std::max<Clock::duration>(between_looks, 4 * (Clock::now() - begin)));
  }
  const auto end = Clock::now();
  while (server.ever_read() && server.readers() == 0 && Clock::now() - end < last_look)
    std::this_thread::sleep_for(between_looks);
  return runs;
}

int run_report(const ReportOptions& options, const OptionOrigins&) {
  const std::vector<fs::path> directories = directories_of(options.runs);
  std::vector<ReportRun> runs = read_runs(directories);
  for (const ReportRun& run : runs)
    if (run.metrics.empty() && !run.metrics.damage.empty())
      fail("{}/metrics.jsonl: {}; it is not a run's record", printable(run.name), run.metrics.damage);
  require_output_file(options.output, "--output", is_report_page);
  if (options.watch) {
    if (!any_goes_on(runs))
      fail("--watch: no run goes on in {}; leave it out for the page of runs that have ended", printable(options.runs));
    runs = serve(directories, std::move(runs), options.port.value_or(0));
  }
  write_page(options.output, runs);
  return exit_ok;
}

const RegisteredCommand report_command([] {
  return make_command<ReportOptions>(
      {.name = "report",
       .position = 6,
       .summary = "make a page of what runs recorded",
       .details =
           R"(Writes one HTML file of one run or of several, laid over each other: loss, evaluations, gradient norm
with clipped and skipped steps, learning rate, tokens/s, memory, where a step's time went, what was
planned beside what was measured, memory by name, the texts of --sample_prompts by step, and the settings
with where they came from. The file loads nothing from anywhere, and any browser opens it.

A run that goes on can be looked at too. --watch serves the page to browsers of this machine, which
follow the run; when it ends, the page is written.)",
       .examples = {"superoffload report out", "superoffload report out-lr1e-5 out-lr2e-5 --output compared.html",
                    "superoffload report out --watch --port 8080"},
       .bare = "runs",
       .several_bare = true,
       .modes = {{"watch", "false", "the page is written to a file", {"port"}}}},
      report_table(), nullptr, run_report);
});

}  // namespace
}  // namespace so
