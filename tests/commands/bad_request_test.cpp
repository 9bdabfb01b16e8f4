// Mistakes a user can make on the command line, and things the machine can refuse: options, paths, disk, memory.
#include <gtest/gtest.h>
#include <unistd.h>

#include "support/paths.h"
#include "support/refusal.h"
#include "support/small_disk.h"

namespace so::test {
namespace {

using nlohmann::json;

using BadOption = RefusalTest;

TEST_F(BadOption, UnknownCommand) { expect_refusal(run({test::binary(), "trian"}, temporary_.path()), {"trian"}); }
TEST_F(BadOption, UnknownOption) { expect_refused(command().set("learning_rat", "1e-3"), {"learning_rat"}); }
TEST_F(BadOption, NotANumber) { expect_refused(command().set("lr", "fast"), {"lr", "fast"}); }
TEST_F(BadOption, TrailingCharacters) { expect_refused(command().set("max_steps", "20x"), {"max_steps", "20x"}); }
TEST_F(BadOption, OutOfRange) { expect_refused(command().set("lr", "-1"), {"lr", "-1"}); }
TEST_F(BadOption, NotFinite) { expect_refused(command().set("lr", "nan"), {"lr", "nan"}); }
TEST_F(BadOption, ZeroBatch) { expect_refused(command().set("batch_size", "0"), {"batch_size"}); }
TEST_F(BadOption, UnknownDtype) { expect_refused(command().set("dtype", "fp7"), {"dtype", "fp7"}); }
TEST_F(BadOption, UnknownSchedule) {
  expect_refused(command().set("lr_scheduler", "sawtooth"), {"lr_scheduler", "sawtooth"});
}
TEST_F(BadOption, UnknownDevice) { expect_refused(command().set("device", "abacus"), {"device", "abacus"}); }
TEST_F(BadOption, MissingModel) { expect_refused(command().without("model"), {"model"}); }
TEST_F(BadOption, MissingData) { expect_refused(command().without("data"), {"data"}); }
TEST_F(BadOption, NotBytes) { expect_refused(command().set("host_memory", "20 gigs"), {"--host_memory", "20GB"}); }
TEST_F(BadOption, DeviceMemoryOfADeviceThatHasNone) {
  SO_CPU_ONLY("a GPU has its own");
  expect_refused(command().set("device_memory", "20GB"), {"--device_memory", "CPU device", "--host_memory"});
}
TEST_F(BadOption, LongerThanTheModelsPositions) {
  expect_refused(command().set("max_length", "256"), {"max_length", "256", "max_position_embeddings", "128"});
}

class BadDeepSpeed : public RefusalTest {
 protected:
  void expect_file_refused(const std::string& text, std::vector<std::string> needles) const {
    const auto file = temporary_ / "ds.json";
    write_file(file, text);
    needles.push_back(file.string());
    expect_refused(command().set("deepspeed_config", file.string()), needles);
  }
};

TEST_F(BadDeepSpeed, MissingFile) {
  expect_refused(command().set("deepspeed_config", (temporary_ / "ds.json").string()),
                 {(temporary_ / "ds.json").string()});
}
TEST_F(BadDeepSpeed, BrokenFile) { expect_file_refused("{\"zero_optimization\": ", {}); }
TEST_F(BadDeepSpeed, UnknownKey) {
  expect_file_refused(R"({"zero_optimisation": {"stage": 3}})", {"zero_optimisation"});
}
TEST_F(BadDeepSpeed, UnknownNestedKey) {
  expect_file_refused(R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"devise": "cpu"}}})", {"devise"});
}
TEST_F(BadDeepSpeed, WrongTypeOfValue) {
  expect_file_refused(R"({"gradient_clipping": "yes"})", {"gradient_clipping"});
}

using BadOutput = RefusalTest;

// A path below a regular file cannot be made by anybody; permissions would not stop root.
TEST_F(BadOutput, BelowARegularFile) {
  const auto impossible = output() / "notes.txt" / "run";
  expect_refused(command().set("output_dir", impossible.string()), {impossible.string()});
}
TEST_F(BadOutput, IsARegularFile) {
  const auto file = output() / "notes.txt";
  expect_refused(command().set("output_dir", file.string()), {file.string()});
}

