// The common part of every family's config.json, and the list of families.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "model/config.h"
#include "model/families/contradictions.h"
#include "model/families/family.h"
#include "model/parameters.h"

namespace so {
namespace {

constexpr std::array families{&llama_family,         &mistral_family,     &phi3_family,       &qwen2_family,
                              &qwen3_family,         &qwen3_moe_family,   &seed_oss_family,   &gpt_oss_family,
                              &mixtral_family,       &smollm3_family,     &olmo2_family,      &olmo3_family,
                              &granite_family,       &glm4_family,        &gemma3_family,     &ministral3_family,
                              &qwen3_5_family,       &qwen3_5_moe_family, &qwen3_next_family, &gemma4_family,
                              &glm4_moe_lite_family, &nemotron_h_family};

void read_llama3(const ConfigReader& scaling, RopeSpec& rope) {
  rope.scaling = RopeScaling::llama3;
  rope.factor = scaling.positive_number("factor");
  rope.low_freq_factor = scaling.positive_number("low_freq_factor");
  rope.high_freq_factor = scaling.positive_number("high_freq_factor");
  rope.original_positions = scaling.positive_int("original_max_position_embeddings");
  if (rope.high_freq_factor <= rope.low_freq_factor)
    scaling.refuse("high_freq_factor", "must be greater than low_freq_factor");
}

// As transformers: Phi-3 has the key beside its rotation, 4096 without it, and does not look at the one inside.
std::int64_t read_original_positions(const ConfigReader& config, const ConfigReader& scaling, const Family& family,
                                     const DecoderSpec& spec) {
  constexpr auto key = "original_max_position_embeddings";
  return &family == &phi3_family ? config.positive_int(key, 4096) : scaling.positive_int(key, spec.max_positions);
}

void read_yarn(const ConfigReader& config, const ConfigReader& scaling, const Family& family, const DecoderSpec& spec,
               RopeSpec& rope) {
  rope.scaling = RopeScaling::yarn;
  rope.original_positions = read_original_positions(config, scaling, family, spec);
  rope.factor = scaling.positive_number("factor");
  rope.beta_fast = scaling.positive_number("beta_fast", 32);
  rope.beta_slow = scaling.positive_number("beta_slow", 1);
  rope.truncate = scaling.boolean("truncate", true);
  const auto scale = [&](double m) { return rope.factor <= 1 ? 1.0 : 0.1 * m * std::log(rope.factor) + 1.0; };
  const double m = scaling.number("mscale", 0), m_all = scaling.number("mscale_all_dim", 0);
  rope.attention_factor =
      scaling.positive_number("attention_factor", m != 0 && m_all != 0 ? scale(m) / scale(m_all) : scale(1));
  if (rope.theta == 1) config.refuse("rope_theta", "must not be 1 with yarn");
  if (!family.query_growth) return;
  for (const char* key : {"original_max_position_embeddings", "llama_4_scaling_beta"})
    if (!scaling.has(key)) scaling.refuse(key, "missing");
  rope.query_growth = scaling.number("llama_4_scaling_beta", 0);
}

void read_longrope(const ConfigReader& config, const ConfigReader& scaling, const Family& family,
                   const DecoderSpec& spec, RopeSpec& rope) {
  rope.scaling = RopeScaling::longrope;
  rope.original_positions = read_original_positions(config, scaling, family, spec);
  const double factor = scaling.positive_number(
      "factor", static_cast<double>(spec.max_positions) / static_cast<double>(rope.original_positions));
  const auto usual =
      factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(rope.original_positions)));
  rope.attention_factor = scaling.positive_number("attention_factor", usual);
  const auto read = [&](std::string_view key) {
    std::vector<double> factors = scaling.positive_numbers(key);
    if (static_cast<std::int64_t>(factors.size()) * 2 != rope.rotary_dim)
      scaling.refuse(key, fmt::format("has {} numbers, expected {}, one for each rotated pair of dimensions",
                                      factors.size(), rope.rotary_dim / 2));
    return factors;
  };
  rope.short_factor = read("short_factor");
  rope.long_factor = read("long_factor");
}

