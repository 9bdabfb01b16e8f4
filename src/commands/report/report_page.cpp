#include "commands/report/report_page.h"

#include <utility>
#include <vector>

#include "commands/report/page_text.h"

namespace so {
namespace {

constexpr std::string_view own_mark = "<meta name=\"generator\" content=\"superoffload report\">";

// Inside of a script element only "</script" and "<!--" mean anything, and JSON has "<" in strings alone.
std::string inside_script(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  for (const char c : json) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  return out;
}

// The template's parts between marks "@NAME@", each mark replaced by its text; the texts are not looked at.
std::string filled(std::string_view page, std::span<const std::pair<std::string_view, std::string>> texts) {
  std::string out;
  while (!page.empty()) {
    std::size_t at = page.npos;
    const std::pair<std::string_view, std::string>* next = nullptr;
    for (const auto& text : texts)
      if (const std::size_t found = page.find(text.first); found < at) {
        at = found;
        next = &text;
      }
    if (next == nullptr) break;
    out.append(page.substr(0, at)).append(next->second);
    page.remove_prefix(at + next->first.size());
  }
  return out.append(page);
}

}  // namespace

std::string html_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string report_page(std::span<const ReportRun> runs, double watching) {
  std::string title;
  for (const ReportRun& run : runs) title += (title.empty() ? "" : ", ") + run.name;
  const std::vector<std::pair<std::string_view, std::string>> texts{
      {"@CONNECT@", watching > 0 ? "'self'" : "'none'"},
      {"@TITLE@", html_escaped(title)},
      {"@VERSION@", SO_VERSION},
      {"@STYLE@", std::string(page_text::style)},
      {"@CHARTS@", std::string(page_text::charts)},
      {"@PAGE@", std::string(page_text::page)},
      {"@DATA@", inside_script(report_data(runs, watching))},
  };
  return filled(page_text::html, texts);
}

bool is_report_page(std::string_view beginning) { return beginning.find(own_mark) != std::string_view::npos; }

}  // namespace so
