// JSON files with one value changed for another of every type and size, a key taken away or given twice, and texts that
// are not JSON.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "faults/fault_case.h"

namespace so::test {
namespace {

using nlohmann::json;

constexpr const char* files[] = {"model/config.json",
                                 "model/tokenizer.json",
                                 "model/tokenizer_config.json",
                                 "model/generation_config.json",
                                 "model/special_tokens_map.json",
                                 "settings.json",
                                 "run/checkpoint-24/trainer_state.json",
                                 "run/checkpoint-24/config.json"};

// As texts, since some are no JSON.
const std::vector<std::string>& bad_values() {
  static const std::vector<std::string> values = [] {
    std::vector<std::string> v = {"null",
                                  "true",
                                  "false",
                                  "-1",
                                  "0",
                                  "1",
                                  "3",
                                  "0.5",
                                  "1e308",
                                  "-1e308",
                                  "1e400",
                                  "NaN",
                                  "-Infinity",
                                  "2147483648",
                                  "4294967296",
                                  "9223372036854775807",
                                  "18446744073709551616",
                                  "1000000000000000019884624838656",
                                  "\"\"",
                                  "\"x\"",
                                  "\"float16\"",
                                  "\"int8\"",
                                  "\"\\ud800\"",
                                  "\"\\u0000\"",
                                  "\"../../etc/passwd\"",
                                  "[]",
                                  "{}",
                                  "[[]]",
                                  "[1, 2]",
                                  "{\"a\": 1}",
                                  "[null]",
                                  "01",
                                  "\"\xff\xfe\"",
                                  "'x'",
                                  "1,",
                                  "// x\n1"};
    v.push_back("\"" + std::string(100'000, 'a') + "\"");
    v.push_back(std::string(50'000, '[') + std::string(50'000, ']'));
    return v;
  }();
  return values;
}

constexpr const char* placeholder = "@@here@@";

// One node of `text`'s tree replaced by `value`, and where that was.
std::string with_value(const std::string& text, const std::string& value, std::mt19937& random, std::string& where) {
  json root = json::parse(text);
  json* node = &root;
  where.clear();
  // Down to a random depth; large arrays and objects (a vocabulary) are entered at one of their first elements as often
  // as anywhere.
  while (node->is_structured() && !node->empty() && (node == &root || random() % 4 != 0)) {
    const std::size_t size = node->size(),
                      index = random() % (random() % 2 == 0 ? size : std::min<std::size_t>(size, 8));
    auto child = node->begin();
    std::advance(child, static_cast<std::ptrdiff_t>(index));
    where += "/" + (node->is_object() ? child.key() : std::to_string(index));
    node = &*child;
  }
  *node = placeholder;
  std::string changed = root.dump(-1, ' ', false, json::error_handler_t::replace);
  const std::string quoted = fmt::format("\"{}\"", placeholder);
  return changed.replace(changed.find(quoted), quoted.size(), value);
}

std::vector<std::string> command_for(const std::string& file, unsigned which) {
  std::vector<std::string> words = model_command(file == "settings.json" ? 0 : which);
  if (file == "settings.json") words.insert(words.end(), {"--deepspeed_config", "settings.json"});
  if (file.starts_with("run/")) words = run_of_originals(true);
  return words;
}

}  // namespace

std::vector<FaultCase> json_cases(int count, unsigned seed) {
  std::vector<FaultCase> cases;
  for (const std::string file : files)
    for (int i = 0; i < count; ++i) {
      const unsigned own = seed * 7919u + static_cast<unsigned>(i);
      const auto& values = bad_values();
      const std::string& value = values[own % values.size()];
      cases.push_back({"json: " + file, fmt::format("#{} a value becomes {}", i, value.substr(0, 40)),
                       [file, value, own](const std::filesystem::path& work) {
                         std::mt19937 random(own);
                         std::string where;
                         const std::string changed = with_value(read_file(work / file), value, random, where);
                         write_file(work / file, changed);
                         if (file == "run/checkpoint-24/config.json")
                           std::filesystem::remove(work / "run" / "config.json");
                         const std::string complaint = judge(run_program(command_for(file, random()), work));
                         return complaint.empty() ? judge_foreign(work) : where + ": " + complaint;
                       }});
    }
  return cases;
}

}  // namespace so::test
