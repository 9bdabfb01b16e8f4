// train --sample_prompts: which texts, when, in which files, and that a run without them ends with the same bytes.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <sstream>
#include <thread>

#include "support/files.h"
#include "support/label.h"
#include "support/mpirun.h"
#include "support/on_gpu.h"
#include "support/process.h"
#include "support/refusal.h"
#include "support/speaking_model.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using SampledSteps = std::vector<std::int64_t>;

// The last begins as the first does: what was read of it at one step must not count at the next.
const std::string first = "Add two numbers.", second = "One, two, ", third = first + " Then";
const std::string prompts = first + "\n\n" + second + "\r\n" + third + "\n";

class Samples : public testing::Test {
 protected:
  void SetUp() override {
    model_ = make_speaking_model(temporary_.path());
    fs::copy_file(fs::path(fixtures()) / "chat" / "templates" / "qwen2_5.jinja", model_ / "chat_template.jinja");
    std::string records;
    for (int i = 0; i < 12; ++i)
      records +=
          json{{"text", "Sentence " + std::to_string(i) + ": one, two, three, four; the sea is wide."}}.dump() + "\n";
    write_file(data_, records);
    write_file(prompts_, prompts);
  }
  TrainCommand plain(const std::string& output) const {
    TrainCommand c(model_, data_, temporary_ / output);
    c.set("lr", "1e-2").set("warmup", "0").set("batch_size", "3").set("max_length", "48").set("max_steps", "6");
    return c.set("save_steps", "2").set("cache_dir", (temporary_ / "cache").string());
  }
  TrainCommand command(const std::string& output) const {
    return plain(output).set("sample_prompts", prompts_.string()).set("sample_max_new_tokens", "7");
  }
  Outcome finish(const TrainCommand& c) const {
    Outcome o = run(c.words(), temporary_.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return o;
  }
  std::vector<json> samples(const std::string& output) const {
    std::vector<json> all;
    std::istringstream in(read_file(temporary_ / output / "samples.jsonl"));
    for (std::string line; std::getline(in, line);) all.push_back(json::parse(line));
    return all;
  }
  // Returns the step of each line of samples in the metrics.
  SampledSteps recorded(const std::string& output) const {
    SampledSteps steps;
    for (const json& line : read_metrics(temporary_ / output))
      if (line.contains("samples")) steps.push_back(line.at("step"));
    return steps;
  }
  std::string text(const std::string& output, std::int64_t step, std::int64_t sample) const {
    for (const json& line : samples(output))
      if (line.at("step") == step && line.at("sample") == sample) return line.at("text");
    return "absent";
  }
  // Returns generate's answer to the same prompt.
  std::string generated(const fs::path& model, const std::vector<std::string>& prompt) const {
    std::vector<std::string> words{binary(), "generate", "--model", model.string(), "--max_new_tokens", "7", "--json"};
    words.insert(words.end(), {"--dtype", "fp32", "--device", on_gpu() ? "cuda" : "cpu"});
    words.insert(words.end(), prompt.begin(), prompt.end());
    const Outcome o = run(words, temporary_.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return json::parse(o.out).at("text");
  }
  void expect_same_run(const std::string& a, const std::string& b) const {
    SCOPED_TRACE(a + " and " + b);
    for (const char* file : {"model.safetensors", "checkpoint-4/model.safetensors", "checkpoint-6/exp_avg.safetensors",
                             "checkpoint-6/exp_avg_sq.safetensors"})
      EXPECT_EQ(read_file(temporary_ / a / file), read_file(temporary_ / b / file)) << file;
    // Checkpoints of a model in fp32 have no other master weights.
    const fs::path master = fs::path("checkpoint-6") / "master.safetensors";
    ASSERT_EQ(fs::exists(temporary_ / a / master), fs::exists(temporary_ / b / master));
    if (fs::exists(temporary_ / a / master)) {
      EXPECT_EQ(read_file(temporary_ / a / master), read_file(temporary_ / b / master));
    }
    const auto losses = [&](const std::string& output) {
      std::vector<double> all;
      for (const json& line : read_metrics(temporary_ / output))
        if (line.contains("loss")) all.push_back(line.at("loss"));
      return all;
    };
    EXPECT_EQ(losses(a), losses(b));
    EXPECT_EQ(losses(a).size(), 6u);
  }

  TemporaryDirectory temporary_;
  fs::path model_;
  const fs::path data_ = temporary_ / "data.jsonl", prompts_ = temporary_ / "prompts.txt";
};

SO_LABEL(sweep, "Samples.AreWhatGenerateSaysOfTheWeightsOfTheirStep");
TEST_F(Samples, AreWhatGenerateSaysOfTheWeightsOfTheirStep) {
  const Outcome o = finish(command("run"));
  EXPECT_EQ(recorded("run"), (SampledSteps{0, 2, 4, 6})) << "with checkpoints, where nothing is evaluated";
  const std::vector<json> all = samples("run");
  ASSERT_EQ(all.size(), 12u);
  for (const json& sample : all) {
    const std::vector<std::string> all_prompts{first, second, third};
    EXPECT_EQ(sample.at("prompt"), all_prompts.at(sample.at("sample").get<std::size_t>() - 1));
    EXPECT_EQ(sample.at("finish_reason"), sample.at("tokens") == 7 ? "length" : "eos");
  }
  const auto expect_text = [&](std::int64_t step, const fs::path& model) {
    EXPECT_EQ(text("run", step, 1), generated(model, {"--prompt", first})) << step;
    EXPECT_EQ(text("run", step, 2), generated(model, {"--prompt", second})) << step;
    EXPECT_EQ(text("run", step, 3), generated(model, {"--prompt", third})) << step;
  };
  expect_text(0, model_);
  expect_text(2, temporary_ / "run" / "checkpoint-2");
  expect_text(4, temporary_ / "run" / "checkpoint-4");
  expect_text(6, temporary_ / "run");
  EXPECT_NE(text("run", 0, 1), text("run", 6, 1)) << "the model has learnt";
  EXPECT_NE(o.err.find("step 4: sample 2 of 3: \""), std::string::npos) << o.err;
  EXPECT_EQ(run({binary(), "verify", (temporary_ / "run").string()}, temporary_.path()).exit_code, 0);

  finish(plain("without"));
  expect_same_run("run", "without");
  EXPECT_FALSE(fs::exists(temporary_ / "without" / "samples.jsonl"));

  // The report has them.
  const Outcome page = run({binary(), "report", (temporary_ / "run").string(), (temporary_ / "without").string(),
                            "--output", (temporary_ / "page.html").string()},
                           temporary_.path());
  ASSERT_EQ(page.exit_code, 0) << page.err;
  const std::string html = read_file(temporary_ / "page.html"), mark = "id=\"data\">";
  const std::size_t begin = html.find(mark) + mark.size();
  const json runs = json::parse(html.substr(begin, html.find("</script>", begin) - begin)).at("runs");
  EXPECT_EQ(runs.at(0).at("samples").at(1).at("prompt"), second);
  EXPECT_EQ(runs.at(0).at("samples").at(1).at("texts").size(), 4u);
  EXPECT_EQ(runs.at(1).at("samples"), json::array());
}

// Between all steps, where the device has some of the state and weights stream.
TEST_F(Samples, ChangeNoBitAndTakeWhatIsPlanned) {
  const auto way = [](TrainCommand c) {
    return c.set("dtype", "bf16").set("offload_ratio", "0.5").set("streamed_layers", "1");
  };
  finish(way(plain("without")));
  finish(way(command("run")).set("sample_steps", "1"));
  expect_same_run("run", "without");
  EXPECT_EQ(recorded("run"), (SampledSteps{0, 1, 2, 3, 4, 5, 6}));
  // Nothing was held that was not planned by its name.
  bool cache = false, logits = false;
  for (const json& line : read_metrics(temporary_ / "run", true))
    for (const json& entry : line.at("memory")) {
      if (!entry.at("measured").is_null()) {
        EXPECT_GE(entry.at("planned"), entry.at("measured")) << entry;
      }
      cache = cache || entry.at("name") == "KV cache";
      logits = logits || entry.at("name") == "logits";
    }
  EXPECT_TRUE(cache && logits);
}

TEST_F(Samples, ComeWithEvaluationsWhereThereAreAny) {
  finish(command("run").set("eval_data", data_.string()).set("eval_steps", "3"));
  EXPECT_EQ(recorded("run"), (SampledSteps{0, 3, 6}));
}

TEST_F(Samples, OfRecordsAreInTheirTemplates) {
  write_file(prompts_,
             "\xef\xbb\xbf"  // as some editors begin a text
             R"({"prompt":"Why?","completion":"Because."})"
             "\n"
             R"({"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Why?"}]})"
             "\n"
             R"({"prompt":[{"role":"user","content":"Why?"}]})"
             "\n"
             R"({"instruction":"Why?","output":"Because."})"
             "\n"
             R"({"text":"Why? "})"
             "\n");
  finish(command("run").set("max_length", "128").set("save_steps", "0").set("max_steps", "1"));
  EXPECT_EQ(recorded("run"), (SampledSteps{0, 1}));
  const std::string alone = generated(model_, {"--prompt", "Why?", "--chat"});
  EXPECT_EQ(text("run", 0, 1), alone);
  EXPECT_EQ(text("run", 0, 2), generated(model_, {"--prompt", "Why?", "--chat", "--system", "Be brief."}));
  EXPECT_EQ(text("run", 0, 3), alone);
  EXPECT_EQ(text("run", 0, 4), generated(model_, {"--prompt", "Why?", "--alpaca"}));
  EXPECT_EQ(text("run", 0, 5), generated(model_, {"--prompt", "Why? "}));
  EXPECT_EQ(samples("run").at(4).at("prompt"), "Why? ");
}

SO_LABEL(sweep, "Samples.OfARunThatWasStoppedAreThoseOfTheWholeRun");
TEST_F(Samples, OfARunThatWasStoppedAreThoseOfTheWholeRun) {
  finish(command("whole").set("sample_steps", "1"));
  finish(command("run").set("sample_steps", "1"));
  const std::string expected = read_file(temporary_ / "whole" / "samples.jsonl");
  EXPECT_EQ(read_file(temporary_ / "run" / "samples.jsonl"), expected);
  TrainCommand again = command("run").set("sample_steps", "1");
  again.flag("resume");
  // Killed after step 5, in the middle of a line.
  fs::remove_all(temporary_ / "run" / "checkpoint-6");
  fs::remove(temporary_ / "run" / "model.safetensors");
  write_file(temporary_ / "run" / "samples.jsonl", expected.substr(0, expected.find("\"step\":6") + 20));
  finish(again);
  EXPECT_EQ(read_file(temporary_ / "run" / "samples.jsonl"), expected);
  EXPECT_EQ(recorded("run"), (SampledSteps{0, 1, 2, 3, 4, 5, 6}));

  // Stopped while those of the checkpoint's step were made: they come first.
  fs::remove_all(temporary_ / "run" / "checkpoint-6");
  std::istringstream lines(read_file(temporary_ / "run" / "metrics.jsonl"));
  std::string kept;
  for (std::string line; std::getline(lines, line);)
    if (!line.starts_with("{\"step\":4,\"samples\"")) kept += line + "\n";
  write_file(temporary_ / "run" / "metrics.jsonl", kept);
  finish(again);
  EXPECT_EQ(read_file(temporary_ / "run" / "samples.jsonl"), expected);
  EXPECT_EQ(recorded("run"), (SampledSteps{0, 1, 2, 3, 4, 5, 6}));

  // Resumed without samples, the record ends where the run was resumed.
  fs::remove_all(temporary_ / "run" / "checkpoint-6");
  finish(plain("run").flag("resume"));
  EXPECT_EQ(read_file(temporary_ / "run" / "samples.jsonl"), expected.substr(0, expected.find("{\"step\":5")));
}

SO_LABEL(sweep, "Samples.SurviveSignals");
TEST_F(Samples, SurviveSignals) {
  finish(command("whole").set("sample_steps", "1"));
  TrainCommand next = command("run").set("sample_steps", "1");
  const auto written = [&] {
    const fs::path file = temporary_ / "run" / "metrics.jsonl";
    const std::string all = fs::exists(file) ? read_file(file) : "";
    return std::count(all.begin(), all.end(), '\n');
  };
  for (int code = 130; code == 130;) {
    const std::ptrdiff_t lines = written() + 3;
    Process process(next.words(), temporary_.path());
    while (!process.ended() && written() < lines) std::this_thread::sleep_for(std::chrono::microseconds(100));
    process.send(SIGTERM);
    const Outcome o = process.wait();
    code = o.signal == SIGTERM ? 130 : o.exit_code;
    ASSERT_TRUE(code == 130 || code == 0) << o.err;
    next = command("run").set("sample_steps", "1");
    next.flag("resume");
  }
  // The samples of the last step may be missing, if the signal came then.
  const std::string expected = read_file(temporary_ / "whole" / "samples.jsonl");
  const std::string found = read_file(temporary_ / "run" / "samples.jsonl");
  EXPECT_TRUE(found == expected || found == expected.substr(0, expected.find("{\"step\":6"))) << found;
  EXPECT_EQ(read_file(temporary_ / "run" / "model.safetensors"), read_file(temporary_ / "whole" / "model.safetensors"));
}

TEST_F(Samples, AreRefusedBeforeAnythingIsWritten) {
  const auto refused = [&](TrainCommand c, const std::vector<std::string>& parts) {
    expect_refusal(run(c.words(), temporary_.path()), parts);
    EXPECT_FALSE(fs::exists(temporary_ / "new"));
  };
  refused(command("new").set("sample_prompts", "absent.txt"), {"absent.txt"});
  write_file(prompts_, " \n\n");
  refused(command("new"), {"--sample_prompts", "holds no prompt"});
  write_file(prompts_, "a\xff\n");
  refused(command("new"), {"--sample_prompts", "no UTF-8"});
  write_file(prompts_, "short\nlong" + std::string(200, '?') + "\n");
  refused(command("new").set("max_length", "12"), {"prompts.txt:2", "--max_length"});
  write_file(prompts_, prompts);
  refused(command("new").set("sample_max_new_tokens", "100000"), {"prompts.txt:1", "100000 positions"});
  // There is room for the run and none for the keys and values of so long a text.
  refused(command("new").set("sample_max_new_tokens", "90000").set("host_memory", "60MB").flag("dry_run"),
          {"60.0 MB", "KV cache"});
  EXPECT_EQ(run(plain("new").set("host_memory", "60MB").flag("dry_run").words(), temporary_.path()).exit_code, 0);
  write_file(prompts_, "{\"prompt\":\"a\"}\n{\"answer\":\"b\"}\n");
  refused(command("new"), {"prompts.txt:2", "none of the keys"});
  write_file(prompts_, R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})");
  refused(command("new"), {"prompts.txt:1", "ends with an answer"});
  write_file(prompts_, R"({"conversations":[{"from":"human","value":"a"},{"from":null,"value":"b"}]})");
  refused(command("new"), {"prompts.txt:1", "message 2", "\"from\" must be a string"});
  write_file(prompts_, R"({"messages":[{"role":null,"from":"human","value":"b"}]})");
  refused(command("new"), {"prompts.txt:1", "\"role\" must be a string"});
  for (const std::string& begin : {std::string(), std::string(R"({"prompt":)"), std::string(R"({"messages":)")}) {
    write_file(prompts_, begin + std::string(3'000'000, '['));
    refused(command("new"), {"prompts.txt", begin.empty() ? "is it cut off?" : "not valid JSON"});
    write_file(prompts_,
               begin + std::string(3'000'000, '[') + std::string(3'000'000, ']') + (begin.empty() ? "" : "}"));
    refused(command("new"), {"prompts.txt"});
  }
  write_file(prompts_, R"({"input_ids":[1,2]})");
  refused(command("new"), {"prompts.txt:1", "token id record is no prompt"});
  fs::remove(model_ / "chat_template.jinja");
  write_file(prompts_, "{\"prompt\":\"a\"}\n");
  refused(command("new"), {"prompts.txt:1", "no chat template"});
  write_file(prompts_, prompts);
  fs::remove(model_ / "tokenizer.json");
  refused(command("new"), {"there is no tokenizer.json", "--sample_prompts"});
  refused(plain("new").set("sample_steps", "2"), {"--sample_steps", "add --sample_prompts"});
}

// A run whose steps are skipped goes on, and so it does when no text can be generated.
TEST_F(Samples, OfAModelThatOverflowsSaySo) {
  std::string weights = read_file(model_ / "model.safetensors");
  std::uint64_t header = 0;
  std::memcpy(&header, weights.data(), sizeof header);
  const json norm = json::parse(weights.substr(sizeof header, header)).at("model.norm.weight");
  ASSERT_EQ(norm.at("dtype"), "F32");
  const float large = std::numeric_limits<float>::max();
  const auto offset = [&](int i) { return sizeof header + header + norm.at("data_offsets").at(i).get<std::size_t>(); };
  for (std::size_t at = offset(0); at < offset(1); at += sizeof large)
    std::memcpy(weights.data() + at, &large, sizeof large);
  write_file(model_ / "model.safetensors", weights);
  const Outcome o = finish(command("run").set("max_steps", "2"));
  EXPECT_NE(o.err.find("step 0: sample 1: the model's logits are not finite"), std::string::npos) << o.err;
  ASSERT_EQ(samples("run").size(), 6u);
  for (const json& sample : samples("run")) EXPECT_EQ(sample.at("finish_reason"), "not finite");
}

// A file of that name that no run wrote stays, and is in the way of a run with samples alone.
TEST_F(Samples, LeaveTheFilesOfOthers) {
  fs::create_directories(temporary_ / "run");
  write_file(temporary_ / "run" / "samples.jsonl", "mine\n");
  expect_refusal(run(command("run").words(), temporary_.path()), {"samples.jsonl", "written over"});
  finish(plain("run").set("max_steps", "1"));
  EXPECT_EQ(read_file(temporary_ / "run" / "samples.jsonl"), "mine\n");
  finish(command("other").set("max_steps", "1"));
  finish(plain("other").set("max_steps", "1").flag("overwrite_output_dir"));
  EXPECT_FALSE(fs::exists(temporary_ / "other" / "samples.jsonl"));
}

TEST_F(Samples, OfSeveralRanksAreTheFirstOnes) {
  if (on_gpu()) GTEST_SKIP() << "ranks are those of the CPU device";
  if (const std::string reason = why_no_ranks(); !reason.empty()) GTEST_SKIP() << reason;
  finish(command("run").set("gpus", "2"));
  finish(plain("without").set("gpus", "2"));
  expect_same_run("run", "without");
  EXPECT_EQ(recorded("run"), (SampledSteps{0, 2, 4, 6}));
  EXPECT_EQ(text("run", 6, 1), generated(temporary_ / "run", {"--prompt", first}));
  expect_refusal(run(command("new").set("gpus", "2").set("gathered_layers", "1").words(), temporary_.path()),
                 {"gathered", "--gathered_layers 0"});
  EXPECT_FALSE(fs::exists(temporary_ / "new"));
}

}  // namespace
}  // namespace so::test