// One rotation. Its settings stand in `scaling`, which is rope_parameters (transformers 5) or rope_scaling (4), or at
// the top; the inner one wins, as in transformers. theta: without any key.
RopeSpec read_rotation(const ConfigReader& config, const std::optional<ConfigReader>& scaling,
                       std::string_view theta_key, double theta, const Family& family, const DecoderSpec& spec) {
  RopeSpec rope;
  rope.pairs = spec.rope.pairs;
  rope.theta = config.positive_number(theta_key, theta);
  if (scaling) rope.theta = scaling->positive_number("rope_theta", rope.theta);
  double part = config.positive_number("partial_rotary_factor", family.rotary_part);
  if (scaling) part = scaling->positive_number("partial_rotary_factor", part);
  if (part != 1 && !family.partial_rotary)
    config.refuse("partial_rotary_factor", "only 1 is supported for this architecture");
  if (part > 1) config.refuse("partial_rotary_factor", "must be at most 1");
  const std::int64_t of_head = spec.latent.rotary_dim > 0 ? spec.latent.rotary_dim : spec.head_dim;
  rope.rotary_dim = static_cast<std::int64_t>(static_cast<double>(of_head) * part);
  if (rope.rotary_dim < 2 || rope.rotary_dim % 2 != 0)
    config.refuse("partial_rotary_factor", fmt::format("rotates {} dimensions of a head of {}; expected an even number",
                                                       rope.rotary_dim, of_head));
  if (!scaling) {
    if (family.query_growth) config.refuse("rope_parameters", "missing");
    return rope;
  }
  std::string type = scaling->text("rope_type", scaling->text("type", "default"));
  if (family.yarn_means_longrope && (type == "su" || type == "yarn")) type = "longrope";  // what old files mean by it
  if (family.query_growth && type != "yarn")
    scaling->refuse("rope_type",
                    fmt::format("'{}' is not supported for this architecture, only 'yarn'", printable(type)));
  if (type == "llama3") {
    read_llama3(*scaling, rope);
  } else if (type == "yarn") {
    read_yarn(config, *scaling, family, spec, rope);
  } else if (type == "longrope") {
    read_longrope(config, *scaling, family, spec, rope);
  } else if (type == "linear" || type == "dynamic") {
    rope.scaling = type == "linear" ? RopeScaling::linear : RopeScaling::dynamic;
    rope.factor = scaling->positive_number("factor");
    rope.original_positions = spec.max_positions;
    if (rope.scaling == RopeScaling::dynamic && rope.rotary_dim == 2)
      scaling->refuse("rope_type", "dynamic needs more than one rotated pair of dimensions");
  } else if (type != "default") {
    scaling->refuse(
        "rope_type",
        fmt::format("'{}' is not supported, only 'default', 'linear', 'dynamic', 'llama3', 'yarn' and 'longrope'",
                    printable(type)));
  }
  return rope;
}

// Layers with a window turn by a rotation of their own. transformers 5 has both in rope_parameters, under the types of
// layer_types; 4 has the other layers' at the top and in rope_scaling.
void read_rotations_by_type(const ConfigReader& config, const Family& family, DecoderSpec& spec) {
  const auto parameters = config.object("rope_parameters");
  std::optional<ConfigReader> global = config.object("rope_scaling"), local;
  if (parameters) {
    for (const char* key : {"rope_type", "type", "rope_theta", "factor"})
      if (parameters->has(key))
        config.refuse("rope_parameters", "expected an object for each of full_attention and sliding_attention");
    global = parameters->object("full_attention");
    local = parameters->object("sliding_attention");
  }
  spec.rope = read_rotation(config, global, "rope_theta", family.rope_theta, family, spec);
  spec.local_rope = read_rotation(config, local, family.local_theta_key, family.local_rope_theta, family, spec);
  if (spec.rope.scaling == RopeScaling::longrope && spec.local_rope->scaling == RopeScaling::longrope &&
      spec.rope.original_positions != spec.local_rope->original_positions)
    config.refuse("rope_parameters", "original_max_position_embeddings must be the same for all layers");
  for (LayerSpec& layer : spec.layer_specs)
    if (layer.window > 0) layer.rotation = LayerRotation::local;
}

void read_rope(const ConfigReader& config, const Family& family, DecoderSpec& spec) {
  if (config.object("rope_parameters") && config.object("rope_scaling"))
    config.refuse("rope_scaling", "given beside rope_parameters; remove the one that is not meant");
  if (!family.local_theta_key.empty()) return read_rotations_by_type(config, family, spec);
  const auto parameters = config.object("rope_parameters");
  spec.rope = read_rotation(config, parameters ? parameters : config.object("rope_scaling"), "rope_theta",
                            family.rope_theta, family, spec);
}

