// What `superoffload plan --json` prints.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/files.h"
#include "support/paths.h"
#include "support/process.h"

namespace so::test {

struct Planned {
  nlohmann::json result;
  std::size_t total(const char* kind) const {
    std::size_t bytes = 0;
    for (const nlohmann::json& entry : result.at("memory"))
      if (entry.at("kind") == kind) bytes += entry.at("bytes").get<std::size_t>();
    return bytes;
  }
  double expected(const char* what) const { return result.at("expected").at(what); }
};

inline Planned plan(std::vector<std::string> words) {
  const TemporaryDirectory directory;
  words.insert(words.begin(), {test::binary(), "plan"});
  words.push_back("--json");
  const Outcome o = run(words, directory.path());
  EXPECT_EQ(o.exit_code, 0) << o.err;
  return {nlohmann::json::parse(o.out)};
}

}  // namespace so::test
