// Every option of every command, as `--help` lists them, with values that it should not take.
#include <fmt/core.h>

#include <regex>
#include <set>

#include "faults/fault_case.h"
#include "support/files.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

using Words = std::vector<std::string>;

std::vector<std::string> values() {
  return {"",
          "x",
          "-1",
          "0",
          "nan",
          "inf",
          "-inf",
          "1e400",
          "1e-60",
          "99999999999999999999",
          "1e",
          "1,2",
          "true",
          "\xff",
          "foreign/thesis.txt",
          "foreign",
          "/dev/full",
          "/dev/null",
          "/proc/self/nothing/there",
          ".",
          "..",
          "model",
          "run",
          "data.jsonl",
          std::string(5'000, 'a')};
}

// How many words of the line are the command's name.
std::size_t name_words(const Words& line) { return line[0] == "bench" ? 2 : 1; }

}  // namespace

std::set<std::string> options_of(const Words& line, const fs::path& directory) {
  Words words(line.begin(), line.begin() + static_cast<std::ptrdiff_t>(name_words(line)));
  words.push_back("--help");
  const std::string help = run_program(words, directory).out;
  std::set<std::string> names;
  const std::regex option(R"((?:^|\n)  --([a-z][a-z0-9_]*))");
  for (std::sregex_iterator i(help.begin(), help.end(), option), end; i != end; ++i) names.insert((*i)[1].str());
  return names;
}

Words with_option(Words line, const std::string& name, const std::string& value) {
  const auto at = std::find(line.begin(), line.end(), "--" + name);
  if (at != line.end()) {
    *(at + 1) = value;
  } else {
    line.insert(line.end(), {"--" + name, value});
  }
  return line;
}

const std::vector<std::vector<std::string>>& good_lines() {
  static const std::vector<std::vector<std::string>> lines = {
      model_command(0),
      model_command(1),
      model_command(2),
      model_command(3),
      model_command(4),
      {"init", "--config", "config.json", "--tokenizer", "model", "--output_dir", "out"},
      {"bench", "step", "--config", "config.json", "--device", "cpu", "--batch_size", "1", "--max_length", "16",
       "--steps", "1", "--warmup", "0"},
      {"bench", "load", "--model", "model", "--device", "cpu"},
      {"report", "--runs", "run", "--output", "page.html"},
      {"verify", "--dir", "run"},
      {"cache", "--cache_dir", "cache"}};
  return lines;
}

std::vector<FaultCase> option_cases(int count, unsigned seed) {
  TemporaryDirectory help;
  std::vector<FaultCase> cases;
  std::mt19937 order(seed);
  for (const Words& line : good_lines()) {
    const std::set<std::string> options = options_of(line, help.path());
    if (options.empty()) throw std::runtime_error(line[0] + " --help lists no options");
    for (const std::string& option : options) {
      std::vector<std::string> all = values();
      std::shuffle(all.begin(), all.end(), order);
      all.resize(std::min<std::size_t>(all.size(), static_cast<std::size_t>(count)));
      for (const std::string& value : all) {
        // A run over what is there must still leave what is not its own.
        const bool overwrite =
            options.contains("overwrite_output_dir") && option != "overwrite_output_dir" && order() % 2 == 0;
        const std::string command = line[0] + (line[0] == "bench" ? " " + line[1] : "");
        cases.push_back({"options: " + command,
                         fmt::format("--{} {}{}", option, value.substr(0, 40), overwrite ? " overwriting" : ""),
                         [line, option, value, overwrite](const fs::path& work) {
                           Words words = with_option(line, option, value);
                           if (overwrite) words.insert(words.end(), {"--overwrite_output_dir", "true"});
                           const std::string complaint = judge(run_program(words, work));
                           return complaint.empty() ? judge_foreign(work) : complaint;
                         }});
      }
    }
  }
  return cases;
}

}  // namespace so::test
