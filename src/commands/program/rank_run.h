// A command as the process runs it: alone, as one of the ranks that a launcher started, or starting ranks itself.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "commands/program/parse.h"
#include "ranks/launch.h"

namespace so {

// The ranks of this process's launch; none where it is alone. A launch that contradicts itself is an Error for
// commands that know ranks, and nothing to the others.
class RankRun {
 public:
  RankRun();

  // What is refused before the ranks are connected all of them refuse; rank 0 says so.
  int rank() const { return launch_ ? launch_->rank : 0; }
  // Of the launch, 1 without one: what a DeepSpeed file's train_batch_size is divided by.
  int ranks() const { return launch_ ? launch_->size : 1; }
  // Runs the command and returns what the process exits with. `arguments` are those of the program, for the ranks that
  // it may start. A rank that fails ends them all, and one of them says why: rank 0, or if that is lost the next.
  int run(const ParsedCommand& parsed, const std::vector<std::string>& arguments) const;

 private:
  int run_rank(const ParsedCommand& parsed) const;

  std::optional<Launch> launch_;
  std::string unusable_;  // why there is a launch that cannot be understood
};

}  // namespace so
