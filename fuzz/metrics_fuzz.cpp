// metrics.jsonl as the report reads it: any bytes. Nothing is thrown, steps come out in order, and a page is made.
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "commands/report/report_page.h"
#include "io/metrics_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace so;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ReportRun run;
  run.name = text.substr(0, 40);
  run.metrics = read_metrics_text(text);
  for (std::size_t i = 1; i < run.metrics.steps.size(); ++i)
    SO_CHECK(run.metrics.steps[i - 1].step < run.metrics.steps[i].step, "steps out of order");
  const std::string json = report_data({&run, 1});
  SO_CHECK(nlohmann::json::accept(json), "no JSON: {}", json);
  const std::string page = report_page({&run, 1});
  SO_CHECK(is_report_page(page), "no page");
  // Three scripts are the page's own.
  std::size_t ends = 0;
  for (std::size_t at = page.find("</script"); at != page.npos; at = page.find("</script", at + 1)) ++ends;
  SO_CHECK(ends == 3, "{} scripts end", ends);
  return 0;
}