// Later code multiplies these sizes in 64 bits, and lists every layer and every parameter; a plan takes half a megabyte
// for a layer. The limits are far beyond any model; a file that exceeds them would not say so, it would overflow or eat
// the memory.
constexpr std::int64_t widest = std::int64_t{1} << 24, deepest = std::int64_t{1} << 10;

void require_at_most(const ConfigReader& config, std::string_view key, std::int64_t value, std::int64_t limit) {
  if (value > limit) config.refuse(key, fmt::format("{} is more than any model has (at most {})", value, limit));
}

// Checks the sizes that every family has, before anything is made that grows with them.
void require_plausible(const ConfigReader& config, const DecoderSpec& s) {
  require_at_most(config, "vocab_size", s.vocab, widest);
  require_at_most(config, "num_hidden_layers", s.layers, deepest);
  require_at_most(config, "hidden_size", s.hidden, widest);
  require_at_most(config, "intermediate_size", s.intermediate, widest);
  require_at_most(config, "num_attention_heads", s.heads, widest);
}

// Checks the sizes that the family has read, and what all of them make together.
void require_countable(const ConfigReader& config, const DecoderSpec& s) {
  constexpr double most_parameters = 1e15;
  constexpr std::int64_t most_experts = 1024, most_experts_per_token = 32, most_expert_lists = 400'000;
  const char* const experts_key = config.has("num_experts")        ? "num_experts"
                                  : config.has("n_routed_experts") ? "n_routed_experts"
                                                                   : "num_local_experts";
  require_at_most(config, "head_dim", s.head_dim, widest / s.heads);
  const AttentionShape global = s.shape(s.layers - 1);
  require_at_most(config, "global_head_dim", global.head_dim, widest / s.heads);
  const auto real = [](std::int64_t n) { return static_cast<double>(n); };
  require_at_most(config, experts_key, s.experts.count, most_experts);
  require_at_most(config, "linear_num_key_heads", s.delta.k_heads, widest);
  require_at_most(config, "linear_num_value_heads", s.delta.v_heads, widest);
  if (s.delta.k_heads > 0) {
    require_at_most(config, "linear_key_head_dim", s.delta.k_dim, widest / s.delta.k_heads);
    require_at_most(config, "linear_value_head_dim", s.delta.v_dim, widest / s.delta.v_heads);
  }
  require_at_most(config, "q_lora_rank", s.latent.q_rank, widest);
  require_at_most(config, "kv_lora_rank", s.latent.kv_rank, widest);
  require_at_most(config, "num_experts_per_tok", s.experts.per_token,
                  std::min(s.experts.count, most_experts_per_token));
  require_at_most(config, "moe_intermediate_size", s.experts.intermediate, widest);
  require_at_most(config, "shared_expert_intermediate_size", s.experts.shared_intermediate, widest);
  if (s.layers * s.experts.count > most_expert_lists)
    config.refuse(experts_key, fmt::format("{} in each of {} layers is more than any model has (at most {} in all)",
                                           s.experts.count, s.layers, most_expert_lists));
  const double mlp = std::max(
      real(s.intermediate), real(s.experts.count) * real(s.experts.intermediate) + real(s.experts.shared_intermediate));
  std::int64_t attention = 0;
  for (std::int64_t i = 0; i < s.layers; ++i)
    attention = std::max(attention, s.shape(i).q_width() + s.shape(i).qkv_width());
  const double parameters = real(s.layers) * real(s.hidden) *
                                (real(attention) + real(s.delta.projected_width() + s.delta.v_width()) +
                                 real(s.state_space.projected_width() + s.state_space.width()) + 3 * mlp) +
                            real(s.layers) * real(s.latent.q_rank + 2 * s.latent.kv_rank) * real(attention) +
                            real(s.vocab) * real(s.hidden);
  if (parameters > most_parameters)
    config.refuse("num_hidden_layers",
                  fmt::format("with the other sizes this makes {:.1e} parameters; some size is wrong", parameters));
}

// A text model, and what holds it, if anything does.
struct Held {
  const Family* family = nullptr;
  const Wrapper* wrapper = nullptr;
};

// The text models that a class can be or hold.
std::vector<Held> text_models_of(std::string_view architecture) {
  std::vector<Held> found;
  for (const Family* family : families) {
    if (family->architecture == architecture) found.push_back({family, nullptr});
    for (const Wrapper& wrapper : family->wrappers)
      if (wrapper.architecture == architecture) found.push_back({family, &wrapper});
  }
  return found;
}

