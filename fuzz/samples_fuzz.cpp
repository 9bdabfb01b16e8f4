// samples.jsonl as the report reads it: any bytes. Nothing is thrown, what was read is written and read again as it is,
// and a page is made of it.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>

#include "base/error.h"
#include "commands/report/report_page.h"
#include "io/samples.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace so;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ReportRun run;
  run.name = "run";
  run.samples = read_samples_text(text);
  const RecordedSamples again = read_samples_text(samples_text(run.samples.samples));
  SO_CHECK(again.damage.empty(), "what was read is not read again: {}", again.damage);
  const auto same = [](const Sample& a, const Sample& b) {
    const auto fields = [](const Sample& s) {
      return std::tie(s.step, s.sample, s.prompt, s.text, s.tokens, s.finish_reason);
    };
    return fields(a) == fields(b);
  };
  SO_CHECK(std::equal(again.samples.begin(), again.samples.end(), run.samples.samples.begin(),
                      run.samples.samples.end(), same),
           "{} samples are {} others when they are read again", run.samples.samples.size(), again.samples.size());
  for (const Sample& sample : run.samples.samples)
    SO_CHECK(sample.step >= 0 && sample.sample >= 1, "sample {} of step {}", sample.sample, sample.step);
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
