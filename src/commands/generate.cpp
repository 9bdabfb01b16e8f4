#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/file.h"
#include "base/standard_input.h"
#include "base/standard_streams.h"
#include "commands/command.h"
#include "commands/inference.h"
#include "commands/shared_rows.h"
#include "data/example.h"
#include "data/model_encoder.h"
#include "model/model_dtype.h"
#include "model/sampling.h"

namespace so {
namespace {

struct GenerateOptions : TextOptions, JsonOption, ComputeOptions, MessageOptions {
  std::string model;
  std::string prompt;                      // exactly one of prompt and prompt_file is given
  std::optional<std::string> prompt_file;  // "-": standard input
  bool alpaca = false;
  int max_new_tokens = 128;
  std::optional<double> temperature;  // unset: greedy
  std::optional<int> top_k;           // unset: all
  double top_p = 1;
  bool stop_at_eos = true;
  std::int64_t seed = 42;
};

OptionTable<GenerateOptions> generate_table() {
  using namespace default_from;
  using O = GenerateOptions;
  OptionTable<O> t;
  t.group("Model and prompt");
  t.add("model", &O::model, "Hugging Face model directory: config.json, tokenizer, safetensors")
      .metavar("DIR")
      .required()
      .elsewhere("model_name")
      .elsewhere("model_name_or_path");
  t.add("prompt", &O::prompt, "Text to continue").default_from(ours);
  t.add("prompt_file", &O::prompt_file, "File with the text to continue; - is standard input")
      .metavar("FILE")
      .default_from(ours);
  t.add("alpaca", &O::alpaca, "Wrap the prompt in the Alpaca template: ### Instruction, ### Response")
      .default_from(ours);
  t.borrow(text_rows(), ours);
  t.group("Sampling");
  t.add("max_new_tokens", &O::max_new_tokens, "Most tokens to generate").unit("tokens").at_least(1).default_from(ours);
  t.add("temperature", &O::temperature, "Softmax temperature")
      .at_least(1e-6)
      .at_most(1e6)
      .or_else(0.0, "greedy")
      .default_from(ours);
  t.add("top_k", &O::top_k, "Sample from so many most probable tokens")
      .at_least(1)
      .or_else(std::int64_t{0}, "all")
      .default_from(ours);
  t.add("top_p", &O::top_p, "Sample from the fewest tokens that reach this probability")
      .above(0)
      .at_most(1)
      .default_from("GenerationConfig");
  t.add("stop_at_eos", &O::stop_at_eos, "Stop at the model's end-of-text token").default_from(ours);
  t.add("seed", &O::seed, "Seed of the sampling").at_least(0).default_from("TrainingArguments");
  t.group("Result");
  t.take(json_rows());
  add_machine_and_messages(t);
  return t;
}

const OptionTable<GenerateOptions>& generate_rows() {
  static const OptionTable<GenerateOptions> rows = generate_table();
  return rows;
}

void check(GenerateOptions& options, OptionOrigins& origins, int) {
  check_exactly_one(generate_rows().view(options), origins, {"prompt", "prompt_file"});
}

// A prompt is read a piece at a time, so that a long one needs no more activations than this many tokens take.
constexpr std::int64_t prompt_piece = 512;
constexpr std::uint64_t max_prompt_bytes = 16 << 20;

std::string read_prompt(const GenerateOptions& options) {
  std::string text = options.prompt;
  if (options.prompt_file == "-")
    text = read_standard_input(max_prompt_bytes);
  else if (options.prompt_file)
    text = read_text_file(*options.prompt_file, max_prompt_bytes);
  return options.alpaca ? alpaca_prompt({text, "", ""}) : text;
}

// Runs `ids` after what the cache holds; logits of the last one.
void feed(Inference& inference, std::span<const std::int32_t> ids, Tensor logits) {
  for (std::size_t at = 0; at < ids.size(); at += prompt_piece) {
    const auto piece = ids.subspan(at, std::min<std::size_t>(prompt_piece, ids.size() - at));
    const auto n = static_cast<std::int64_t>(piece.size());
    ModelOnDevice& model = inference.model();
    const std::int64_t used = model.cache().used;
    MicroBatch batch;
    batch.ids.assign(piece.begin(), piece.end());
    batch.targets.assign(piece.size(), kIgnored);
    batch.positions.resize(piece.size());
    std::iota(batch.positions.begin(), batch.positions.end(), static_cast<std::int32_t>(used));
    batch.cu_seqlens = {0, static_cast<std::int32_t>(n)};
    batch.tokens = n;
    const std::array<std::int32_t, 2> keys{0, static_cast<std::int32_t>(used + n)};
    DeviceBatch views = model.upload().upload(inference.stream(), batch, keys);
    model.decoder().forward_logits(inference.stream(), views, inference.weights(), model.arena(), logits,
                                   &model.cache());
  }
}

int run(const GenerateOptions& options, const OptionOrigins&) {
  const DecoderSpec spec = read_spec(options.model);
  const ModelFiles model(options.model);
  const ModelEncoder encoder(options.model, spec.vocab, special_tokens(options.parse_special_tokens));
  const Tokenizer& tokenizer = encoder.tokenizer();
  const std::vector<std::int32_t> prompt = encoder.encode(read_prompt(options), true);
  if (prompt.empty()) fail("--prompt: the prompt holds no token; give some text");
  const auto length = static_cast<std::int64_t>(prompt.size()) + options.max_new_tokens;
  if (length > spec.max_positions)
    fail(
        "the prompt's {} tokens and --max_new_tokens {} exceed the model's limit of {} positions; lower "
        "--max_new_tokens or shorten the prompt",
        prompt.size(), options.max_new_tokens, spec.max_positions);

  check_cpu_threads(options, static_cast<int>(usable_cpus().size()));
  Runtime runtime(options.device, options.cpu_threads.value_or(0));
  const std::string config_file = (std::filesystem::path(options.model) / "config.json").string();
  InferenceShape shape;
  shape.batch_tokens = std::min<std::int64_t>(prompt_piece, static_cast<std::int64_t>(prompt.size()));
  shape.positions = shape.cache_capacity = length;
  shape.logits_rows = 1;
  const DType dtype = model_dtype(asked_dtype(options.dtype), model.directory().config_json(), config_file);
  Inference inference(model, runtime, model_formats(dtype), shape, room_of(runtime.device()));
  Buffer logits_memory =
      runtime.device().allocate(MemoryKind::device, static_cast<std::size_t>(spec.vocab) * sizeof(float), "logits");
  Buffer logits_host = runtime.device().allocate(MemoryKind::pinned, logits_memory.bytes(), "logits");
  const Tensor logits(logits_memory.data(), DType::f32, {1, spec.vocab});

  const SamplingOptions sampling{options.temperature.value_or(0), options.top_k.value_or(0), options.top_p};
  std::mt19937_64 random(static_cast<std::uint64_t>(options.seed));
  StreamDecoder text(tokenizer, true, prompt);
  std::vector<std::int32_t> generated;
  std::string whole, reason = "length";
  std::span<const std::int32_t> next = prompt;
  const auto emit = [&](const std::string& piece) {
    whole += piece;
    if (options.json) return;
    fmt::print("{}", piece);
    flush_standard_output();  // nobody reads on: stop
  };
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < options.max_new_tokens; ++i) {
    feed(inference, next, logits);
    inference.stream().copy(logits_host.data(), logits_memory.data(), logits_memory.bytes());
    inference.stream().synchronize();
    const std::int32_t id =
        sample({static_cast<const float*>(logits_host.data()), static_cast<std::size_t>(spec.vocab)}, sampling, random);
    if (options.stop_at_eos && tokenizer.ends_generation(id)) {
      reason = "eos";
      break;
    }
    generated.push_back(id);
    emit(text.push(id));
    next = std::span(generated).last(1);
  }
  emit(text.finish());
  if (!options.json) {
    fmt::print("\n");
    return exit_ok;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  nlohmann::ordered_json result{{"text", whole},
                                {"ids", generated},
                                {"prompt_tokens", prompt.size()},
                                {"finish_reason", reason},
                                {"tokens_per_s", static_cast<double>(generated.size()) / seconds}};
  fmt::print("{}\n", result.dump());
  return exit_ok;
}

const RegisteredCommand generate_command([] {
  return make_command<GenerateOptions>(
      {.name = "generate",
       .position = 4,
       .summary = "continue a prompt",
       .details = "Continues a prompt and prints the new text. Greedy unless a temperature is given.",
       .examples =
           {"superoffload generate --model out --prompt \"Give three tips for staying healthy.\" --alpaca",
            "superoffload generate --model out --prompt_file prompt.txt --temperature 0.7 --top_p 0.9 --seed 1"},
       .modes = {{"temperature", "0", "generation is greedy", {"top_k", "top_p", "seed"}}}},
      generate_rows(), check, run);
});

}  // namespace
}  // namespace so