std::string unsupported(std::string_view architecture) {
  std::vector<std::string_view> known;
  for (const Family* family : families) known.push_back(family->architecture);
  for (const Family* family : families)
    for (const Wrapper& wrapper : family->wrappers)
      if (std::find(known.begin(), known.end(), wrapper.architecture) == known.end())
        known.push_back(wrapper.architecture);
  return fmt::format("architecture '{}' is not supported; supported are {}", printable(architecture),
                     fmt::join(known, ", "));
}

// `held`: the text models that the class can hold; `text`: its text_config.
Held held_by_type(const std::vector<Held>& held, const ConfigReader& text) {
  if (held.size() == 1 && !text.has("model_type")) return held.front();
  const std::string type = text.text("model_type", "");
  std::string known;
  for (const Held& one : held) {
    if (one.family->model_type == type) return one;
    known += fmt::format("{}'{}'", known.empty() ? "" : ", ", one.family->model_type);
  }
  text.refuse("model_type", fmt::format("'{}' is no text model that is supported inside {}, only {}", printable(type),
                                        held.front().wrapper->architecture, known));
}

Held find_text_model(const ConfigReader& config) {
  const auto architectures = config.texts("architectures");
  if (architectures.size() != 1) config.refuse("architectures", "expected one class name");
  const std::vector<Held> held = text_models_of(architectures.front());
  if (held.empty()) config.refuse("architectures", unsupported(architectures.front()));
  return held.front().wrapper == nullptr ? held.front() : held_by_type(held, text_part(config));
}

// What counts is beside text_config, as in transformers.
bool read_tied_embeddings(const ConfigReader& config, const ConfigReader& text, const Wrapper& wrapper,
                          DecoderSpec& spec) {
  constexpr auto key = "tie_word_embeddings";
  const bool tied = !config.is_null(key) && config.boolean(key, wrapper.tied_embeddings);
  if (text.has(key) && text.boolean(key, tied) != tied)
    spec.remarks.push_back(fmt::format(
        "config.json has {} {} in text_config; what counts for {} is beside it, where it is {}{}", key, !tied,
        wrapper.architecture, tied, config.has(key) || config.is_null(key) ? "" : " without the key"));
  return tied;
}

// Which tensors are in FP8 is what the files say.
void refuse_quantized(const ConfigReader& config, const Family& family) {
  const auto quantized = config.object("quantization_config");
  if (!quantized) return;
  const std::string method = quantized->text("quant_method", "");
  if (method == "fp8" || (family.mxfp4 && method == "mxfp4")) return;
  config.refuse("quantization_config",
                fmt::format("weights quantised by the method '{}' cannot be fine-tuned here, only 'fp8'{}; use the "
                            "unquantised model",
                            printable(method), family.mxfp4 ? " and 'mxfp4'" : ""));
}

void read_sizes(const ConfigReader& config, const Family& family, DecoderSpec& spec) {
  const auto size = [&](std::string_view key, std::int64_t fallback) {
    return fallback > 0 ? config.positive_int(key, fallback) : config.positive_int(key);
  };
  spec.vocab = size("vocab_size", family.sizes.vocab);
  spec.hidden = size("hidden_size", family.sizes.hidden);
  spec.layers = size("num_hidden_layers", family.sizes.layers);
  spec.heads = size("num_attention_heads", family.sizes.heads);
  const bool as_many = family.kv_heads == 0 || config.is_null("num_key_value_heads");
  spec.kv_heads = config.positive_int("num_key_value_heads", as_many ? spec.heads : family.kv_heads);
  spec.intermediate = size("intermediate_size", family.sizes.intermediate);
  spec.max_positions = size("max_position_embeddings", family.sizes.positions);
}

}  // namespace

const Family& find_family(std::string_view architecture) {
  for (const Family* family : families)
    if (family->architecture == architecture) return *family;
  fail("{}", unsupported(architecture));
}

const Wrapper* find_wrapper(const DecoderSpec& spec) {
  for (const Wrapper& wrapper : find_family(spec.architecture).wrappers)
    if (wrapper.architecture == spec.wrapper) return &wrapper;
  return nullptr;
}

