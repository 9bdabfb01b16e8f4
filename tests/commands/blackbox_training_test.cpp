// The program against PyTorch: the same model, data and options must give the same losses, gradient norms, learning
// rates and weights. tests/fixtures/models/README.md tells how the expectations were made.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "support/files.h"
#include "support/label.h"
#include "support/process.h"
#include "support/raw_tensors.h"
#include "support/refusal.h"
#include "support/training_run.h"

namespace so::test {
namespace {

using nlohmann::json;

// PyTorch against itself with other rounding stays under 2e-6 (losses) and 4e-6 (norms, weights): the fixtures record
// it as fp32_noise. So 1e-5 passes any order of summation, and the smallest error of substance is far above it.
constexpr double kRelative = 1e-5;
// A learning rate is a formula in double precision, and printed to be read back.
constexpr double kScheduleRelative = 1e-9;

void expect_close(double got, double expected, double relative, const std::string& what) {
  EXPECT_LE(std::abs(got - expected), relative * std::abs(expected)) << what << ": " << got << ", PyTorch " << expected;
}

void expect_metrics(const std::filesystem::path& output, const json& steps) {
  const auto metrics = read_metrics(output);
  ASSERT_EQ(metrics.size(), steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::string where = "step " + std::to_string(i + 1) + " ";
    EXPECT_EQ(metrics[i].at("step").get<int>(), steps[i].at("step").get<int>());
    expect_close(metrics[i].at("loss"), steps[i].at("loss"), kRelative, where + "loss");
    expect_close(metrics[i].at("grad_norm"), steps[i].at("grad_norm"), kRelative, where + "grad_norm");
    expect_close(metrics[i].at("lr"), steps[i].at("lr"), kScheduleRelative, where + "lr");
    double host_seconds = 0;
    for (const auto& [name, seconds] : metrics[i].at("host_seconds").items()) host_seconds += seconds.get<double>();
    EXPECT_NEAR(host_seconds, metrics[i].at("step_time_s").get<double>(), 1e-9) << where;
  }
}

void expect_weights(const std::filesystem::path& output, const StoredTensors& expected) {
  const auto got = read_model_weights(output);
  for (const auto& [name, want] : expected) {
    const auto found = got.find(name);
    if (found == got.end()) {
      ADD_FAILURE() << name << " was not saved";
      continue;
    }
    const StoredTensor& t = found->second;
    ASSERT_EQ(t.shape, want.shape) << name;
    // Saved as bf16, each value may be off by half a unit in the last of 8 bits.
    const double relative = kRelative + (t.dtype == "BF16" ? std::ldexp(1.0, -9) : 0.0);
    EXPECT_LE(distance(t.values, want.values), relative * norm(want.values)) << name;
  }
  for (const auto& [name, tensor] : got) EXPECT_TRUE(expected.contains(name)) << name << " was saved besides";
}

// The saved model must be the same one: each key of the source's config with its value, dtype aside.
void expect_same_config(const std::filesystem::path& output, const std::filesystem::path& model) {
  const json got = read_json(output / "config.json");
  const json source = read_json(model / "config.json");
  for (const auto& [key, value] : source.items()) {
    if (key == "dtype" || key == "torch_dtype" || key == "transformers_version") continue;
    ASSERT_TRUE(got.contains(key)) << key;
    EXPECT_EQ(got.at(key), value) << key;
  }
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class Blackbox : public testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path fixture() const { return model_fixture(GetParam()); }
  TrainCommand command() const { return {fixture() / "model", fixture() / "data.jsonl", temporary_ / "out"}; }
  void run_to_success(const TrainCommand& c) const {
    const Outcome o = run(c.words(), temporary_.path());
    ASSERT_EQ(o.exit_code, 0) << o.err;
  }
  std::filesystem::path output() const { return temporary_ / "out"; }

  TemporaryDirectory temporary_;
};

using Fp8Products = Blackbox;
INSTANTIATE_TEST_SUITE_P(Models, Fp8Products, testing::Values("fp8-products"), test_name);

// The loss is PyTorch's with operands in FP8, and not the one without: a run multiplies as its options say. A code that
// rounding turns moves it a little; on an H200, which adds up such products with fewer bits, by 0.11 of the distance.
TEST_P(Fp8Products, AreWhatARunMultiplies) {
  const json batch = read_json(fixture() / "expected.json").at("batch");
  const auto loss_of = [&](const char* fp8) {
    const json options = {{"batch_size", std::to_string(batch.at("documents").get<int>())},
                          {"max_length", "72"},
                          {"max_steps", "1"},
                          {"lr", "1e-3"},
                          {"dtype", "fp32"},
                          {"overwrite_output_dir", "true"},
                          {"fp8", fp8}};
    run_to_success(command().set(options));
    return read_metrics(output()).at(0).at("loss").get<double>();
  };
  const double with = batch.at("loss"), without = batch.at("loss_without_fp8");
  const double turned = (on_gpu() ? 0.2 : 0.1) * std::abs(with - without);
  EXPECT_NEAR(loss_of("true"), with, turned);
  EXPECT_NEAR(loss_of("false"), without, kRelative * without);
}

using OneStep = Blackbox;

// The first batch: forward and backward alone decide loss and norm. Every directory layout passes through here.
TEST_P(OneStep, LossAndNormMatch) {
  const json batch = read_json(fixture() / "expected.json").at("batch");
  const json options = {{"batch_size", std::to_string(batch.at("documents").get<int>())},
                        {"gradient_accumulation_steps", "1"},
                        {"max_length", "72"},
                        {"max_steps", "1"},
                        {"lr", "1e-3"},
                        {"warmup", "0"}};
  ASSERT_NO_FATAL_FAILURE(run_to_success(command().set(options)));
  const auto metrics = read_metrics(output());
  ASSERT_EQ(metrics.size(), 1u);
  expect_close(metrics[0].at("loss"), batch.at("loss"), kRelative, "loss");
  expect_close(metrics[0].at("grad_norm"), batch.at("grad_norm"), kRelative, "grad_norm");
  const auto summaries = read_metrics(output(), true);
  ASSERT_EQ(summaries.size(), 1u);
  EXPECT_EQ(summaries[0].at("step"), 1);
  const json& device = summaries[0].at("summary").at("device_bytes");
  EXPECT_GT(device.at("planned"), 0);
  EXPECT_LE(device.at("difference").get<double>(), 0) << "more was allocated than planned";

  std::set<std::string> source, saved;
  for (const auto& [name, tensor] : read_model_weights(fixture() / "model")) source.insert(name);
  for (const auto& [name, tensor] : read_model_weights(output())) saved.insert(name);
  EXPECT_EQ(saved, source);  // a tied lm_head stays absent
  expect_same_config(output(), fixture() / "model");
}

SO_LABEL(sweep, covered_families("Models/OneStep.*/"));
INSTANTIATE_TEST_SUITE_P(Models, OneStep,
                         testing::Values("llama-untied", "llama-tied-llama3", "llama-v4", "llama-bias", "llama-sharded",
                                         "qwen3-tied", "qwen3-untied-v4", "qwen3-bf16-v4", "mistral", "phi3-v4",
                                         "phi3-long", "phi3-short", "qwen2", "seed-oss", "qwen3-moe",
                                         "qwen3-moe-balance", "gpt-oss", "mixtral-v4", "smollm3-v4", "olmo2-v4",
                                         "olmo3", "granite-v4", "glm4", "glm4-v4", "gemma3-v4", "gemma3-vision",
                                         "ministral3", "qwen3-5", "qwen3-5-bias", "qwen3-5-vision", "qwen3-5-moe",
                                         "qwen3-next", "gemma4", "gemma4-vision", "gemma4-moe", "gemma4-e",
                                         "glm4-moe-lite", "nemotron-h"),
                         test_name);

// Experts stored in MXFP4 are widened when they are loaded. What is written is the model in bf16 under the names of
// such a model, and config.json no longer says that it is quantised.
TEST(Mxfp4, TrainsAndIsWrittenInBf16) {
  const TemporaryDirectory temporary;
  const auto fixture = model_fixture("gpt-oss-mxfp4");
  const json batch = read_json(fixture / "expected.json").at("batch");
  TrainCommand c(fixture / "mxfp4", fixture / "data.jsonl", temporary / "out");
  c.set("batch_size", std::to_string(batch.at("documents").get<int>())).set("max_length", "48").set("max_steps", "1");
  c.set("lr", "1e-3").set("warmup", "0").set("dtype", "fp32");
  const Outcome o = run(c.words(), temporary.path());
  ASSERT_EQ(o.exit_code, 0) << o.err;
  EXPECT_NE(o.err.find("quantization_config"), std::string::npos) << o.err;
  const auto metrics = read_metrics(temporary / "out");
  ASSERT_EQ(metrics.size(), 1u);
  expect_close(metrics[0].at("loss"), batch.at("loss"), kRelative, "loss");
  expect_close(metrics[0].at("grad_norm"), batch.at("grad_norm"), kRelative, "grad_norm");

  std::set<std::string> expected, saved;
  for (const auto& [name, tensor] : read_safetensors(fixture / "grads.safetensors")) expected.insert(name);
  for (const auto& [name, tensor] : read_model_weights(temporary / "out")) saved.insert(name);
  EXPECT_EQ(saved, expected);
  EXPECT_FALSE(read_json(temporary / "out" / "config.json").contains("quantization_config"));
}

// Matrices in FP8 are multiplied by their scales when they are loaded: one a tensor, in a model of images and text as
// Ministral 3 is published, or one a block. What is written is the model in bf16, without any scales.
TEST(Fp8, TrainsAndIsWrittenInBf16) {
  for (const char* name : {"ministral3-fp8", "qwen3-fp8"}) {
    SCOPED_TRACE(name);
    const TemporaryDirectory temporary;
    const auto fixture = model_fixture(name);
    const json batch = read_json(fixture / "expected.json").at("batch");
    TrainCommand c(fixture / "fp8", fixture / "data.jsonl", temporary / "out");
    c.set("batch_size", std::to_string(batch.at("documents").get<int>())).set("max_length", "48").set("max_steps", "1");
    c.set("lr", "1e-3").set("warmup", "0").set("dtype", "fp32");
    const Outcome o = run(c.words(), temporary.path());
    ASSERT_EQ(o.exit_code, 0) << o.err;
    EXPECT_NE(o.err.find("7 tensors are in FP8"), std::string::npos) << o.err;
    const auto metrics = read_metrics(temporary / "out");
    ASSERT_EQ(metrics.size(), 1u);
    expect_close(metrics[0].at("loss"), batch.at("loss"), kRelative, "loss");
    expect_close(metrics[0].at("grad_norm"), batch.at("grad_norm"), kRelative, "grad_norm");

    const RawTensors source = raw_tensors(fixture / "fp8"), saved = raw_tensors(temporary / "out");
    std::set<std::string> expected, got;
    for (const auto& [tensor, stored] : source)
      if (!tensor.ends_with("_scale_inv") && !tensor.ends_with("activation_scale")) expected.insert(tensor);
    for (const auto& [tensor, stored] : saved) {
      got.insert(tensor);
      EXPECT_NE(stored.dtype, "F8_E4M3") << tensor;
    }
    EXPECT_EQ(got, expected);
    EXPECT_FALSE(read_json(temporary / "out" / "config.json").contains("quantization_config"));
  }
}

// A tensor of the wrong shape, an expert that is not there, a scale too few: one line that names file and tensor.
TEST(Experts, ThatAreNotWhatConfigSaysAreRefused) {
  const TemporaryDirectory temporary;
  const auto refused = [&](const std::string& name, const char* source, const json& change,
                           const std::vector<std::string>& needles) {
    const auto fixture = model_fixture(name);
    const auto model = temporary / (name + std::to_string(needles.size()) + needles.back());
    std::filesystem::copy(fixture / source, model, std::filesystem::copy_options::recursive);
    json config = read_json(model / "config.json");
    config.update(change);
    std::filesystem::permissions(model / "config.json", std::filesystem::perms::owner_write,
                                 std::filesystem::perm_options::add);
    write_file(model / "config.json", config.dump());
    expect_refusal(run(TrainCommand(model, fixture / "data.jsonl", temporary / "out").words(), temporary.path()),
                   needles);
  };
  refused("qwen3-moe", "model", {{"num_local_experts", 9}}, {"mlp.gate.weight", "[8, 32]", "[9, 32]"});
  refused("qwen3-moe", "model", {{"moe_intermediate_size", 16}},
          {"experts.0.gate_proj.weight", "[12, 32]", "[16, 32]"});
  refused("qwen3-moe", "model", {{"mlp_only_layers", json::array()}}, {"model.layers.1.mlp.gate.weight", "missing"});
  refused("gpt-oss-mxfp4", "mxfp4", {{"intermediate_size", 64}}, {"gate_up_proj_blocks", "[4, 64, 2, 16]"});
}

using Training = Blackbox;

TEST_P(Training, TwentyStepsMatch) {
  const json train = read_json(fixture() / "expected.json").at("train");
  // The fixture must exercise what it is for.
  const auto clipped = std::count_if(train.at("steps").begin(), train.at("steps").end(),
                                     [](const json& s) { return s.at("clipped").get<bool>(); });
  ASSERT_GE(clipped, 4);
  ASSERT_LE(clipped, 16);
  ASSERT_NO_FATAL_FAILURE(run_to_success(command().set(train.at("options"))));
  expect_metrics(output(), train.at("steps"));
  expect_weights(output(), read_safetensors(fixture() / "final.safetensors"));
}

double largest(const json& steps, const char* key, const json& other) {
  double worst = 0;
  for (std::size_t i = 0; i < steps.size(); ++i)
    worst = std::max(worst, std::abs(other.at(i).get<double>() - steps[i].at(key).get<double>()));
  return worst;
}

// In bf16 no two implementations round alike, so the yardstick is PyTorch's own departure from its fp32 run. Both runs
// are samples of one error of that size; the largest of 20 steps seldom exceeds twice the other's largest, and three
// times it leaves room. The floor, one unit in the last place of bf16 (2^-8) over the square root of the 256 or so
// terms a loss or a norm averages, covers a run in which PyTorch happens to be lucky.
TEST_P(Training, Bf16StaysWithinPyTorchsOwnError) {
  const json train = read_json(fixture() / "expected.json").at("train");
  const json& steps = train.at("steps");
  ASSERT_NO_FATAL_FAILURE(run_to_success(command().set(train.at("options")).set("dtype", "bf16")));
  const auto metrics = read_metrics(output());
  ASSERT_EQ(metrics.size(), steps.size());
  json losses = json::array(), norms = json::array();
  for (const json& m : metrics) {
    losses.push_back(m.at("loss"));
    norms.push_back(m.at("grad_norm"));
  }
  const double floor = std::ldexp(1.0, -8) / 16;
  const double loss_error = largest(steps, "loss", losses);
  EXPECT_LE(loss_error,
            3 * largest(steps, "loss", train.at("losses_bf16")) + floor * steps[0].at("loss").get<double>());
  EXPECT_LE(largest(steps, "grad_norm", norms), 3 * largest(steps, "grad_norm", train.at("grad_norms_bf16")) +
                                                    floor * steps[0].at("grad_norm").get<double>());
  EXPECT_GT(loss_error, kRelative * steps[0].at("loss").get<double>()) << "this was not computed in bf16";
}

SO_LABEL(sweep, covered_families("Models/Training.*/"));
INSTANTIATE_TEST_SUITE_P(Models, Training,
                         testing::Values("llama-untied", "llama-tied-llama3", "llama-v4", "llama-bias", "qwen3-tied",
                                         "qwen3-untied-v4", "qwen3-bf16-v4", "mistral", "phi3-v4", "phi3-long", "qwen2",
                                         "seed-oss", "qwen3-moe", "qwen3-moe-balance", "gpt-oss", "mixtral-v4",
                                         "smollm3-v4", "olmo2-v4", "olmo3", "granite-v4", "glm4", "gemma3-v4",
                                         "gemma3-vision", "ministral3", "qwen3-5", "qwen3-5-vision", "qwen3-5-moe",
                                         "qwen3-next", "gemma4", "gemma4-moe", "gemma4-e", "glm4-moe-lite",
                                         "nemotron-h"),
                         test_name);

using Parts = Blackbox;

// Parameters that PyTorch did not train (requires_grad), and parameter groups with learning rates of their own.
TEST_P(Parts, TwentyStepsMatch) {
  const json expected = read_json(fixture() / "expected.json");
  const auto source = model_fixture(expected.at("model"));
  TrainCommand parts(source / "model", source / "data.jsonl", output());
  parts.set(expected.at("train").at("options"));
  ASSERT_NO_FATAL_FAILURE(run_to_success(parts));
  expect_metrics(output(), expected.at("train").at("steps"));
  const StoredTensors final = read_safetensors(fixture() / "final.safetensors");
  expect_weights(output(), final);
  // The fixture must exercise what it is for.
  const StoredTensors whole = read_safetensors(source / "final.safetensors");
  for (const char* name : {"model.embed_tokens.weight", "model.layers.0.self_attn.k_proj.weight"})
    EXPECT_GT(distance(final.at(name).values, whole.at(name).values), 100 * kRelative * norm(whole.at(name).values))
        << name;
}

INSTANTIATE_TEST_SUITE_P(Models, Parts, testing::Values("frozen", "lr-multiplier"), test_name);

using Packing = Blackbox;

// Documents packed into full rows must neither see each other nor count positions on: the losses are those of PyTorch
// with one document a row.
TEST_P(Packing, PackedRowsMatchSeparateDocuments) {
  const json expected = read_json(fixture() / "expected.json");
  const auto model = model_fixture(expected.at("model")) / "model";
  TrainCommand packed(model, fixture() / "data.jsonl", output());
  packed.set(expected.at("train").at("options")).set("packing", "true");
  ASSERT_NO_FATAL_FAILURE(run_to_success(packed));
  expect_metrics(output(), expected.at("train").at("steps"));
}

TEST_P(Packing, SeparateDocumentsMatch) {
  const json expected = read_json(fixture() / "expected.json");
  const auto model = model_fixture(expected.at("model")) / "model";
  TrainCommand separate(model, fixture() / "data.jsonl", output());
  separate.set(expected.at("train").at("options_unpacked")).set("packing", "false");
  ASSERT_NO_FATAL_FAILURE(run_to_success(separate));
  expect_metrics(output(), expected.at("train").at("steps"));
}

INSTANTIATE_TEST_SUITE_P(Models, Packing, testing::Values("packed", "packed-llama3"), test_name);

}  // namespace
}  // namespace so::test
