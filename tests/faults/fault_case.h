// A fault: one command run on inputs that are wrong in one way, or disturbed while it runs, and the oracle that judges
// how the program took it. Cases are generated from a seed, so that a name is enough to run one again.
#pragma once

#include <filesystem>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "support/process.h"

namespace so::test {

// The untouched inputs that every case starts from: a model of 2 layers with a tokenizer, records, a settings file and
// an output directory with a finished run and its checkpoints. Made once by the program itself.
class Originals {
 public:
  explicit Originals(const std::filesystem::path& directory);  // throws if the program cannot make them
  const std::filesystem::path& path() const { return directory_; }

 private:
  std::filesystem::path directory_;
};

// Each case has a working directory of its own that holds a writable copy of the originals:
// model/, data.jsonl, settings.json, run/ (the finished run) and foreign/ (files of somebody else).
struct FaultCase {
  std::string kind;  // of the campaign's list, e.g. "json: config.json"
  std::string name;  // of the case within its kind, e.g. "#17 /rope_theta = NaN (eval)"
  // Does the harm and runs the program in `work`. Returns complaints; empty: the program behaved.
  std::function<std::string(const std::filesystem::path& work)> run;
};

// `count` cases of each kind, the same for the same seed.
std::vector<FaultCase> json_cases(int count, unsigned seed);
std::vector<FaultCase> byte_cases(int count, unsigned seed);
std::vector<FaultCase> node_cases(int count, unsigned seed);
std::vector<FaultCase> record_cases(int count, unsigned seed);
std::vector<FaultCase> option_cases(int count, unsigned seed);
std::vector<FaultCase> run_cases(int count, unsigned seed);
std::vector<FaultCase> limit_cases(int count, unsigned seed);
std::vector<FaultCase> huge_cases(int count, unsigned seed);
// Where small file systems can be mounted; else none, with a line that says so.
std::vector<FaultCase> small_disk_cases(int count, unsigned seed);

// The commands that read a model, as words that follow the program's name, relative to the working directory.
// `which` counts through them: train, eval, generate, tokenize, plan.
std::vector<std::string> model_command(unsigned which);
// The run that the originals hold: 24 steps, checkpoints every 8, the newest two kept. `resume`: with --resume.
std::vector<std::string> run_of_originals(bool resume = false);
// Those and a line of every other command, none of which does the originals harm.
const std::vector<std::vector<std::string>>& good_lines();
// The options of a line's command, as its help lists them, and the line with one of them set.
std::set<std::string> options_of(const std::vector<std::string>& line, const std::filesystem::path& scratch);
std::vector<std::string> with_option(std::vector<std::string> line, const std::string& name, const std::string& value);
// `superoffload WORDS...` in `work`; ended by force after a time that only a hang takes.
Outcome run_program(const std::vector<std::string>& words, const std::filesystem::path& work,
                    const Limits& limits = {});

// Says what is wrong with how a process ended: by a signal, with a code that is not among 0, 1, 2, without the one line
// that says why, or with the words of a library or of an internal error.
std::string judge(const Outcome& outcome);
// Says what is wrong in `work`: a file of somebody else in foreign/ that changed or is gone.
std::string judge_foreign(const std::filesystem::path& work);

}  // namespace so::test