ConfigReader text_part(const ConfigReader& config) {
  const auto architectures = config.texts("architectures");
  const std::vector<Held> held = architectures.empty() ? std::vector<Held>() : text_models_of(architectures.front());
  if (held.empty() || held.front().wrapper == nullptr) return config;
  if (const auto text = config.object("text_config")) return *text;
  config.refuse("text_config",
                fmt::format("missing; {} has the config of its text model there", architectures.front()));
}

DecoderSpec read_decoder_spec(std::string_view text, const std::string& origin) {
  const ConfigReader whole(text, origin);
  const auto [family, wrapper] = find_text_model(whole);
  ConfigReader config = text_part(whole);
  require_consistent(config, family->architecture, family->model_type);
  DecoderSpec spec;
  spec.architecture = family->architecture;
  if (wrapper != nullptr) {
    require_consistent(whole, wrapper->architecture, wrapper->model_type);
    refuse_quantized(whole, *family);
    spec.wrapper = wrapper->architecture;
  }
  read_sizes(config, *family, spec);
  spec.rms_epsilon = static_cast<float>(config.positive_number("rms_norm_eps", family->rms_norm_eps));
  spec.initializer_range = config.positive_number("initializer_range", 0.02);
  spec.qkv_bias = spec.o_bias = config.boolean("attention_bias", false);
  spec.head_dim = config.has("head_dim") ? config.positive_int("head_dim") : 0;
  config.only(family->activation_key, family->activation);
  if (!family->reads_dropout)
    config.only_zero("attention_dropout", "dropout is not supported; set it to 0, as these models are trained");
  refuse_quantized(config, *family);
  require_plausible(config, spec);
  family->read(config, spec);
  if (wrapper != nullptr) spec.tied_embeddings = read_tied_embeddings(whole, config, *wrapper, spec);

  if (spec.heads % spec.kv_heads != 0) config.refuse("num_key_value_heads", "must divide num_attention_heads");
  if (spec.head_dim == 0) {
    if (spec.hidden % spec.heads != 0)
      config.refuse("head_dim", "missing, and num_attention_heads does not divide hidden_size");
    spec.head_dim = spec.hidden / spec.heads;
  }
  if (spec.head_dim % 2 != 0) config.refuse("head_dim", "must be even");
  require_countable(config, spec);
  family->read_rotations != nullptr ? family->read_rotations(config, spec) : read_rope(config, *family, spec);
  return spec;
}

void read_windows(const ConfigReader& config, DecoderSpec& spec, std::int64_t window,
                  bool (*otherwise)(const ConfigReader&, std::int64_t)) {
  const std::vector<std::string> types = config.texts("layer_types");
  if (!types.empty() && static_cast<std::int64_t>(types.size()) != spec.layers)
    config.refuse("layer_types", fmt::format("has {} entries for {} layers", types.size(), spec.layers));
  spec.layer_specs.resize(static_cast<std::size_t>(spec.layers));
  for (std::int64_t i = 0; i < spec.layers; ++i) {
    const auto at = static_cast<std::size_t>(i);
    bool sliding = false;
    if (types.empty())
      sliding = window > 0 && otherwise(config, i);
    else if (types[at] == "sliding_attention")
      sliding = true;
    else if (types[at] != "full_attention")
      config.refuse("layer_types", fmt::format("'{}' is not supported, only 'full_attention' and 'sliding_attention'",
                                               printable(types[at])));
    if (sliding && window == 0) config.refuse("layer_types", "has 'sliding_attention', but there is no sliding window");
    if (sliding) spec.layer_specs[at].window = window;
  }
}

void read_qwen_windows(const ConfigReader& config, DecoderSpec& spec) {
  const std::int64_t window =
      config.boolean("use_sliding_window", false) ? config.positive_int("sliding_window", 4096) : 0;
  read_windows(config, spec, window, [](const ConfigReader& c, std::int64_t layer) {
    return layer >= c.whole_number("max_window_layers", 28);
  });
}

void read_router_loss(const ConfigReader& config, DecoderSpec& spec) {
  const double coefficient = config.number("router_aux_loss_coef", 0.001);
  if (config.boolean("output_router_logits", false)) spec.experts.balance = coefficient;
}

DecoderSpec read_decoder_spec(const std::filesystem::path& file) {
  if (!path_exists(file))
    fail("{}: no such file; a Hugging Face model directory holds a config.json", printable_path(file));
  constexpr std::uint64_t most_bytes = 16 << 20;
  return read_decoder_spec(read_text_file(file, most_bytes), file.string());
}

}  // namespace so
