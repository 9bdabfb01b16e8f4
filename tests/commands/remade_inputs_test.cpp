// A run for which memory is so short that not every layer keeps its input: the plan says so, the run keeps to it, and
// trains to the same bytes as one that has room.
#include <gtest/gtest.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/files.h"
#include "support/on_gpu.h"
#include "support/process.h"
#include "support/sanitized.h"
#include "support/training_run.h"

namespace so::test {
namespace {

TEST(RemadeInputs, ARunThatFitsOnlySoTrainsToTheSameBytes) {
  if (on_gpu()) GTEST_SKIP() << "on the CPU device, whose memory is small enough to be short";
  const TemporaryDirectory directory;
  nlohmann::json config = read_json(model_fixture("qwen3-tied") / "model" / "config.json");
  config.update({{"hidden_size", 64}, {"intermediate_size", 96}, {"num_hidden_layers", 12}});
  config["max_position_embeddings"] = 512;
  config["layer_types"] = std::vector(12, std::string("full_attention"));
  write_file(directory / "config.json", config.dump());
  const auto model = directory / "model", data = directory / "data.jsonl";
  const Outcome init = run({test::binary(), "init", "--config", (directory / "config.json").string(), "--output_dir",
                            model.string(), "--quiet"},
                           directory.path());
  ASSERT_EQ(init.exit_code, 0) << init.err;
  std::string records;
  for (int i = 0; i < 16; ++i) {
    std::vector<int> ids;
    for (int t = 0; t < 400 + i; ++t) ids.push_back(3 + (i * 31 + t * 7) % (config.at("vocab_size").get<int>() - 3));
    records += nlohmann::json{{"input_ids", ids}, {"labels", ids}}.dump() + "\n";
  }
  write_file(data, records);
  const auto train = [&](const char* output, const std::string& streamed_layers) {
    TrainCommand command(model, data, directory / output);
    command.set("batch_size", "8").set("max_length", "512").set("max_steps", "2").set("cpu_threads", "2");
    command.set("cache_dir", (directory / "cache").string()).set("streamed_layers", streamed_layers);
    return command;
  };

  for (const std::string streamed_layers : {"0", "7"}) {
    if (test::sanitized && streamed_layers == "0") continue;  // its search for the least memory takes 20 seconds
    SCOPED_TRACE(streamed_layers + " layers' weights stream");
    const std::string roomy = "roomy" + streamed_layers, small = "small" + streamed_layers;
    const Outcome with_room =
        run(train(roomy.c_str(), streamed_layers).set("activation_checkpointing", "true").words(), directory.path());
    ASSERT_EQ(with_room.exit_code, 0) << with_room.err;
    EXPECT_EQ(with_room.err.find("run again"), std::string::npos) << with_room.err;

    // The least memory with which the run is accepted, to a few pages.
    std::size_t refused = 1 << 20, least = 256 << 20;
    while (least - refused > (64 << 10)) {
      const std::size_t middle = refused + (least - refused) / 2;
      TrainCommand dry = train(small.c_str(), streamed_layers);
      dry.set("host_memory", std::to_string(middle)).flag("dry_run");
      (run(dry.words(), directory.path()).exit_code == 0 ? least : refused) = middle;
    }
    const Outcome tight =
        run(train(small.c_str(), streamed_layers).set("host_memory", std::to_string(least)).words(), directory.path());
    ASSERT_EQ(tight.exit_code, 0) << tight.err;
    EXPECT_NE(tight.err.find("nothing (run again from the last layer below that kept its input)"), std::string::npos)
        << tight.err;

    EXPECT_EQ(read_file(directory / small / "model.safetensors"), read_file(directory / roomy / "model.safetensors"));
    const auto losses = [&](const std::string& output) {
      std::vector<double> all;
      for (const auto& line : read_metrics(directory / output)) all.push_back(line.at("loss"));
      return all;
    };
    EXPECT_EQ(losses(small), losses(roomy));
  }
}

}  // namespace
}  // namespace so::test
