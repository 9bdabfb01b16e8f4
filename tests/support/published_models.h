// Model directories as publishers ship them, rebuilt small: their config.json with every key it has, its sizes shrunk;
// the files of their tokenizers with our own vocabularies; and what else lies beside the weights. Facts were taken from
// the published directories, texts were not.
#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/paths.h"
#include "support/safetensors_reader.h"
#include "support/training_run.h"

namespace so::test {

// Python's default for "no limit", as it stands in most published files: int(1e30).
inline constexpr const char* no_limit = "1000000000000000019884624838656";

enum class ChatTemplate { none, text, named_list, file };

struct PublishedModel {
  std::string name;                                          // of the test
  std::string config;                                        // a preset, or the text of a config.json
  std::string tokenizer;                                     // of tests/fixtures/tokenizer
  nlohmann::json tokenizer_keys = nlohmann::json::object();  // of tokenizer_config.json, beside those of the fixture
  nlohmann::json special_tokens_map;                         // null: no such file
  nlohmann::json generation;                                 // null: no such file
  ChatTemplate chat_template = ChatTemplate::none;
  std::vector<std::string> copied;                  // small files that a trained model keeps
  std::vector<std::string> ignored;                 // files that it does not
  std::vector<std::string> tokenizer_json_without;  // keys that its tokenizer.json lacks

