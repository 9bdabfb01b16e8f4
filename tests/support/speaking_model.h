// A small model of random weights with a tokenizer, for the commands that take text.
#pragma once

#include <filesystem>
#include <stdexcept>

#include "support/files.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/training_run.h"

namespace so::test {

// Makes it in `directory`/model and returns that path.
inline std::filesystem::path make_speaking_model(const std::filesystem::path& directory) {
  nlohmann::json config = read_json(model_fixture("qwen3-tied") / "model" / "config.json");
  config["vocab_size"] = 2005;  // of the tokenizer below
  config["max_position_embeddings"] = 100'000;
  write_file(directory / "config.json", config.dump());
  const std::filesystem::path model = directory / "model";
  const Outcome o = run({test::binary(), "init", "--config", (directory / "config.json").string(), "--tokenizer",
                         test::fixtures() + "/tokenizer/qwen3", "--output_dir", model.string()},
                        directory);
  if (o.exit_code != 0) throw std::runtime_error(o.err);
  return model;
}

}  // namespace so::test
