// A finding is one thing that superoffload doctor says about a machine.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace so {

enum class FindingVerdict {
  ok,
  costs,    // the program works, and slower or with less room than this machine has
  wrong,    // something does not work
  unknown,  // nothing could be learnt here, or nobody has measured what it costs
};
constexpr std::array<std::pair<FindingVerdict, std::string_view>, 4> verdict_names{
    {{FindingVerdict::ok, "ok"},
     {FindingVerdict::costs, "costs"},
     {FindingVerdict::wrong, "wrong"},
     {FindingVerdict::unknown, "unknown"}}};

struct Finding {
  std::string check;    // its name in JSON, which stays: "huge_pages"; docs/doctor.md has them all
  std::string subject;  // for people: "transparent huge pages"
  std::string found = {};
  FindingVerdict verdict = FindingVerdict::ok;
  std::string cost = {};  // what it costs, and where the figure comes from; empty: nothing
  std::string mend = {};  // the command that mends it; empty: none is needed, or known
};
using Findings = std::vector<Finding>;

// A line for each finding, its cost and its command below it, and a line that counts the verdicts. Lines have at most
// `columns`, but for a command, which stays in one line, to be copied.
std::string findings_text(const Findings& findings, std::size_t columns);
// {"wrong": 1, "findings": [{"check", "subject", "found", "verdict", "cost", "mend"}]}, without a line's end.
std::string findings_json(const Findings& findings);
bool any_wrong(const Findings& findings);

}  // namespace so
