// A page of what runs recorded: charts and tables in one HTML file that needs no network.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "io/metrics_reader.h"
#include "io/samples.h"

namespace so {

struct ReportRun {
  std::string name;  // for people; untrusted
  RecordedRun metrics;
  RecordedSamples samples = {};
  bool going_on = false;  // a process is writing it
};

// Returns what the page shows, as one JSON object; docs of its fields are the page's own source (page/page.js). Series
// are thinned, so that its size does not grow with the runs' lengths. `watching`: seconds between two looks of a page
// that is being served; 0: the page is a file.
std::string report_data(std::span<const ReportRun> runs, double watching = 0);

// The page with its data.
std::string report_page(std::span<const ReportRun> runs, double watching = 0);

// Whether a file that begins so is such a page.
bool is_report_page(std::string_view beginning);

// Text as HTML shows it.
std::string html_escaped(std::string_view text);

}  // namespace so
