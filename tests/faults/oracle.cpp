#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "faults/fault_case.h"
#include "support/files.h"
#include "support/paths.h"
#include "support/refusal.h"

namespace so::test {
namespace {

// None of these belongs in front of a user: the words of the standard library, of JSON libraries, of a crash.
constexpr std::array foreign_words = {
    "std::",           "terminate called", "json.exception", "simdjson",       "what():",          "basic_string",
    "vector::",        "filesystem error", "bad_alloc",      "runtime error:", "AddressSanitizer", "LeakSanitizer",
    "ThreadSanitizer", "internal error",   "Assertion",      "map::at",        "bad optional",
};

constexpr const char* foreign_files[] = {"thesis.txt", "model-notes.safetensors", "checkpoint-best",
                                         "metrics.jsonl.txt"};

std::string foreign_text(const std::string& name) { return "somebody's " + name + "\n"; }

std::string excerpt(const std::string& text) {
  constexpr std::size_t most = 600;
  return text.size() <= most ? text : "..." + text.substr(text.size() - most);
}

}  // namespace

std::string judge(const Outcome& o) {
  const auto complain = [&](const std::string& what) { return what + "; standard error: " + excerpt(o.err); };
  if (o.signal != 0) return complain(fmt::format("ended by signal {}", o.signal));
  for (const char* word : foreign_words)
    if (o.err.find(word) != std::string::npos) return complain(fmt::format("says \"{}\"", word));
  if (o.exit_code == 0) return {};
  if (o.exit_code != 1 && o.exit_code != 2) return complain(fmt::format("exit code {}", o.exit_code));
  const std::vector<std::string> lines = lines_of(o.err);
  const auto errors = std::count_if(lines.begin(), lines.end(),
                                    [](const std::string& line) { return line.starts_with("superoffload: "); });
  if (errors != 1 || !lines.back().starts_with("superoffload: "))
    return complain(
        fmt::format("exit code {} with {} lines that say why, or one that is not the last", o.exit_code, errors));
  constexpr std::size_t longest_line = 6000;  // a path as long as the kernel takes may be in it
  if (lines.back().size() > longest_line) return complain(fmt::format("a line of {} bytes", lines.back().size()));
  for (const char c : lines.back())
    if (static_cast<unsigned char>(c) < 0x20) return complain("a control character in the message");
  return {};
}

std::string judge_foreign(const std::filesystem::path& work) {
  for (const char* name : foreign_files) {
    const std::filesystem::path file = work / "foreign" / name;
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(file, ignored)) return fmt::format("foreign/{} is gone", name);
    if (read_file(file) != foreign_text(name)) return fmt::format("foreign/{} was changed", name);
  }
  return {};
}

Outcome run_program(const std::vector<std::string>& words, const std::filesystem::path& work, const Limits& limits) {
  std::vector<std::string> command{test::binary()};
  command.insert(command.end(), words.begin(), words.end());
  Limits in_work = limits;
  in_work.directory = work;
  return run(command, work, in_work);
}

std::vector<std::string> model_command(unsigned which) {
  switch (which % 5) {
    case 0:
      return {"train", "--model",     "model", "--data",       "data.jsonl", "--output_dir",
              "out",   "--max_steps", "1",     "--batch_size", "1",          "--max_length",
              "64",    "--device",    "cpu",   "--cache_dir",  "cache"};
    case 1:
      return {"eval", "--model",  "model", "--data",      "data.jsonl", "--max_length",
              "64",   "--device", "cpu",   "--cache_dir", "cache"};
    case 2:
      return {"generate", "--model", "model", "--prompt", "Add.", "--max_new_tokens", "2", "--device", "cpu"};
    case 3:
      return {"tokenize", "--model", "model", "--file", "data.jsonl"};
    default:
      return {"plan", "--model", "model", "--hardware", "h200", "--batch_size", "1", "--max_length", "64"};
  }
}

std::vector<std::string> run_of_originals(bool resume) {
  std::vector<std::string> words = {
      "train", "--model",      "model", "--data",       "data.jsonl", "--output_dir",
      "run",   "--max_steps",  "24",    "--save_steps", "8",          "--save_total_limit",
      "2",     "--batch_size", "1",     "--max_length", "64",         "--device",
      "cpu",   "--cache_dir",  "cache"};
  if (resume) words.push_back("--resume");
  return words;
}

Originals::Originals(const std::filesystem::path& directory) : directory_(directory) {
  namespace fs = std::filesystem;
  fs::create_directories(directory / "foreign");
  for (const char* name : foreign_files) write_file(directory / "foreign" / name, foreign_text(name));
  write_file(directory / "config.json", R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
    "vocab_size": 4096, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 16, "intermediate_size": 48, "hidden_act": "silu", "max_position_embeddings": 64,
    "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "attention_bias": false, "tie_word_embeddings": true,
    "initializer_range": 0.02, "eos_token_id": 4093, "torch_dtype": "float32"})");
  std::string records;
  for (int i = 0; i < 12; ++i)
    records += fmt::format(
        "{{\"instruction\": \"Add {0}.\", \"input\": \"{0} and {0}\", \"output\": \"{1}, as ever\"}}\n", i, 2 * i);
  write_file(directory / "data.jsonl", records);
  write_file(directory / "settings.json", R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0, "bf16": {"enabled": false}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4,
    "betas": [0.9, 0.99], "eps": 1e-8, "weight_decay": 0.1}}, "zero_optimization": {"stage": 3,
    "offload_optimizer": {"device": "cpu", "pin_memory": true, "ratio": 0.9, "super_offload": true}}})");
  const auto must = [&](const std::vector<std::string>& words) {
    const Outcome o = run_program(words, directory);
    if (o.exit_code != 0) throw std::runtime_error("the originals cannot be made: " + o.err);
  };
  must({"init", "--config", "config.json", "--tokenizer", test::source_tree() + "/assets/tokenizer", "--output_dir",
        "model"});
  write_file(directory / "model" / "generation_config.json", R"({"eos_token_id": [4093, 4094], "temperature": 0.7})");
  write_file(directory / "model" / "special_tokens_map.json",
             R"({"eos_token": {"content": "<|im_end|>", "lstrip": false}})");
  must(run_of_originals());
  // A line that is refused as it stands would prove nothing about the faults put into it.
  const TemporaryDirectory scratch;
  for (std::vector<std::string> words : good_lines()) {
    fs::remove_all(scratch / "work");
    fs::copy(directory, scratch / "work", fs::copy_options::recursive);
    const Outcome o = run_program(words, scratch / "work");
    if (o.exit_code != 0) throw std::runtime_error("'" + words[0] + "' without a fault is refused: " + o.err);
  }
}

}  // namespace so::test