// The weights are about 137 kB: 64 kB a file lets metrics and configuration through and stops the saving.
TEST_F(BadOutput, WriteFailsWhileSaving) {
  const Outcome o = run(command().words(), temporary_.path(), Limits{.file_bytes = 64 * 1024});
  expect_refusal(o, {output().string()}, 1);
  EXPECT_EQ(read_file(output() / "notes.txt"), "of an earlier run\n");
  EXPECT_EQ(read_file(output() / "earlier" / "model.safetensors"), "not to be touched");
  EXPECT_FALSE(std::filesystem::exists(output() / "model.safetensors")) << "half a model was left behind";
}

// The error stays the last line; the line before says what is left to go on from.
TEST_F(BadOutput, AFailureAfterStepsNamesTheLastCheckpoint) {
  const Limits limits{.file_bytes = 64 * 1024};
  const TrainCommand c = command().set("output_dir", (temporary_ / "run").string()).set("max_steps", "6");
  const auto checkpoint = [&](const std::string& output, int step) {
    return temporary_ / output / ("checkpoint-" + std::to_string(step));
  };
  const auto fail_with = [&](TrainCommand failing, const std::string& expected) {
    const Outcome o = run(failing.words(), temporary_.path(), limits);
    expect_refusal(o, {"model.safetensors"}, 1);
    EXPECT_NE(o.err.find(expected + "\n"), std::string::npos) << expected << " is missing in: " << o.err;
  };
  fail_with(TrainCommand(c).set("save_steps", "4"), "no checkpoint had been saved: --resume would begin anew");

  const Outcome whole = run(TrainCommand(c).set("save_steps", "2").flag("resume").words(), temporary_.path());
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_EQ(whole.err.find("the last checkpoint"), std::string::npos) << whole.err;
  for (const int later : {4, 6}) std::filesystem::remove_all(checkpoint("run", later));
  const std::string last = checkpoint("run", 2).string();
  fail_with(TrainCommand(c).set("save_steps", "2").flag("resume"),
            "the last checkpoint is " + last + " (step 2): continue with --resume");
  fail_with(TrainCommand(c).set("output_dir", (temporary_ / "other").string()).set("resume", last),
            "the last checkpoint is " + last + " (step 2): continue with --resume " + last);
  // As it says.
  const Outcome again = run(TrainCommand(c).flag("resume").words(), temporary_.path());
  EXPECT_EQ(again.exit_code, 0) << again.err;
}

TEST_F(BadOutput, FullDisk) {
  const auto where = temporary_ / "disk";
  const SmallDisk disk(where, "size=64k");
  if (!disk.mounted())
    GTEST_SKIP() << "mounting a small tmpfs needs CAP_SYS_ADMIN; WriteFailsWhileSaving covers the failing write";
  write_file(where / "notes.txt", "of an earlier run\n");
  expect_refused(command().set("output_dir", where.string()), {where.string(), "space"});
  EXPECT_EQ(read_file(where / "notes.txt"), "of an earlier run\n");
  EXPECT_FALSE(std::filesystem::exists(where / "model.safetensors")) << "half a model was left behind";
}

// A model that no machine holds, with nothing but its configuration: the plan must refuse it before weights are read.
TEST_F(BadOutput, ModelThatDoesNotFitInMemory) {
  edit_json(config(), [](json& c) {
    c["hidden_size"] = 8192;
    c["intermediate_size"] = 28672;
    c["num_hidden_layers"] = 1000;
    c["layer_types"] = std::vector<std::string>(1000, "full_attention");
    c["num_attention_heads"] = 64;
    c["num_key_value_heads"] = 8;
    c["head_dim"] = 128;
    c["vocab_size"] = 128256;
  });
  std::filesystem::remove(weights());
  expect_refused({"memory"});
}

}  // namespace
}  // namespace so::test
