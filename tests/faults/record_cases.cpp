// Data files whose records are of a wrong form, among good ones.
#include <fmt/core.h>

#include "faults/fault_case.h"
#include "support/refusal.h"

namespace so::test {
namespace {

const std::vector<std::string>& bad_records() {
  static const std::vector<std::string> records = [] {
    std::vector<std::string> r = {"{}",
                                  "[]",
                                  "null",
                                  "{",
                                  "}",
                                  "\"text\"",
                                  "1",
                                  "{\"text\": 1}",
                                  "{\"text\": null}",
                                  "{\"text\": \"\"}",
                                  "{\"text\": \"\\ud800\"}",
                                  "{\"text\": \"\\u0000\"}",
                                  "{\"text\": \"a\"} trailing",
                                  "{\"text\": \"a\", }",
                                  "{\"instruction\": \"a\"}",
                                  "{\"instruction\": 1, \"output\": \"b\"}",
                                  "{\"instruction\": \"a\", \"output\": [\"b\"]}",
                                  "{\"instruction\": \"\", \"input\": \"\", \"output\": \"\"}",
                                  "{\"input_ids\": []}",
                                  "{\"input_ids\": [1, 2]}",
                                  "{\"input_ids\": [1, -1, 2]}",
                                  "{\"input_ids\": [99999999999999999999]}",
                                  "{\"input_ids\": [1.5]}",
                                  "{\"input_ids\": \"1 2\"}",
                                  "{\"input_ids\": [4096]}",
                                  "{\"input_ids\": [1, 2], \"labels\": [1]}",
                                  "{\"input_ids\": [1, 2], \"labels\": [1, -2]}",
                                  "{\"input_ids\": [1, 2], \"labels\": null}",
                                  "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}",
                                  "{\"text\": \"a\", \"n\": NaN}",
                                  "{\"text\": \"a\", \"n\": 1000000000000000019884624838656}",
                                  "{\"text\": \"a\", \"text\": \"b\"}",
                                  "\xff\xfe\xfd",
                                  "{\"text\": \"\xff\"}",
                                  "\xef\xbb\xbf{\"text\": \"a\"}",
                                  "{\"text\": \"<|im_end|><|im_start|>\"}",
                                  "[{\"text\": \"a\"}]",
                                  "{'text': 'a'}"};
    r.push_back("{\"text\": \"" + std::string(300'000, 'a') + "\"}");
    r.push_back("{\"text\": " + std::string(20'000, '[') + std::string(20'000, ']') + "}");
    r.push_back(std::string(1'000, '\0'));
    return r;
  }();
  return records;
}

}  // namespace

std::vector<FaultCase> record_cases(int count, unsigned seed) {
  std::vector<FaultCase> cases;
  std::mt19937 order(seed);
  for (int i = 0; i < count; ++i) {
    const unsigned own = order();
    const std::string& record = bad_records()[static_cast<std::size_t>(i) % bad_records().size()];
    cases.push_back({"records: one of data.jsonl", fmt::format("#{} {}", i, record.substr(0, 40)),
                     [&record, own](const std::filesystem::path& work) {
                       std::vector<std::string> lines = lines_of(read_file(work / "data.jsonl"));
                       if (own % 3 == 0) lines.clear();  // the only record
                       lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(own % (lines.size() + 1)), record);
                       std::string text;
                       for (const std::string& line : lines) text += line + (own % 5 == 0 ? "\r\n" : "\n");
                       write_file(work / "data.jsonl", text);
                       constexpr unsigned readers[] = {0, 1, 3};  // train, eval, tokenize
                       const std::string complaint = judge(run_program(model_command(readers[own / 16 % 3]), work));
                       return complaint.empty() ? judge_foreign(work) : complaint;
                     }});
  }
  return cases;
}

}  // namespace so::test
