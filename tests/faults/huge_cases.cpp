// Numbers that are valid and far too large, at each place of each JSON file that holds a number, and in each option.
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "faults/fault_case.h"
#include "support/files.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* numbers[] = {"2147483647", "2147483648",          "4294967295",          "9007199254740993",
                                   "1e12",       "1000000000000000000", "9223372036854775807", "1e300"};
// Huge requests must be refused by arithmetic, not found out by taking all of the machine's memory.
constexpr std::uint64_t address_space = std::uint64_t{16} << 30;

std::string run_and_judge(const std::vector<std::string>& words, const fs::path& work) {
  const std::string complaint = judge(run_program(words, work, {.resources = {{RLIMIT_AS, address_space}}}));
  return complaint.empty() ? judge_foreign(work) : complaint;
}

std::vector<json::json_pointer> numbers_in(const json& root) {
  std::vector<json::json_pointer> places;
  const json flat = root.flatten();
  for (const auto& [place, value] : flat.items())
    if (value.is_number()) places.emplace_back(place);
  return places;
}

FaultCase in_json(const std::string& file, int i, unsigned seed) {
  const std::string number = numbers[seed % std::size(numbers)];
  return {"huge: " + file, fmt::format("#{} {}", i, number), [=](const fs::path& work) {
            std::mt19937 random(seed);
            json root = json::parse(read_file(work / file));
            const std::vector<json::json_pointer> places = numbers_in(root);
            const json::json_pointer& place = places[random() % places.size()];
            root[place] = json::parse(number);
            write_file(work / file, root.dump());
            std::vector<std::string> words = model_command(file == "settings.json" ? 0 : random());
            if (file == "settings.json") words.insert(words.end(), {"--deepspeed_config", "settings.json"});
            if (file.starts_with("run/")) words = run_of_originals(true);
            const std::string complaint = run_and_judge(words, work);
            return complaint.empty() ? complaint : place.to_string() + ": " + complaint;
          }};
}

}  // namespace

std::vector<FaultCase> huge_cases(int count, unsigned seed) {
  std::vector<FaultCase> cases;
  for (const char* file : {"model/config.json", "model/tokenizer.json", "model/generation_config.json", "settings.json",
                           "run/checkpoint-24/trainer_state.json", "run/checkpoint-24/config.json"})
    for (int i = 0; i < count; ++i) cases.push_back(in_json(file, i, seed * 7907u + static_cast<unsigned>(i)));
  const TemporaryDirectory help;
  std::mt19937 random(seed);
  for (const std::vector<std::string>& line : good_lines())
    for (const std::string& option : options_of(line, help.path())) {
      // Those that make a run long are right as they are.
      if (option == "max_steps" || option == "num_train_epochs" || option.ends_with("steps") || option == "warmup")
        continue;
      for (int i = 0; i < std::min<int>(count, std::size(numbers)); ++i) {
        const std::string number = numbers[(random() + static_cast<unsigned>(i)) % std::size(numbers)];
        cases.push_back(
            {"huge: options", fmt::format("{} --{} {}", line[0], option, number),
             [words = with_option(line, option, number)](const fs::path& work) { return run_and_judge(words, work); }});
      }
    }
  return cases;
}

}  // namespace so::test