  friend void PrintTo(const PublishedModel& model, std::ostream* out) { *out << model.name; }
};

// As published, with sizes of a test.
inline nlohmann::json shrunk_config(nlohmann::json c) {
  c["hidden_size"] = 32;
  c["num_hidden_layers"] = 2;
  c["num_attention_heads"] = 4;
  c["num_key_value_heads"] = 2;
  c["intermediate_size"] = 24;
  c["vocab_size"] = 2048;
  if (c.contains("head_dim") && !c["head_dim"].is_null()) c["head_dim"] = 16;
  if (c.contains("moe_intermediate_size")) c["moe_intermediate_size"] = 16;
  for (const char* key : {"num_experts", "num_local_experts"})
    if (c.contains(key)) c[key] = 4;
  for (const char* key : {"num_experts_per_tok", "experts_per_token"})
    if (c.contains(key)) c[key] = 2;
  for (const char* key : {"layer_types", "no_rope_layers"})
    if (c.contains(key)) c[key].erase(c[key].begin() + 2, c[key].end());
  for (const char* key : {"short_factor", "long_factor"})
    if (c.contains("rope_scaling") && c["rope_scaling"].is_object() && c["rope_scaling"].contains(key))
      c["rope_scaling"][key] = {1.0, 1.25, 1.5};  // 3/4 of a head of 8 rotate
  return c;
}

inline nlohmann::json config_of(const PublishedModel& model) {
  if (model.config.starts_with("{")) return shrunk_config(nlohmann::json::parse(model.config));
  return shrunk_config(
      read_json(std::filesystem::path(test::source_tree()) / "configs/models" / (model.config + ".json")));
}

// tokenizer.json as the fixture has it, less `without`.
inline nlohmann::json tokenizer_of(const std::string& fixture, const std::vector<std::string>& without = {}) {
  auto json = read_json(std::filesystem::path(test::fixtures()) / "tokenizer" / fixture / "tokenizer.json");
  for (const std::string& key : without) json.erase(key);
  return json;
}

// tokenizer_config.json as text, since JSON libraries of C++ write no such number.
inline std::string tokenizer_config_of(const PublishedModel& model) {
  const auto fixture = std::filesystem::path(test::fixtures()) / "tokenizer" / model.tokenizer;
  nlohmann::json j = read_json(fixture / "tokenizer_config.json");
  j.update(model.tokenizer_keys);
  const nlohmann::json tokenizer = tokenizer_of(model.tokenizer);
  for (const auto& token : tokenizer["added_tokens"]) {
    nlohmann::json entry = token;
    entry.erase("id");
    j["added_tokens_decoder"][std::to_string(token["id"].get<int>())] = entry;
  }
  if (model.chat_template == ChatTemplate::text) j["chat_template"] = "{{ bos_token }}{% for m in messages %}{{ m }}";
  if (model.chat_template == ChatTemplate::named_list)
    j["chat_template"] = {{{"name", "default"}, {"template", "{{ messages }}"}},
                          {{"name", "tool_use"}, {"template", "{{ tools }}"}}};
  j["clean_up_tokenization_spaces"] = false;
  j["model_max_length"] = 131072;
  std::string text = j.dump(2);
  const std::string key = "\"model_max_length\": ";
  return text.replace(text.find(key) + key.size(), std::string("131072").size(), no_limit) + "\n";
}

inline void write_json(const std::filesystem::path& path, const nlohmann::json& json) {
  write_file(path, json.dump(2) + "\n");
}

// Everything but weights and config.json.
inline void write_small_files(const PublishedModel& model, const std::filesystem::path& directory) {
  std::filesystem::create_directories(directory);
  write_json(directory / "tokenizer.json", tokenizer_of(model.tokenizer, model.tokenizer_json_without));
  write_file(directory / "tokenizer_config.json", tokenizer_config_of(model));
  if (!model.special_tokens_map.is_null()) write_json(directory / "special_tokens_map.json", model.special_tokens_map);
  if (!model.generation.is_null()) write_json(directory / "generation_config.json", model.generation);
  if (model.chat_template == ChatTemplate::file)
    write_file(directory / "chat_template.jinja", "{% for m in messages %}{{ m['content'] }}{% endfor %}\n");
  for (const auto* names : {&model.copied, &model.ignored}) {
    for (const std::string& name : *names) {
      std::filesystem::create_directories((directory / name).parent_path());
      write_file(directory / name, name.ends_with(".json") ? "{\"of\": \"" + name + "\"}\n" : "text of " + name + "\n");
    }
  }
}

inline const std::vector<PublishedModel>& published_models() {
  using nlohmann::json;
  static const std::vector<std::string> hub{".gitattributes", "README.md"};
  static const std::vector<std::string> original{".gitattributes", "README.md", "original/params.json",
                                                 "original/consolidated.00.pth", "original/tokenizer.model"};
  static const std::vector<PublishedModel> all{
      {.name = "Llama31",
       .config = "llama-3.1-8b",
       .tokenizer = "llama3",
       .tokenizer_keys = {{"model_input_names", {"input_ids", "attention_mask"}},
                          {"tokenizer_class", "PreTrainedTokenizerFast"}},
       .special_tokens_map = {{"bos_token", "<|begin_of_text|>"}, {"eos_token", "<|eot_id|>"}},
       .generation = {{"bos_token_id", 2003}, {"do_sample", true}, {"eos_token_id", {2004, 2007}}, {"top_p", 0.9}},
       .chat_template = ChatTemplate::text,
       .copied = {"LICENSE", "USE_POLICY.md"},
       .ignored = original},
      {.name = "MistralNemo",
       .config = R"({"architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
                     "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
                     "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072,
                     "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40,
                     "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null,
                     "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.43.0.dev0",
                     "use_cache": true, "vocab_size": 131072})",
       .tokenizer = "llama3",
       .tokenizer_keys = {{"add_bos_token", true},
                          {"add_eos_token", false},
                          {"add_prefix_space", false},
                          {"tokenizer_class", "GPT2TokenizerFast"}},
       .special_tokens_map = {{"bos_token", {{"content", "<|begin_of_text|>"}, {"lstrip", false}}},
                              {"eos_token", {{"content", "<|end_of_text|>"}, {"lstrip", false}}},
                              {"unk_token", {{"content", "<unk>"}, {"lstrip", false}}}},
       .generation = {{"_from_model_config", true}, {"bos_token_id", 1}, {"eos_token_id", 2}},
       .copied = {"tekken.json"},
       .ignored = {".gitattributes", "README.md", "consolidated.safetensors", "params.json"}},
      {.name = "Phi4",
       .config = "phi-4",
       .tokenizer = "phi4",
       .tokenizer_keys = {{"add_prefix_space", false}, {"tokenizer_class", "GPT2Tokenizer"}},
       .special_tokens_map = {{"bos_token", {{"content", "<|endoftext|>"}}},
                              {"eos_token", {{"content", "<|im_end|>"}}}},
       .generation = {{"bos_token_id", 2001}, {"eos_token_id", {2001, 2003}}, {"pad_token_id", 2000}},
       .chat_template = ChatTemplate::text,
       .copied = {"LICENSE", "added_tokens.json", "merges.txt", "vocab.json"},
       .ignored = hub},
      {.name = "Phi4Mini",
       .config = R"({"architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
                     "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "bos_token_id": 199999,
                     "embd_pdrop": 0.0, "eos_token_id": 199999, "full_attn_mod": 1, "hidden_act": "silu",
                     "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 8192,
                     "interpolate_factor": 1, "lm_head_bias": false, "max_position_embeddings": 131072,
                     "mlp_bias": false, "model_type": "phi3", "num_attention_heads": 24, "num_hidden_layers": 32,
                     "num_key_value_heads": 8, "original_max_position_embeddings": 4096, "pad_token_id": 199999,
                     "partial_rotary_factor": 0.75, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
                     "rope_scaling": {"long_factor": [1], "short_factor": [1], "type": "longrope"},
                     "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": true,
                     "torch_dtype": "bfloat16", "transformers_version": "4.45.0", "use_cache": true,
                     "vocab_size": 200064})",
       .tokenizer = "phi4",
       .tokenizer_keys = {{"add_bos_token", false}, {"add_eos_token", false}, {"unk_token", "<|endoftext|>"}},
       .special_tokens_map = {{"eos_token", {{"content", "<|im_end|>"}}}},
       .generation = {{"_from_model_config", true}, {"bos_token_id", 2001}, {"eos_token_id", {2003, 2001}}},
       .copied = {"CODE_OF_CONDUCT.txt", "configuration_phi3.py", "modeling_phi3.py", "merges.txt", "vocab.json"},
       .ignored = {"README.md", "SECURITY.md", "figures/architecture.png"}},
      {.name = "Qwen25",
       .config = R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
                     "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02,
                     "intermediate_size": 18944, "max_position_embeddings": 32768, "max_window_layers": 28,
                     "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28,
                     "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
                     "sliding_window": 131072, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
                     "transformers_version": "4.43.1", "use_cache": true, "use_sliding_window": false,
                     "vocab_size": 152064})",
       .tokenizer = "qwen3",
       .tokenizer_keys = {{"additional_special_tokens", {"<|im_start|>", "<|im_end|>"}},
                          {"errors", "replace"},
                          {"split_special_tokens", false},
                          {"tokenizer_class", "Qwen2Tokenizer"},
                          {"unk_token", nullptr}},
       .generation = {{"bos_token_id", 2000},
                      {"do_sample", true},
                      {"eos_token_id", {2002, 2000}},
                      {"pad_token_id", 2000},
                      {"repetition_penalty", 1.05}},
       .chat_template = ChatTemplate::text,
       .copied = {"LICENSE", "merges.txt", "vocab.json"},
       .ignored = hub},
      {.name = "Qwen3",
       .config = "qwen3-0.6b",
       .tokenizer = "qwen3",
       .tokenizer_keys = {{"add_bos_token", false}, {"errors", "replace"}, {"tokenizer_class", "Qwen2Tokenizer"}},
       .generation = {{"bos_token_id", 2000}, {"eos_token_id", {2002, 2000}}, {"temperature", 0.6}, {"top_k", 20}},
       .chat_template = ChatTemplate::text,
       .copied = {"LICENSE", "merges.txt", "vocab.json"},
       .ignored = hub},
      {.name = "Qwen3Moe",
       .config = "qwen3-30b-a3b",
       .tokenizer = "qwen3",
       .tokenizer_keys = {{"tokenizer_class", "Qwen2Tokenizer"}, {"unk_token", nullptr}},
       .generation = {{"eos_token_id", {2002, 2000}}},
       .chat_template = ChatTemplate::text,
       .copied = {"LICENSE", "merges.txt", "vocab.json"},
       .ignored = hub},
      {.name = "SeedOss",
       .config = "seed-oss-36b",
       .tokenizer = "seed_oss",
       .tokenizer_keys = {{"tokenizer_class", "PreTrainedTokenizerFast"}},
       .special_tokens_map = {{"bos_token", {{"content", "<seed:bos>"}}}, {"eos_token", {{"content", "<seed:eos>"}}}},
       .generation = {{"_from_model_config", true}, {"bos_token_id", 0}, {"eos_token_id", 2}, {"pad_token_id", 1}},
       .chat_template = ChatTemplate::file,
       .copied = {"LICENSE", "merges.txt", "vocab.json"},
       .ignored = {"MODEL_CARD.md", "README.md", "thinking_budget.png"}},
      {.name = "GptOss",
       .config = "gpt-oss-20b",
       .tokenizer = "gpt_oss",
       .tokenizer_keys = {{"model_input_names", {"input_ids", "attention_mask"}},
                          {"tokenizer_class", "PreTrainedTokenizerFast"}},
       .special_tokens_map = {{"bos_token", "<|startoftext|>"}, {"eos_token", "<|return|>"}},
       .generation = {{"bos_token_id", 2003}, {"do_sample", true}, {"eos_token_id", {2005, 2004, 2010}}},
       .chat_template = ChatTemplate::file,
       .copied = {"LICENSE", "USAGE_POLICY"},
       .ignored = {"README.md", "metal/model.bin", "original/config.json", "original/dtypes.json"}},
      {.name = "SmolLM3",
       .config = "smollm3-3b",
       .tokenizer = "llama3",
       .tokenizer_keys = {{"bos_token", nullptr}, {"tokenizer_class", "PreTrainedTokenizerFast"}},
       .generation = {{"do_sample", true}, {"eos_token_id", 2004}, {"temperature", 0.6}, {"top_p", 0.95}},
       .chat_template = ChatTemplate::file,
       .ignored = hub},
      {.name = "Olmo2",
       .config = "olmo-2-7b",
       .tokenizer = "phi4",
       .tokenizer_keys = {{"tokenizer_class", "GPT2Tokenizer"}},
       .generation = {{"eos_token_id", 2001}, {"pad_token_id", 2000}},
       .copied = {"merges.txt", "vocab.json"},
       .ignored = hub},
      {.name = "Olmo3",
       .config = "olmo-3-7b",
       .tokenizer = "phi4",
       .tokenizer_keys = {{"tokenizer_class", "GPT2Tokenizer"}},
       .generation = {{"eos_token_id", {2003, 2001}}},
       .chat_template = ChatTemplate::file,
       .copied = {"merges.txt", "vocab.json"},
       .ignored = hub},
      {.name = "Granite33",
       .config = "granite-3.3-8b",
       .tokenizer = "qwen3",
       .tokenizer_keys = {{"tokenizer_class", "GPT2Tokenizer"}},
       .generation = {{"_from_model_config", true}, {"eos_token_id", 2000}},
       .chat_template = ChatTemplate::text,
       .copied = {"added_tokens.json", "merges.txt", "vocab.json"},
       .ignored = hub},
      {.name = "Glm4",
       .config = "glm-4-9b",
       .tokenizer = "phi4",
       .tokenizer_keys = {{"tokenizer_class", "PreTrainedTokenizerFast"}},
       .generation = {{"do_sample", true}, {"eos_token_id", {2001, 2003}}},
       .chat_template = ChatTemplate::file,
       .copied = {"LICENSE"},
       .ignored = hub},
      {.name = "Gemma3",
       .config = "gemma-3-1b",
       .tokenizer = "gemma",
       .tokenizer_keys = {{"tokenizer_class", "GemmaTokenizer"}},
       .generation = {{"cache_implementation", "hybrid"}, {"eos_token_id", {1, 106}}, {"top_k", 64}},
       .chat_template = ChatTemplate::text,
       .copied = {"added_tokens.json", "tokenizer.model"},
       .ignored = hub},
      // transformers 4 and 5 write these.
      {.name = "SavedByTransformers4",
       .config = R"({"_name_or_path": "somewhere/model", "architectures": ["Qwen2ForCausalLM"],
                     "attention_dropout": 0.0, "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 3584,
                     "initializer_range": 0.02, "intermediate_size": 18944, "layer_types": ["full_attention",
                     "full_attention", "full_attention"], "max_position_embeddings": 32768, "max_window_layers": 28,
                     "model_type": "qwen2", "num_attention_heads": 28, "num_hidden_layers": 28,
                     "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0,
                     "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "float32",
                     "transformers_version": "4.57.1", "use_cache": true, "use_sliding_window": false,
                     "vocab_size": 152064})",
       .tokenizer = "qwen3",
       .tokenizer_keys = {{"extra_special_tokens", json::object()}, {"padding_side", "right"}},
       .special_tokens_map = {{"additional_special_tokens", {"<|im_start|>", "<|im_end|>"}},
                              {"eos_token", {{"content", "<|im_end|>"}, {"lstrip", false}, {"single_word", false}}}},
       .generation = {{"_from_model_config", true}, {"eos_token_id", 2002}, {"transformers_version", "4.57.1"}},
       .chat_template = ChatTemplate::named_list,
       .copied = {"added_tokens.json", "merges.txt", "vocab.json", "additional_chat_templates/tool_use.jinja"},
       .ignored = {"training_args.bin", "optimizer.pt", "runs/events.out.tfevents"},
       .tokenizer_json_without = {"normalizer", "decoder"}},
      {.name = "SavedByTransformers5",
       .config = R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
                     "bos_token_id": 128000, "dtype": "bfloat16", "eos_token_id": [128001, 128008, 128009],
                     "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
                     "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false,
                     "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
                     "num_key_value_heads": 8, "pad_token_id": null, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
                     "rope_parameters": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_theta": 500000.0, "rope_type": "llama3"},
                     "tie_word_embeddings": false, "transformers_version": "5.0.0", "use_cache": true,
                     "vocab_size": 128256})",
       .tokenizer = "llama3",
       .tokenizer_keys = {{"backend", "tokenizers"},
                          {"extra_special_tokens", {"<|start_header_id|>", "<|end_header_id|>"}},
                          {"is_local", true},
                          {"tokenizer_class", "TokenizersBackend"}},
       .generation = {{"_from_model_config", true}, {"eos_token_id", {2004, 2007}}, {"max_length", nullptr}},
       .chat_template = ChatTemplate::file,
       .ignored = {"training_args.bin"}},
  };
  return all;
}

}  // namespace so::test
