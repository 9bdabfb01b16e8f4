// Every command under limits of the shell that are too tight for it, or nearly so: memory, stack, threads, open files.
#include <fmt/core.h>

#include "faults/fault_case.h"
#include "support/files.h"
#include "support/paths.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

struct Kind {
  const char* name;
  int resource;
  std::uint64_t least, most;  // of the limit, in units
  std::uint64_t unit;
};

// Below the least ones the C library cannot start a program.
constexpr Kind kinds[] = {{"limits: ulimit -v (MB)", RLIMIT_AS, 60, 400, 1 << 20},
                          {"limits: ulimit -d (MB)", RLIMIT_DATA, 3, 200, 1 << 20},
                          {"limits: ulimit -s (kB)", RLIMIT_STACK, 64, 1024, 1 << 10},
                          {"limits: ulimit -n", RLIMIT_NOFILE, 8, 24, 1},
                          {"limits: ulimit -u", RLIMIT_NPROC, 2, 12, 1}};

constexpr unsigned stranger = 54'321;  // root's threads are not counted, so root runs the program as somebody else

bool others_may_enter(fs::path path) {
  for (; path.has_relative_path(); path = path.parent_path())
    if ((fs::status(path).permissions() & fs::perms::others_exec) == fs::perms::none) return false;
  return true;
}

}  // namespace

std::vector<FaultCase> limit_cases(int count, unsigned seed) {
  std::vector<FaultCase> cases;
  std::mt19937 random(seed);
  const bool root = ::geteuid() == 0;
  for (const Kind& kind : kinds) {
    const bool as_stranger = root && kind.resource == RLIMIT_NPROC;
    if (as_stranger && !others_may_enter(test::binary())) {
      fmt::print("{} is left out: root's threads are not counted, and others may not run the program\n", kind.name);
      continue;
    }
    for (int i = 0; i < count; ++i) {
      const std::uint64_t limit = kind.least + random() % (kind.most - kind.least + 1);
      const std::vector<std::string>& words = good_lines()[random() % good_lines().size()];
      cases.push_back(
          {kind.name, fmt::format("#{} {} {}", i, limit, words[0]),
           [words, as_stranger, resource = Resource{kind.resource, limit * kind.unit}](const fs::path& work) {
             Limits limits{.resources = {resource}};
             if (as_stranger) {
               fs::permissions(work.parent_path(), fs::perms::others_exec, fs::perm_options::add);
               fs::permissions(work, fs::perms::all);
               fs::remove_all(work / "cache");  // it is for its owner alone
               limits.user = stranger;
             }
             const Outcome outcome = run_program(words, work, limits);
             if (ended_by_loader(outcome)) return judge_foreign(work);
             const std::string complaint = judge(outcome);
             return complaint.empty() ? judge_foreign(work) : complaint;
           }});
    }
  }
  return cases;
}

}  // namespace so::test
