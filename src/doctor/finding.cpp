#include "doctor/finding.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/terminal.h"

namespace so {
namespace {

std::string_view name_of(FindingVerdict verdict) {
  const auto found = std::find_if(verdict_names.begin(), verdict_names.end(),
                                  [&](const auto& entry) { return entry.first == verdict; });
  return found->second;
}

// In the text the two verdicts that ask for something stand out without colour.
std::string_view mark_of(FindingVerdict verdict) {
  switch (verdict) {
    case FindingVerdict::ok:
      return "ok";
    case FindingVerdict::costs:
      return "COSTS";
    case FindingVerdict::wrong:
      return "WRONG";
    case FindingVerdict::unknown:
      return "?";
  }
  return {};
}

auto count_of(const Findings& findings, FindingVerdict verdict) {
  return std::count_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.verdict == verdict; });
}

// In lines of at most `columns`; what follows the first stands below its beginning.
std::string folded(std::string_view text, std::size_t indent, std::size_t columns) {
  std::string lines = filled(text, columns, indent);
  if (lines.size() <= indent) return {};  // white space alone
  lines.pop_back();
  return lines.substr(indent);
}

}  // namespace

bool any_wrong(const Findings& findings) { return count_of(findings, FindingVerdict::wrong) > 0; }

std::string findings_text(const Findings& findings, std::size_t columns) {
  std::size_t widest = 0;
  for (const Finding& f : findings) widest = std::max(widest, columns_of(f.subject));
  std::string text;
  for (const Finding& f : findings) {
    const std::size_t indent = 7 + widest + 2;
    text += fmt::format("{:<6} {:<{}}  {}\n", mark_of(f.verdict), f.subject, widest, folded(f.found, indent, columns));
    if (!f.cost.empty()) text += fmt::format("{:>{}}  {}\n", "cost:", widest + 7, folded(f.cost, indent, columns));
    // A command stays in one line, to be copied.
    if (!f.mend.empty()) text += fmt::format("{:>{}}  {}\n", "mend:", widest + 7, f.mend);
  }
  text += fmt::format("\n{} ok, {} cost something, {} wrong, {} not known here (?)\n",
                      count_of(findings, FindingVerdict::ok), count_of(findings, FindingVerdict::costs),
                      count_of(findings, FindingVerdict::wrong), count_of(findings, FindingVerdict::unknown));
  return printable_text(text);
}

std::string findings_json(const Findings& findings) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& f : findings)
    list.push_back({{"check", f.check},
                    {"subject", f.subject},
                    {"found", f.found},
                    {"verdict", name_of(f.verdict)},
                    {"cost", f.cost},
                    {"mend", f.mend}});
  const nlohmann::ordered_json result{{"wrong", count_of(findings, FindingVerdict::wrong)}, {"findings", list}};
  return result.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace so
