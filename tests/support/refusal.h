// Expectations for runs that must refuse: exit code 2, one error line that names the cause, nothing touched.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "support/files.h"
#include "support/process.h"
#include "support/training_run.h"

namespace so::test {

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// One error line, the last, with every one of `needles` in it.
inline void expect_refusal(const Outcome& outcome, const std::vector<std::string>& needles, int exit_code = 2) {
  ASSERT_EQ(outcome.signal, 0) << outcome.err;
  EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err;
  const auto lines = lines_of(outcome.err);
  ASSERT_FALSE(lines.empty()) << "nothing on standard error";
  int errors = 0;
  for (const auto& line : lines) errors += line.starts_with("superoffload: ") ? 1 : 0;
  EXPECT_EQ(errors, 1) << outcome.err;
  EXPECT_TRUE(lines.back().starts_with("superoffload: ")) << outcome.err;
  for (const auto& needle : needles)
    EXPECT_NE(lines.back().find(needle), std::string::npos) << "\"" << needle << "\" is missing in: " << lines.back();
}

// A writable copy of a fixture and an output directory that already holds something.
class RefusalTest : public testing::Test {
 protected:
  RefusalTest() {
    const auto fixture = model_fixture("qwen3-tied");
    std::filesystem::copy(fixture / "model", model(), std::filesystem::copy_options::recursive);
    std::filesystem::copy(fixture / "data.jsonl", data());
    for (const auto& entry : std::filesystem::recursive_directory_iterator(model()))
      std::filesystem::permissions(entry.path(), std::filesystem::perms::owner_write,
                                   std::filesystem::perm_options::add);
    std::filesystem::create_directories(output() / "earlier");
    write_file(output() / "notes.txt", "of an earlier run\n");
    write_file(output() / "earlier" / "model.safetensors", "not to be touched");
    before_ = snapshot(output());
  }

  std::filesystem::path model() const { return temporary_ / "model"; }
  std::filesystem::path data() const { return temporary_ / "data.jsonl"; }
  std::filesystem::path output() const { return temporary_ / "out"; }
  std::filesystem::path weights() const { return model() / "model.safetensors"; }
  std::filesystem::path config() const { return model() / "config.json"; }

  TrainCommand command() const {
    TrainCommand c(model(), data(), output());
    return c.set("lr", "1e-3").set("batch_size", "2").set("max_length", "48").set("max_steps", "2");
  }

  // Changes the JSON file in place.
  static void edit_json(const std::filesystem::path& path, const std::function<void(nlohmann::json&)>& edit) {
    nlohmann::json j = read_json(path);
    edit(j);
    write_file(path, j.dump(2) + "\n");
  }
  // Line `number` (from 1) of the data becomes `text`.
  void replace_record(std::size_t number, const std::string& text) const {
    auto lines = lines_of(read_file(data()));
    lines.at(number - 1) = text;
    std::string all;
    for (const auto& line : lines) all += line + "\n";
    write_file(data(), all);
  }

  void expect_refused(const TrainCommand& c, const std::vector<std::string>& needles, const Limits& limits = {}) const {
    expect_refusal(run(c.words(), temporary_.path(), limits), needles);
    const auto after = snapshot(output());
    for (const auto& [name, bytes] : after)
      EXPECT_TRUE(before_.contains(name) && before_.at(name) == bytes)
          << name << " was written in the output directory";
    for (const auto& [name, bytes] : before_) EXPECT_TRUE(after.contains(name)) << name << " is gone";
  }
  void expect_refused(const std::vector<std::string>& needles) const { expect_refused(command(), needles); }

  TemporaryDirectory temporary_;

 private:
  std::map<std::string, std::string> before_;
};

}  // namespace so::test
